"""A worker: carries out the actions of its stages, over links of its own.

    F  forward of one micro-batch      x from the feed or the stage before, y to the next, or into the loss
    I  gradient of the input           dy from the next stage or the loss, dx to the one before
    W  gradients of the weights        local under 3PC
    B  I, then W
    U  update of the weights           once a step; consecutive updates of a worker share their rounds

Everything between two stages of a party is a hand-over; everything between parties is a round on `mesh`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch

from mpcpipe.link.base import Mesh
from mpcpipe.nn.fixed import Fixed
from mpcpipe.nn.loss import Loss
from mpcpipe.plan.actions import Action, Done, Schedule, leaves, needs
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.rounds import Operation, gather, run
from mpcpipe.runtime.feed import Feed
from mpcpipe.runtime.handover import Handover
from mpcpipe.runtime.openings import loss_of_step
from mpcpipe.runtime.record import Span
from mpcpipe.runtime.stage import At, Stage


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


class Losses:
    """The loss of each micro-batch of a step, as shares, from whichever worker of the last stage has it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shares: dict[int, list[torch.Tensor]] = {}
        self.fraction_bits = 0

    def add(self, step: int, value: Fixed, rows: int) -> None:
        """The mean over `rows` rows."""
        with self._lock:
            self._shares.setdefault(step, []).append(value.data * rows)
            self.fraction_bits = value.fraction_bits

    def total(self, step: int) -> torch.Tensor:
        """The sum over all rows of a step, once."""
        with self._lock:
            shares = self._shares.pop(step)
        return torch.stack(shares).sum(0, dtype=shares[0].dtype)


@dataclass
class Shared:
    """What the workers of one party have in common. told: hears (worker, action, begins) as actions take place."""

    protocol: Protocol
    stages: Sequence[Stage]
    feed: Feed
    loss: Loss
    handover: Handover = field(default_factory=Handover)
    losses: Losses = field(default_factory=Losses)
    told: Callable[[str, str, bool], None] | None = None


