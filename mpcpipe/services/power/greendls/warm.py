"""A start for the agent that is not random: what the predictors expect of every action.

With 2,430 actions most are tried once or never in training. But time, power and waiting of each can be predicted, so
the rewards of all of them can be worked out for any state, and the network starts from there. Training then corrects it
by what happens.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from mpcpipe.services.power.greendls.agent import Agent
from mpcpipe.services.power.greendls.reward import MARGIN, load
from mpcpipe.services.power.policies.tables import Table

Floats = NDArray[np.float64]
ROWS = 64


class Imagination:
    """Rewards and states as predicted. table: of the actions. waiting_w: (memory clocks, SM clocks). reference_j,
    floor_w, slo_s: as in the reward."""

    def __init__(
        self, table: Table, waiting_w: Floats, reference_j: float, floor_w: float, slo_s: float, tdp_w: float
    ) -> None:
        self.exec_s, self.power_w = table.exec_s.reshape(-1), table.power_w.reshape(-1)
        self.batches = np.broadcast_to(np.array(table.batches), table.exec_s.shape).reshape(-1)
        self.waiting_w = np.broadcast_to(waiting_w[:, :, None], table.exec_s.shape).reshape(-1)
        self.reference_j, self.floor_w, self.slo_s, self.tdp_w = reference_j, floor_w, slo_s, tdp_w

    def rewards(self, rate_per_s: float, before_s: float) -> Floats:
        """Of each action, repeated for ever: (actions,). before_s: the run of the batch before.

        The oldest request waits until its batch is full, or until the batch before is done. That arrivals are a Poisson
        process makes it late with a probability; a queue that grows without bound is late for certain.
        """
        cycle_s = np.maximum(self.batches / rate_per_s, self.exec_s)
        spent_j = (self.exec_s * self.power_w + (cycle_s - self.exec_s) * self.waiting_w - cycle_s * self.floor_w) / (
            self.batches
        )
        delay_s = np.maximum(self.batches / rate_per_s, before_s) + self.exec_s
        over = (delay_s - MARGIN * self.slo_s) / (np.sqrt(self.batches) / rate_per_s)
        late = 0.5 * (1.0 + torch.erf(torch.from_numpy(over / math.sqrt(2.0))).numpy())
        late = np.where(self.exec_s > 0.95 * self.batches / rate_per_s, 1.0, late)
        beyond = np.clip(delay_s / self.slo_s - MARGIN, 0.0, 1.0)
        return np.asarray(-spent_j / self.reference_j - late * (1.0 + beyond))

    def state(self, rate_per_s: float, action: int) -> tuple[float, float, float, float]:
        """After an action at a steady rate."""
        wait_s = self.batches[action] / rate_per_s
        share = self.exec_s[action] / self.slo_s
        return (
            float(self.power_w[action] / self.tdp_w),
            float(min(1.0, wait_s / self.slo_s)),
            float(min(1.0, share)),
            load(rate_per_s, self.slo_s),
        )


def warm_up(agent: Agent, imagination: Imagination, low_per_s: float, high_per_s: float, steps: int) -> float:
    """Regress Q of all actions on their predicted rewards, summed over the future; gives the last loss.

    Rates between low and high, states after a random action that could be filled in time. Most of it is decided at the
    best actions, so errors there weigh more.
    """
    draw, loss_value = agent.draw, 0.0
    horizon = 1.0 / (1.0 - agent.learning.gamma)
    for _ in range(steps):
        states, wanted = [], []
        for rate in (low_per_s + (high_per_s - low_per_s) * torch.rand(ROWS, generator=draw)).tolist():
            fitting = np.flatnonzero(imagination.batches / rate <= imagination.slo_s)
            fitting = fitting if len(fitting) else np.arange(len(imagination.batches))
            action = int(fitting[int(torch.randint(len(fitting), (), generator=draw))])
            states.append(imagination.state(rate, action))
            wanted.append(imagination.rewards(rate, float(imagination.exec_s[action])) * horizon)
        target = torch.from_numpy(np.stack(wanted)).float()
        weight = torch.exp(target - target.max(dim=1, keepdim=True).values) + 0.05
        agent.optimizer.zero_grad()
        loss = (weight * (agent.online(torch.tensor(states)) - target) ** 2).mean()
        loss.backward()
        agent.optimizer.step()
        loss_value = float(loss.detach())
    agent.settle()
    return loss_value
