"""Actions of workers, and schedules as lists of them, with a text form.

    2F0   stage 2, forward, micro-batch 0
    2B0   its gradients: of the stage's input and of its weights
    2I0   the gradient of the input alone        2W0   the gradients of the weights alone
    2U    new weights of stage 2

A schedule file has a line that says what it is for, then a line for each worker, its stages and slot before the bar.
A worker that owns several stages joins them by `+`. `#` starts a comment.

    schedule 1f1b: slots 1 1, micro-batches 2, steps 1
    0.0   | 0F0 0F1 0B0 0B1 0U
    1.0   | 1F0 1B0 1F1 1B1 1U

What an action waits for besides its own worker's earlier actions: see `needs`. Consecutive updates of one worker are
carried out side by side, in the rounds of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mpcpipe.errors import PlanError

KINDS = {
    "F": "forward",
    "B": "gradients of input and weights",
    "I": "gradient of the input",
    "W": "gradients of the weights",
    "U": "update",
}
_ACTION = re.compile(r"(\d+)(?:([FBIW])(\d+)|U)")
_HEAD = re.compile(
    r"schedule ([\w-]+): slots ((?:\d+ )*\d+), micro-batches (\d+), steps (\d+)(?:, lags ((?:\d+ )*\d+))?"
)
_WORKER = re.compile(r"(\d+(?:\+\d+)*)\.(\d+)\s*\|(.*)")


@dataclass(frozen=True, order=True)
class Action:
    """What a worker does at one point: `kind` is one of F, B, I, W, U. An update has no micro-batch."""

    stage: int
    kind: str
    microbatch: int | None = None

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{'' if self.microbatch is None else self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """The inverse of `str`. A text that is no action is a PlanError."""
        found = _ACTION.fullmatch(text)
        if found is None:
            raise PlanError(
                f"{text!r} is no action; write 2F0 (forward), 2B0 (gradients), 2I0 (of the input), 2W0 (of the "
                f"weights) or 2U (update): stage, letter, micro-batch"
            )
        stage, kind, microbatch = found.groups()
        return cls(int(stage), "U") if kind is None else cls(int(stage), kind, int(microbatch))


@dataclass(frozen=True)
class Worker:
    """One worker of a party: the stages it owns (rising), which of their slots it is, and its actions in order."""

    stages: tuple[int, ...]
    slot: int
    actions: tuple[Action, ...]

    @property
    def name(self) -> str:
        """`2.0`: stage 2, slot 0; `0+2.0`: it owns two stages."""
        return f"{'+'.join(map(str, self.stages))}.{self.slot}"


@dataclass(frozen=True)
class Schedule:
    """What every worker does, in order.

    slots: workers of each stage; micro-batch m is for slot m % slots. microbatches: of one step. steps: how many steps
    the lists hold; micro-batches are numbered through, so that m belongs to step m // microbatches. lags: for each
    stage, by how many micro-batches its weights may be behind (0 in an exact schedule).
    """

    name: str
    slots: tuple[int, ...]
    microbatches: int
    workers: tuple[Worker, ...]
    steps: int = 1
    lags: tuple[int, ...] = ()

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return len(self.slots)

    @property
    def exact(self) -> bool:
        """Do all forward passes of a step see the weights that the step before left?"""
        return not any(self.lags)

    def version(self, stage: int, microbatch: int) -> int:
        """How many updates the weights have had that a micro-batch sees in `stage`: exactly so many, at all parties."""
        lag = self.lags[stage] if self.lags else 0
        return max(0, microbatch - lag) // self.microbatches

    @property
    def staleness(self) -> int:
        """By how many steps the oldest weights are behind those of an exact schedule."""
        return max((-(-lag // self.microbatches) for lag in self.lags), default=0)

    def worker(self, stage: int, slot: int) -> Worker:
        """The worker of a stage and slot. A PlanError if there is none."""
        for worker in self.workers:
            if stage in worker.stages and slot == worker.slot:
                return worker
        raise PlanError(f"the schedule {self.name!r} has no worker for stage {stage}, slot {slot}")

    def __str__(self) -> str:
        return dumps(self)


@dataclass(frozen=True)
class Done:
    """That an action has been carried out; for updates, how many times."""

    action: Action
    times: int = 1


def needs(schedule: Schedule, action: Action, times: int = 1) -> Iterator[Done]:
    """What must have been carried out, by whichever worker, before `action` (its `times`-th time) can start."""
    stage, microbatch = action.stage, action.microbatch
    if microbatch is None:
        first = (times - 1) * schedule.microbatches
        for m in range(first, first + schedule.microbatches):
            yield Done(Action(stage, "W", m))
        return
    if action.kind == "F":
        if stage:
            yield Done(Action(stage - 1, "F", microbatch))
        if version := schedule.version(stage, microbatch):
            yield Done(Action(stage, "U"), version)
        return
    yield Done(Action(stage, "I" if action.kind == "W" else "F", microbatch))
    if action.kind != "W" and stage + 1 < schedule.stages:
        yield Done(Action(stage + 1, "I", microbatch))


def leaves(action: Action) -> tuple[Action, ...]:
    """What counts as carried out after `action`: B is I and W at once."""
    if action.kind == "B":
        return Action(action.stage, "I", action.microbatch), Action(action.stage, "W", action.microbatch)
    return (action,)


def table(schedule: Schedule, here: tuple[int, int] | None = None) -> str:
    """A row for each worker, a column for each of its actions; the cell `here` (worker, position) is marked."""
    width = max((len(str(a)) for worker in schedule.workers for a in worker.actions), default=2)
    names = max((len(worker.name) for worker in schedule.workers), default=1)
    rows = []
    for index, worker in enumerate(schedule.workers):
        cells = [str(action).ljust(width) for action in worker.actions]
        if here is not None and index == here[0]:
            at = min(here[1], len(cells))
            cells[at : at + 1] = [f"{cells[at].strip() if at < len(cells) else '(end)'} <-- here"]
        rows.append(f"{worker.name.ljust(names)} | {' '.join(cells)}".rstrip())
    return "\n".join(rows)


def dumps(schedule: Schedule) -> str:
    """The text form of a schedule."""
    head = (
        f"schedule {schedule.name}: slots {' '.join(map(str, schedule.slots))}, "
        f"micro-batches {schedule.microbatches}, steps {schedule.steps}"
    )
    if not schedule.exact:
        head += f", lags {' '.join(map(str, schedule.lags))}"
    return f"{head}\n{table(schedule)}\n"


def loads(text: str) -> Schedule:
    """The inverse of `dumps`. What cannot be read is a PlanError with the line; `check.validate` does the rest."""
    head, workers = None, []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        if head is None:
            head = _HEAD.fullmatch(line)
            if head is None:
                raise PlanError(
                    f"line {number} of the schedule is {line!r}; it must begin with a line such as "
                    f"'schedule mine: slots 1 1, micro-batches 4, steps 1'"
                )
            continue
        found = _WORKER.fullmatch(line)
        if found is None:
            raise PlanError(
                f"line {number} of the schedule is {line!r}; a worker's line is 'stage.slot | actions', such as "
                f"'0.0 | 0F0 0B0 0U'"
            )
        try:
            actions = tuple(Action.parse(word) for word in found[3].split())
        except PlanError as error:
            raise PlanError(f"line {number} of the schedule: {error}") from error
        workers.append(Worker(_numbers(found[1].split("+")), int(found[2]), actions))
    if head is None:
        raise PlanError("the schedule is empty")
    lags = _numbers(head[5].split()) if head[5] else ()
    return Schedule(head[1], _numbers(head[2].split()), int(head[3]), tuple(workers), int(head[4]), lags)


def _numbers(words: Sequence[str]) -> tuple[int, ...]:
    return tuple(int(word) for word in words)


def together(actions: Sequence[Action]) -> list[tuple[Action, ...]]:
    """One action at a time, but neighbouring updates of different stages together."""
    groups: list[tuple[Action, ...]] = []
    for action in actions:
        if action.kind == "U" and groups and groups[-1][0].kind == "U" and action not in groups[-1]:
            groups[-1] += (action,)
        else:
            groups.append((action,))
    return groups
