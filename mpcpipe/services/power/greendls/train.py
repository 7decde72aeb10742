"""Training the agent against the simulated server: seeded, in rounds, and able to go on after an interruption.

for each round: a server with requests of its own
    state -> action -> the guard -> a batch fills and runs -> reward, next state -> memory -> one step of learning
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from mpcpipe.services.power.greendls.actions import Actions
from mpcpipe.services.power.greendls.agent import Agent, Learning
from mpcpipe.services.power.greendls.reward import MARGIN, guarded, published_reward, reward, state
from mpcpipe.services.power.greendls.warm import Imagination, warm_up
from mpcpipe.services.power.greendls.weights import load_checkpoint, save_checkpoint
from mpcpipe.services.power.model import idle_w
from mpcpipe.services.power.policies.base import Scene
from mpcpipe.services.power.policies.batching import Fill, floor_w, start_in_time
from mpcpipe.services.power.policies.tables import Table
from mpcpipe.services.power.requests import Rates, arrivals, varied
from mpcpipe.services.power.server import Server, window_s
from mpcpipe.services.power.serving_plant import ServingPlant
from mpcpipe.services.power.setting import Setting

ROUND = 500
"""Batches of a round."""
ROUND_S = 120
SPREAD = 1.25
REFERENCE_BATCH = 16


@dataclass(frozen=True)
class Course:
    """What is trained on. scene: with a predictor. plant: a new simulated GPU from a seed. rates: the trace whose range
    of rates is drawn from. slo_s: the latency objective."""

    scene: Scene
    plant: Callable[[int], ServingPlant]
    rates: Rates
    slo_s: float


@dataclass(frozen=True)
class Progress:
    """How it goes. reward: mean of the round. late: share of its batches that were late. loss: of the last step."""

    steps: int
    reward: float
    late: float
    loss: float | None
    explore: float


def train(
    course: Course,
    learning: Learning,
    seed: int,
    checkpoint: Path | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
    round_batches: int = ROUND,
) -> tuple[Agent, Actions]:
    """The trained agent. With a checkpoint it is written after each round, and gone on from where it exists.

    The same course, learning and seed give the same weights, interrupted or not.
    """
    actions = Actions.of(course.scene)
    agent = Agent(len(actions), learning, seed)
    if checkpoint is not None and checkpoint.exists():
        load_checkpoint(checkpoint, agent, actions, seed)
    lesson = _Lesson(course, learning, actions)
    if agent.steps == 0 and learning.warm:
        warm_up(agent, lesson.imagination(), *lesson.range_per_s(), learning.warm)
    while agent.steps < learning.steps:
        report(lesson.round(agent, min(round_batches, learning.steps - agent.steps), seed))
        if checkpoint is not None:
            save_checkpoint(checkpoint, agent, actions, seed)
    return agent, actions


class _Lesson:
    """What happens between two choices."""

    def __init__(self, course: Course, learning: Learning, actions: Actions) -> None:
        self.course, self.learning, self.actions = course, learning, actions
        known, start = course.scene.known(), replace(course.scene.start, batch=REFERENCE_BATCH)
        self.floor_w = floor_w(course.scene)
        self.reference_j = (known.power_w(start) - self.floor_w) * known.exec_s(start) / start.batch
        self.table = Table.of(known, actions.memory_clocks_mhz, actions.sm_clocks_mhz, course.scene.batches)

    def round(self, agent: Agent, batches: int, seed: int) -> Progress:
        """Some batches, and a step of learning after each."""
        number = agent.steps
        # A generator of its own each round: an interruption between two rounds changes nothing.
        agent.draw.manual_seed((seed * 1_000_003 + number + 1) % 2**63)
        server = self._server(seed + number)
        total, late, loss = 0.0, 0, None
        for _ in range(batches):
            if server.done:
                number += 1
                server = self._server(seed + number)
            seen, rate = self._state(server), server.rate_per_s()
            allowed = self.actions.explorable(rate, self.course.slo_s, not self.learning.paper_exact)
            action = agent.choose(seen, torch.from_numpy(allowed))
            if not self.learning.paper_exact:
                action = self._hurried(server, action)
            gained, was_late = self._try(server, self.actions.setting(action))
            # The published agent marks each batch in time as the end of an episode, and a late one as none.
            end = float(not was_late) if self.learning.paper_exact else 0.0
            agent.memory.add(seen, action, gained, self._state(server), end)
            total, late = total + gained, late + was_late
            loss = agent.learn()
        return Progress(agent.steps, total / batches, late / batches, loss, agent.explore)

    def range_per_s(self) -> tuple[float, float]:
        """Rates to train on: those of the trace, as means over an objective's time, and a quarter beyond."""
        rates = self.course.rates.smoothed(self.course.slo_s).per_s
        return max(1.0, min(rates) / SPREAD), max(rates) * SPREAD

    def imagination(self) -> Imagination:
        """What the predictors expect of the actions."""
        scene, actions = self.course.scene, self.actions
        table = Table.of(scene.known(), actions.memory_clocks_mhz, actions.sm_clocks_mhz, actions.batches)
        waiting_w = np.stack(
            [idle_w(scene.card, memory, np.array(actions.sm_clocks_mhz)) for memory in actions.memory_clocks_mhz]
        )
        return Imagination(
            table, waiting_w, self.reference_j, self.floor_w, self.course.slo_s, self.course.scene.card.tdp_w
        )

    def _server(self, seed: int) -> Server:
        slo_s = self.course.slo_s
        hold_s = max(5, round(3 * slo_s))
        rates = varied(seed, max(ROUND_S, 12 * hold_s), *self.range_per_s(), hold_s)
        server = Server(
            arrivals(rates, seed),
            self.course.plant(seed),
            more_than=self.learning.paper_exact,
            first_rate_per_s=rates.per_s[0],
            rate_window_s=window_s(slo_s),
        )
        server.wait_for_work()
        return server

    def _try(self, server: Server, setting: Setting) -> tuple[float, bool]:
        """(reward, was it late?) of one action; leaves the server with a request that waits."""
        slo_s, rate = self.course.slo_s, server.rate_per_s()
        age_s = server.observation().oldest_wait_s or 0.0
        setting = replace(setting, batch=guarded(setting.batch, server.waiting(), age_s, rate, slo_s))
        batch = server.serve(setting, None if self.learning.paper_exact else self._in_time(server, setting))
        server.wait_for_work()
        delay_s = batch.oldest_latency_s
        if self.learning.paper_exact:
            gained = published_reward(delay_s, self.table.request_j(batch.setting), slo_s)
        else:
            rest_j = self.floor_w * (batch.finish_s - batch.decided_s)
            gained = reward(delay_s, (batch.waiting_j + batch.busy_j - rest_j) / batch.count, self.reference_j, slo_s)
        return gained, delay_s > MARGIN * slo_s

    def _hurried(self, server: Server, action: int) -> int:
        seen, within_s = server.observation(), MARGIN * self.course.slo_s
        exec_s = self.course.scene.known().exec_s(self.actions.setting(action))
        return self.actions.hurry(action, seen.queue or 0, seen.oldest_wait_s or 0.0, exec_s, within_s)

    def _in_time(self, server: Server, setting: Setting) -> Fill:
        observation = server.observation()
        return start_in_time(observation, self.course.scene.known().exec_s(setting), MARGIN * self.course.slo_s)

    def _state(self, server: Server) -> torch.Tensor:
        return torch.tensor(state(server.observation(), self.course.slo_s, self.course.scene.card.tdp_w))
