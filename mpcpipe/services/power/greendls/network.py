"""The dueling Q-network, and the targets that it learns."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def dueling(value: Tensor, advantage: Tensor) -> Tensor:
    """Q = V + A - mean A. value: (rows, 1); advantage: (rows, actions); gives (rows, actions).

    Source: Wang et al., "Dueling Network Architectures for Deep Reinforcement Learning", ICML 2016, equation 9.
    """
    return value + advantage - advantage.mean(dim=1, keepdim=True)


class DuelingNetwork(nn.Module):
    """States (rows, state) -> hidden, ReLU -> hidden, tanh -> V (rows, 1), A (rows, actions) -> Q (rows, actions)."""

    def __init__(self, state: int, actions: int, hidden: int, draw: torch.Generator) -> None:
        super().__init__()
        self.first = nn.Linear(state, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, 1)
        self.advantage = nn.Linear(hidden, actions)
        for layer in (self.first, self.second, self.value, self.advantage):
            bound = layer.in_features**-0.5
            with torch.no_grad():
                layer.weight.uniform_(-bound, bound, generator=draw)
                layer.bias.uniform_(-bound, bound, generator=draw)

    def forward(self, states: Tensor) -> Tensor:
        """Q of every action."""
        hidden = self._hidden(states)
        return dueling(self.value(hidden), self.advantage(hidden))

    def chosen(self, states: Tensor, actions: Tensor) -> Tensor:
        """Q of one action a row: (rows,). The same as `forward` and a selection, without the other 2,429 products."""
        hidden = self._hidden(states)
        weight, bias = self.advantage.weight, self.advantage.bias
        advantage = (hidden * weight[actions]).sum(dim=1) + bias[actions]
        mean = hidden @ weight.mean(dim=0) + bias.mean()
        chosen: Tensor = self.value(hidden).squeeze(1) + advantage - mean
        return chosen

    def _hidden(self, states: Tensor) -> Tensor:
        return torch.tanh(self.second(torch.relu(self.first(states))))


def targets(
    rewards: Tensor, next_online: Tensor, next_target: Tensor, ends: Tensor, gamma: float, double: bool
) -> Tensor:
    """r + gamma * Q'(s', a') where the episode goes on, r where it ends.

    rewards, ends: (rows,); ends is 1 where nothing follows. next_online, next_target: Q(s', .) of the two networks,
    (rows, actions). double: a' is the online network's choice, valued by the target network; otherwise the target
    network does both, and overestimates.
    Source: Mnih et al., Nature 518 (2015); van Hasselt et al., AAAI 2016 (double).
    """
    if double:
        following = next_target.gather(1, next_online.argmax(dim=1, keepdim=True)).squeeze(1)
    else:
        following = next_target.max(dim=1).values
    return rewards + gamma * (1.0 - ends) * following


@torch.no_grad()
def follow(target: nn.Module, online: nn.Module, share: float) -> None:
    """target <- (1 - share) target + share online."""
    for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
        slow.lerp_(fast, share)
