"""A step on a model of the machine: workers, cores and the line, event by event.

All parties run the same schedule in step, so one party is simulated and its peers do the same at the same time:

    cores   one worker uses one at most; workers take turns on them, or share them evenly. What is on the line takes
            its part of them first: the system that sends and receives it, and a network that is emulated on them
    line    one a party and direction; what is sent first leaves first, as in the queues of systems and routers, so that
            a small message waits behind every large one that any worker sent before it. A paced line (`link.rate`)
            has no queue: a chunk of each large message in turn, and small ones as soon as one is through
    round   over when the worker's own bytes have left the line and one latency has passed (its peers' came as late)
    pieces  a worker goes on with the next piece while the messages of others are on their way
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from mpcpipe.link.pacer import SMALL_BYTES, Pacer
from mpcpipe.plan.actions import Action, Schedule, leaves, needs, together
from mpcpipe.plan.net import Net
from mpcpipe.plan.trace import Timed, TimedTrace, TraceOf, side_by_side

SLICE_S = 1.5e-3
"""How long Linux lets a process go on at least while others wait for its core: 0.75 ms, times two on two cores."""
_NOTHING_S = 1e-12
_NOTHING_BYTES = 1e-6


@dataclass(frozen=True)
class Span:
    """Part of an action, in seconds from the start: the worker computes, or it waits for a round."""

    worker: int
    action: Action
    start_s: float
    end_s: float
    computes: bool


@dataclass(frozen=True)
class WorkerTimes:
    """What a worker does with the makespan. idle_s: it waits for another worker, or is done."""

    name: str
    compute_s: float
    wait_s: float
    idle_s: float


@dataclass(frozen=True)
class Simulation:
    """makespan_s: until the last worker is done. step_s: of one step; in the middle of a run if there are several."""

    makespan_s: float
    step_s: float
    workers: tuple[WorkerTimes, ...]
    spans: tuple[Span, ...]


class _Phase(Enum):
    """What a worker is in the middle of."""

    IDLE = "idle"
    COMPUTES = "computes"
    WAITS = "waits"


@dataclass
class _Running:
    """A worker: where it is in its list, and in the trace of its action.

    left_s: of what it computes, at full speed. before, now: pieces of the last segment and of this one whose round is
    over. count, last_count: pieces that this segment and the last one have.
    """

    index: int
    groups: list[tuple[Action, ...]]
    at: int = 0
    trace: TimedTrace = ()
    segment: int = 0
    piece: int = 0
    before: int = 0
    now: int = 0
    count: int = 1
    last_count: int = 0
    phase: _Phase = _Phase.IDLE
    left_s: float = 0.0
    since_s: float = 0.0
    compute_s: float = 0.0
    wait_s: float = 0.0

    @property
    def finished(self) -> bool:
        return self.at == len(self.groups)

    @property
    def over(self) -> bool:
        """Is all of the action computed?"""
        return self.segment == len(self.trace)

    def begin(self, trace: TimedTrace) -> None:
        """An action, from its first segment."""
        self.trace, self.segment, self.piece, self.before, self.now = trace, 0, 0, 0, 0
        self.last_count, self.count = 0, trace[0].pieces if trace else 1

    @property
    def may_go_on(self) -> bool:
        """Is the round over that the next piece of computing, or the end, needs?"""
        if not self.over and self.count == self.last_count:
            return self.before > self.piece
        return self.before == self.last_count

    def arrived(self) -> None:
        """A piece's round is over; the last segment's are first."""
        if self.before < self.last_count:
            self.before += 1
        else:
            self.now += 1

    def next_piece(self) -> None:
        """One is computed."""
        self.piece += 1
        if self.piece == self.count:
            self.segment, self.piece, self.before, self.now = self.segment + 1, 0, self.now, 0
            self.last_count, self.count = self.count, 1 if self.over else self.trace[self.segment].pieces


@dataclass
class _Message:
    """What a worker sent and has not all left yet."""

    worker: _Running
    left_bytes: float


@dataclass
class _Line:
    """What is to leave, in order. A paced one serves large messages in turn, a chunk of each, and small ones first."""

    paced: Pacer | None = None
    small: deque[_Message] = field(default_factory=deque)
    large: deque[_Message] = field(default_factory=deque)
    now: _Message | None = None

    def send(self, message: _Message) -> None:
        """Behind all others, or all small ones."""
        small = self.paced is not None and message.left_bytes <= SMALL_BYTES
        (self.small if small else self.large).append(message)
        if self.now is None:
            self._next()

    @property
    def ahead_bytes(self) -> float:
        """Until something happens on it: a message is through, or a chunk that another waits for."""
        if self.now is None:
            return math.inf
        left = self.now.left_bytes
        if self.paced is None or not (self.small or self.large):
            return left
        # chunks end where whole ones are left, so that one that went on alone is cut wherever it is
        return left % self.paced.chunk_bytes or min(left, self.paced.chunk_bytes)

    def leave(self, nbytes: float) -> _Message | None:
        """So many bytes left; the message that is through with them. `nbytes` is at most `ahead_bytes`."""
        now = self.now
        if now is None:
            return None
        ends = nbytes >= self.ahead_bytes - _NOTHING_BYTES
        now.left_bytes -= nbytes
        through = now.left_bytes <= _NOTHING_BYTES
        if through or ends:
            if not through:
                self.large.append(now)
            self._next()
        return now if through else None

    def _next(self) -> None:
        waiting = self.small or self.large
        self.now = waiting.popleft() if waiting else None


@dataclass
class _Model:
    """rate: how fast what is on the line leaves, in bytes a second. cores_beside_line: what it leaves of the cores.
    last: which piece of which worker computed last.
    """

    schedule: Schedule
    trace_of: TraceOf
    net: Net
    cores: float
    turns: bool
    now_s: float = 0.0
    line: _Line = field(default_factory=_Line)
    flying: deque[tuple[float, _Running]] = field(default_factory=deque)
    done: Counter[Action] = field(default_factory=Counter)
    spans: list[Span] = field(default_factory=list)
    updates_s: list[float] = field(default_factory=list)
    last: tuple[int, int] | None = None
    news: bool = True
    rate: float = field(init=False)
    cores_beside_line: float = field(init=False)

    def __post_init__(self) -> None:
        self.rate = self.net.leaves_per_s(self.cores)
        taken = self.rate * self.net.work_s_per_byte if self.net.work_s_per_byte else 0.0
        self.cores_beside_line = max(0.0, self.cores - taken)

    def computing(self, workers: Sequence[_Running]) -> tuple[list[_Running], float]:
        """Who computes now, and how fast each of them gets on."""
        found = [w for w in workers if w.phase is _Phase.COMPUTES]
        most = max(1, int(self.cores))
        if self.turns and len(found) > most:
            found = sorted(found, key=lambda w: (w.since_s, w.index))[:most]
        cores = self.cores if self.line.now is None else self.cores_beside_line
        speed = min(1.0, cores / max(1, len(found)))
        return (found, speed) if speed > _NOTHING_S else ([], 0.0)

    def late_s(self, compute_s: float) -> float:
        """How much of a core's time a party waits for the slowest, where more parties than cores do the same: the
        system gives a core to one for a slice, so those that share one are not done at the same time, but in turn.
        """
        parties_a_core = max(1.0, 1 / self.cores)
        return (math.ceil(parties_a_core) / parties_a_core - 1) * min(compute_s, SLICE_S)

    def ready(self, actions: Sequence[Action]) -> bool:
        return all(
            self.done[need.action] >= need.times
            for action in actions
            for need in needs(self.schedule, action, self.done[action] + 1)
        )

    def go_on(self, worker: _Running) -> bool:
        """What comes next for a worker, if its phase is over. Takes no time."""
        if worker.phase is _Phase.IDLE:
            if worker.finished or not self.ready(worker.groups[worker.at]):
                return False
            traces = [self.trace_of(action) for action in worker.groups[worker.at]]
            worker.begin(side_by_side(traces) if len(traces) > 1 else traces[0])
            self.compute(worker)
            return True
        if worker.phase is _Phase.WAITS:
            if not worker.may_go_on:
                return False
            self.note(worker, False)
            self.compute(worker)
            return True
        if worker.left_s > _NOTHING_S:
            return False
        self.note(worker, True)
        now: Timed = worker.trace[worker.segment]
        if now.is_round:
            self.line.send(_Message(worker, max(now.sent_bytes, now.received_bytes)))
        else:
            worker.arrived()
        worker.next_piece()
        self.compute(worker)
        return True

    def compute(self, worker: _Running) -> None:
        """The next piece of computing, or waiting for what it needs; after the last, the action is done."""
        worker.since_s = self.now_s
        if not worker.may_go_on:
            worker.phase = _Phase.WAITS
            return
        if not worker.over:
            compute_s = worker.trace[worker.segment].compute_s
            piece = worker.index, worker.piece
            if worker.segment and self.last != piece:
                compute_s += self.net.host_s_per_message
            self.last = piece
            worker.phase, worker.left_s = _Phase.COMPUTES, compute_s + self.late_s(compute_s)
            return
        worker.phase, self.news = _Phase.IDLE, True
        for action in worker.groups[worker.at]:
            self.done.update(leaves(action))
            if action.kind == "U":
                self.updates_s.append(self.now_s)
        worker.at += 1

    def pass_time(self, workers: Sequence[_Running]) -> bool:
        """Go on to the next thing that happens; False if nothing does any more."""
        computing, speed = self.computing(workers)
        line_bytes = self.line.ahead_bytes
        ahead_s = line_bytes / self.rate if self.line.now is not None else math.inf
        if computing:
            ahead_s = min(ahead_s, min(w.left_s for w in computing) / speed)
        if self.flying:
            ahead_s = min(ahead_s, self.flying[0][0] - self.now_s)
        if math.isinf(ahead_s):
            return False
        self.now_s += ahead_s
        for worker in computing:
            worker.left_s -= ahead_s * speed
        if self.line.now is not None:
            left = line_bytes if math.isinf(self.rate) else min(ahead_s * self.rate, line_bytes)
            if (through := self.line.leave(left)) is not None:
                self.flying.append((self.now_s + self.net.latency_s, through.worker))
        while self.flying and self.flying[0][0] <= self.now_s + _NOTHING_S:
            self.flying.popleft()[1].arrived()
        return True

    def note(self, worker: _Running, computes: bool) -> None:
        took = self.now_s - worker.since_s
        if computes:
            worker.compute_s += took
        else:
            worker.wait_s += took
        if took:
            action = worker.groups[worker.at][0]
            self.spans.append(Span(worker.index, action, worker.since_s, self.now_s, computes))
        worker.since_s = self.now_s


def simulate(schedule: Schedule, trace_of: TraceOf, net: Net, cores: float, turns: bool = True) -> Simulation:
    """Run the schedule on a party with `cores` cores (its share: may be less than one).

    trace_of gives what each action does. turns: no more workers compute at a time than there are whole cores (one at
    least), first come, first served; else all share. Workers that do the same at the same time stay in step where
    everything is shared evenly, and hide nothing from each other; taking turns is what sets them apart. The schedule
    must be a right one (`check.validate`).
    """
    line = _Line(Pacer(net.paced_bytes_per_s) if net.is_paced else None)
    model = _Model(schedule, trace_of, net, cores, turns, line=line)
    workers = [_Running(index, together(worker.actions)) for index, worker in enumerate(schedule.workers)]
    _settle(model, workers)
    while model.pass_time(workers):
        _settle(model, workers)
    assert all(w.finished for w in workers), "the schedule deadlocks; validate it first"
    total_s = model.now_s
    times = tuple(
        WorkerTimes(worker.name, w.compute_s, w.wait_s, total_s - w.compute_s - w.wait_s)
        for worker, w in zip(schedule.workers, workers, strict=True)
    )
    return Simulation(total_s, _step_s(schedule, model), times, tuple(model.spans))


def _settle(model: _Model, workers: list[_Running]) -> None:
    """Let everything happen that takes no time. Who is idle can only go on after an action is done."""
    moved = True
    while moved:
        moved, news, model.news = False, model.news, False
        for worker in workers:
            if worker.phase is not _Phase.IDLE or news:
                while model.go_on(worker):
                    moved = True
        moved = moved or model.news


def _step_s(schedule: Schedule, model: _Model) -> float:
    """The makespan of one step; of several the pace in the middle, where steps before and after compete."""
    steps, stages = schedule.steps, schedule.stages
    if steps < 4:
        return model.now_s / steps
    ends = sorted(model.updates_s)
    first, last = steps // 4, 3 * steps // 4
    return (ends[last * stages - 1] - ends[first * stages - 1]) / (last - first)
