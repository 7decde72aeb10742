"""A worker: carries out the actions of its stages, over links of its own.

    F  forward of one micro-batch      x from the feed or the stage before, y to the next, or into the loss
    I  gradient of the input           dy from the next stage or the loss, dx to the one before
    W  gradients of the weights        local under 3PC
    B  I, then W
    U  update of the weights           once a step

Everything that happens between two stages of a party is a hand-over; everything between parties is a round on `mesh`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from mpcpipe.link.base import Mesh
from mpcpipe.nn.fixed import Fixed
from mpcpipe.nn.loss import Loss
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.rounds import Operation, gather, run
from mpcpipe.runtime.feed import Feed
from mpcpipe.runtime.handover import Handover
from mpcpipe.runtime.openings import loss_of_step
from mpcpipe.runtime.record import Measured
from mpcpipe.runtime.stage import Stage


@dataclass(frozen=True)
class Action:
    """One thing to do: what (F, I, W, B or U), for which stage and micro-batch."""

    kind: str
    stage: int
    microbatch: int = 0


def in_sequence(stages: int, microbatches: int) -> list[Action]:
    """The baseline: one worker does everything, one micro-batch after another."""
    actions = []
    for m in range(microbatches):
        actions += [Action("F", s, m) for s in range(stages)]
        actions += [Action("B", s, m) for s in reversed(range(stages))]
    return actions + [Action("U", s) for s in range(stages)]


@dataclass(frozen=True)
class Task:
    """One step: its number (from 1), the rows of each micro-batch, and what the update needs."""

    step: int
    rows: Sequence[torch.Tensor]
    learning_rate: float
    reveal_loss: bool = False

    @property
    def batch_size(self) -> int:
        """Rows of all micro-batches."""
        return sum(len(rows) for rows in self.rows)


class Worker:
    """One worker of one party. `stages` are its own; `last` is the number of the model's last stage."""

    def __init__(
        self,
        protocol: Protocol,
        mesh: Mesh,
        stages: Mapping[int, Stage],
        last: int,
        feed: Feed,
        loss: Loss,
        handover: Handover,
    ) -> None:
        self.p, self.mesh = protocol, mesh
        self.stages, self.last = stages, last
        self.feed, self.loss, self.handover = feed, loss, handover
        self.idle_s = 0.0
        self._losses: list[torch.Tensor] = []
        self._loss_bits = 0

    def step(self, actions: Sequence[Action], task: Task) -> tuple[Measured, float | None]:
        """Carry out the step; returns what it took, and the loss where the job reveals it and this worker has it."""
        before = (self.mesh.wait_s, self.idle_s, self._wire_bytes(), self.mesh.sent_payload_bytes, self.mesh.clock)
        began = time.perf_counter()
        for action in actions:
            self._carry_out(action, task)
        loss = self._opened_loss(task) if self._losses else None
        seconds = time.perf_counter() - began
        wait, idle = self.mesh.wait_s - before[0], self.idle_s - before[1]
        return Measured(
            compute_s=max(0.0, seconds - wait - idle),
            wait_s=wait,
            idle_s=idle,
            sent_bytes=self._wire_bytes() - before[2],
            payload_bytes=self.mesh.sent_payload_bytes - before[3],
            rounds=self.mesh.clock - before[4],
        ), loss

    def _wire_bytes(self) -> int:
        return sum(link.traffic.sent_wire_bytes for link in self.mesh.links.values())

    def _carry_out(self, action: Action, task: Task) -> None:
        if action.kind == "F":
            self._forward(action, task)
        if action.kind in "IB":
            self._input_grad(action, task)
        if action.kind in "WB":
            stage = self.stages[action.stage]
            run(stage.weight_grad(self.p, task.step, action.microbatch), self.mesh)
        if action.kind == "U":
            stage = self.stages[action.stage]
            run(stage.update(self.p, task.step, task.learning_rate, task.batch_size), self.mesh)

    def _take(self, direction: str, action: Action) -> Fixed:
        value, clock, waited = self.handover.take((direction, action.stage, action.microbatch))
        self.idle_s += waited
        self.mesh.clock = max(self.mesh.clock, clock)
        assert isinstance(value, Fixed)
        return value

    def _forward(self, action: Action, task: Task) -> None:
        step, m, rows = task.step, action.microbatch, task.rows[action.microbatch]
        stage, p = self.stages[action.stage], self.p
        given = self._take("F", action) if action.stage else None

        async def forward() -> Fixed:
            x = given if given is not None else await self.feed.features(p.at(f"{step}/features/{m}"), rows)
            return await stage.forward(p, step, m, x)

        if action.stage < self.last:
            y = run(forward(), self.mesh)
            self.handover.put(("F", action.stage + 1, m), y, self.mesh.clock)
            return
        dy = run(self._forward_and_loss(forward(), task, m), self.mesh)
        self.handover.put(("B", action.stage, m), dy, self.mesh.clock)

    async def _forward_and_loss(self, forward: Operation[Fixed], task: Task, m: int) -> Fixed:
        p, step = self.p, task.step
        # The labels' one message rides in the first round of the forward pass.
        y, target = await gather(forward, self.feed.labels(p.at(f"{step}/labels/{m}"), task.rows[m]))
        dy, saved = await self.loss.forward_grad(p.at(f"{step}/loss/{m}"), y, target)
        if task.reveal_loss:
            value = await self.loss.value(p.at(f"{step}/loss value/{m}"), saved)
            self._losses.append(value.data * len(task.rows[m]))
            self._loss_bits = value.fraction_bits
        return dy

    def _opened_loss(self, task: Task) -> float:
        total = torch.stack(self._losses).sum(0)
        self._losses = []
        at = self.p.at(f"{task.step}/reveal loss")
        opened = run(at.reveal(total, None, loss_of_step(task.step)), self.mesh)
        assert opened is not None
        return float(opened.item() / 2**self._loss_bits / task.batch_size)

    def _input_grad(self, action: Action, task: Task) -> None:
        dy = self._take("B", action)
        dx = run(self.stages[action.stage].input_grad(self.p, task.step, action.microbatch, dy), self.mesh)
        if action.stage:
            assert dx is not None
            self.handover.put(("B", action.stage - 1, action.microbatch), dx, self.mesh.clock)
