"""The agent: it chooses, remembers what came of it, and learns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mpcpipe.services.power.greendls.network import DuelingNetwork, follow, targets

STATE = 4


@dataclass(frozen=True)
class Learning:
    """How the agent learns.

    gamma: discount a batch. share: of the online network in the target network, after each step. explore, explore_end:
    share of random actions at first and in the end; it falls by explore_step a batch. batch: transitions a step.
    double: targets by double Q-learning. warm: steps on predicted rewards before the first batch. paper_exact:
    rewards, terminals and masks as the published agent has them.
    """

    hidden: int = 128
    rate: float = 5e-4
    gamma: float = 0.99
    share: float = 0.05
    explore: float = 1.0
    explore_end: float = 0.05
    explore_step: float = 1e-5
    batch: int = 64
    memory: int = 1_000_000
    steps: int = 100_000
    double: bool = False
    warm: int = 0
    paper_exact: bool = True

    @classmethod
    def published(cls, steps: int = 100_000, double: bool = False) -> Learning:
        """As GREENDLS's authors have it; with fewer steps exploration falls as much faster."""
        return cls(explore_step=1e-5 * 100_000 / steps, steps=steps, double=double)


def corrected(steps: int = 6_000, double: bool = True) -> Learning:
    """Our settings: a warm start, so little exploration and few steps; a shorter horizon; double Q-learning.

    A quarter of the width: it does as well in replays, and the file has 160 kB for 2,430 actions.
    """
    return Learning(
        hidden=32,
        rate=2e-4,
        gamma=0.8,
        explore=0.2,
        explore_end=0.02,
        explore_step=0.18 / (0.6 * steps),
        steps=steps,
        double=double,
        warm=steps // 4,
        paper_exact=False,
    )


class Memory:
    """Transitions, the oldest overwritten: state, action, reward, next state, 1.0 where the episode ended."""

    def __init__(self, capacity: int) -> None:
        self.states = torch.zeros(capacity, STATE)
        self.actions = torch.zeros(capacity, dtype=torch.int64)
        self.rewards = torch.zeros(capacity)
        self.following = torch.zeros(capacity, STATE)
        self.ends = torch.zeros(capacity)
        self.count = 0

    def __len__(self) -> int:
        return min(self.count, len(self.actions))

    def add(self, state: Tensor, action: int, reward: float, following: Tensor, end: float) -> None:
        """Remember one transition."""
        at = self.count % len(self.actions)
        self.states[at], self.following[at] = state, following
        self.actions[at], self.rewards[at], self.ends[at] = action, reward, end
        self.count += 1

    def tensors(self) -> dict[str, Tensor]:
        """What is remembered, for a checkpoint."""
        n = len(self)
        return {
            "states": self.states[:n],
            "actions": self.actions[:n],
            "rewards": self.rewards[:n],
            "following": self.following[:n],
            "ends": self.ends[:n],
            "count": torch.tensor([self.count]),
        }

    def restore(self, kept: dict[str, Tensor]) -> None:
        """Back from `tensors`."""
        for name in ("states", "actions", "rewards", "following", "ends"):
            getattr(self, name)[: len(kept[name])] = kept[name]
        self.count = int(kept["count"])


class Agent:
    """Two networks, their optimizer, the memory, and one generator for all chance."""

    def __init__(self, actions: int, learning: Learning, seed: int) -> None:
        self.learning = learning
        self.draw = torch.Generator().manual_seed(seed)
        self.online = DuelingNetwork(STATE, actions, learning.hidden, self.draw)
        self.target = DuelingNetwork(STATE, actions, learning.hidden, self.draw)
        follow(self.target, self.online, 1.0)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=learning.rate, fused=True)
        self.memory = Memory(min(learning.memory, learning.steps))
        self.steps = 0

    @property
    def explore(self) -> float:
        """The share of random actions now."""
        return max(self.learning.explore_end, self.learning.explore - self.learning.explore_step * self.steps)

    def settle(self) -> None:
        """The target network becomes the online one, and the optimizer forgets."""
        follow(self.target, self.online, 1.0)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=self.learning.rate, fused=True)

    @torch.no_grad()
    def choose(self, state: Tensor, allowed: Tensor) -> int:
        """A random allowed action, or the one with the highest Q.

        state: (4,). allowed: (actions,) of bool. The published agent's greedy choice is not held to it, ours is.
        """
        if float(torch.rand((), generator=self.draw)) < self.explore:
            choices = allowed.nonzero().squeeze(1)
            return int(choices[torch.randint(len(choices), (), generator=self.draw)])
        values = self.online(state.unsqueeze(0)).squeeze(0)
        if not self.learning.paper_exact:
            values = values.masked_fill(~allowed, -torch.inf)
        return int(values.argmax())

    def learn(self) -> float | None:
        """One step of Adam on a batch from the memory; gives the loss, None while there is too little to learn from."""
        self.steps += 1
        if len(self.memory) < self.learning.batch:
            return None
        kept = self.memory
        rows = torch.randint(len(kept), (self.learning.batch,), generator=self.draw)
        with torch.no_grad():
            next_target = self.target(kept.following[rows])
            next_online = self.online(kept.following[rows]) if self.learning.double else next_target
            wanted = targets(
                kept.rewards[rows], next_online, next_target, kept.ends[rows], self.learning.gamma, self.learning.double
            )
        believed = self.online.chosen(kept.states[rows], kept.actions[rows])
        loss = torch.nn.functional.mse_loss(believed, wanted)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        follow(self.target, self.online, self.learning.share)
        return float(loss.detach())