class Worker:
    """One worker of one party."""

    def __init__(self, shared: Shared, mesh: Mesh, index: int) -> None:
        self.shared, self.mesh, self.index = shared, mesh, index
        self.p = shared.protocol.lane(index + 1)
        self.last = len(shared.stages) - 1
        self.spans: list[Span] = []
        self.losses: dict[int, float] = {}
        self._updates: dict[int, int] = {}

    def run(self, schedule: Schedule, tasks: Sequence[Task]) -> None:
        """Carry out this worker's actions of `schedule`, whose steps are `tasks`."""
        turn = self.mesh.turn
        if turn is None:
            return self._run(schedule, tasks)
        turn.acquire()
        try:
            return self._run(schedule, tasks)
        finally:
            turn.release()

    def _run(self, schedule: Schedule, tasks: Sequence[Task]) -> None:
        role = schedule.workers[self.index]
        self.spans, self.losses = [], {}
        self._updates = dict.fromkeys(role.stages, 0)
        for is_update, group in groupby(role.actions, lambda action: action.kind == "U"):
            if is_update:
                self._carry_out(schedule, list(group), tasks)
            else:
                for action in group:
                    self._carry_out(schedule, [action], tasks)

    def _carry_out(self, schedule: Schedule, actions: Sequence[Action], tasks: Sequence[Task]) -> None:
        """One action, or several updates side by side, once everything is there that it needs."""
        began = time.perf_counter()
        times = {action: self._times(action) for action in actions}
        wanted = [need for action in actions for need in needs(schedule, action, times[action])]
        clock, idle_s = self.shared.handover.wait(wanted, self.mesh.turn)
        self.mesh.clock = max(self.mesh.clock, clock)
        name, words, told = schedule.workers[self.index].name, " ".join(map(str, actions)), self.shared.told
        if told is not None:
            told(name, words, True)
        for evidence in self.shared.handover.evidence_of(wanted):
            self.p.learn(evidence)
        waited_s, queued_s, sent_bytes = self.mesh.wait_s, self.mesh.queued_s, self.mesh.sent_payload_bytes
        first = actions[0]
        if first.kind == "U":
            self._update(actions, times, tasks)
        else:
            assert first.microbatch is not None
            task = tasks[first.microbatch // schedule.microbatches]
            at = At(task.step, first.microbatch % schedule.microbatches)
            if first.kind == "F":
                version = schedule.version(first.stage, first.microbatch)
                self._forward(first, task, at, None if schedule.exact else version)
            if first.kind in "IB":
                self._input_grad(first, at)
            if first.kind in "WB":
                run(self.shared.stages[first.stage].weight_grad(self.p, at), self.mesh)
        done = [Done(left, times[action]) for action in actions for left in leaves(action)]
        self.shared.handover.finish(done, self.mesh.clock, self.p.evidence())
        if told is not None:
            told(name, words, False)
        waits, self.mesh.waits = tuple(self.mesh.waits), []
        self.spans.append(
            Span(
                name,
                words,
                began,
                time.perf_counter(),
                self.mesh.wait_s - waited_s,
                idle_s,
                waits,
                self.mesh.sent_payload_bytes - sent_bytes,
                self.mesh.queued_s - queued_s,
            )
        )

    def _times(self, action: Action) -> int:
        if action.kind != "U":
            return 1
        self._updates[action.stage] += 1
        return self._updates[action.stage]

    def _forward(self, action: Action, task: Task, at: At, version: int | None) -> None:
        rows, stage, shared = task.rows[at.microbatch], self.shared.stages[action.stage], self.shared
        given = shared.handover.take(("F", action.stage, action.microbatch)) if action.stage else None

        async def forward() -> Fixed:
            scope = f"{at.step}/features/{at.microbatch}"
            x = given if given is not None else await shared.feed.features(self.p.at(scope), rows)
            return await stage.forward(self.p, at, x, version)

        if action.stage < self.last:
            y = run(forward(), self.mesh)
            shared.handover.put(("F", action.stage + 1, action.microbatch), y)
        else:
            dy = run(self._forward_and_loss(forward(), task, at), self.mesh)
            shared.handover.put(("B", action.stage, action.microbatch), dy)

    async def _forward_and_loss(self, forward: Operation[Fixed], task: Task, at: At) -> Fixed:
        p, step, m = self.p, at.step, at.microbatch
        # The labels' one message rides in the first round of the forward pass.
        y, target = await gather(forward, self.shared.feed.labels(p.at(f"{step}/labels/{m}"), task.rows[m]))
        dy, saved = await self.shared.loss.forward_grad(p.at(f"{step}/loss/{m}"), y, target)
        if task.reveal_loss:
            value = await self.shared.loss.value(p.at(f"{step}/loss value/{m}"), saved)
            self.shared.losses.add(step, value, len(task.rows[m]))
        return dy

    def _input_grad(self, action: Action, at: At) -> None:
        dy = self.shared.handover.take(("B", action.stage, action.microbatch))
        dx = run(self.shared.stages[action.stage].input_grad(self.p, at, dy), self.mesh)
        if action.stage:
            assert dx is not None
            self.shared.handover.put(("B", action.stage - 1, action.microbatch), dx)

    def _update(self, actions: Sequence[Action], times: Mapping[Action, int], tasks: Sequence[Task]) -> None:
        updates: list[Operation[None]] = []
        for action in actions:
            task = tasks[times[action] - 1]
            stage = self.shared.stages[action.stage]
            updates.append(stage.update(self.p, task.step, task.learning_rate, task.batch_size))
            if action.stage == self.last and task.reveal_loss:
                updates.append(self._open_loss(task))
        run(gather(*updates), self.mesh)

    async def _open_loss(self, task: Task) -> None:
        """By the worker that updates the last stage: then all micro-batches of the step have been there."""
        losses = self.shared.losses
        opening = self.p.at(f"{task.step}/reveal loss").reveal(losses.total(task.step), None, loss_of_step(task.step))
        opened = await opening
        if opened is not None:  # a dealer learns nothing
            self.losses[task.step] = float(opened.item() / 2**losses.fraction_bits / task.batch_size)
