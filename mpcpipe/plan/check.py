"""Is a schedule right? Every micro-batch once, in order and in its own slot, no deadlock; and how much it keeps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mpcpipe.errors import PlanError
from mpcpipe.plan.actions import KINDS, Action, Done, Schedule, leaves, needs, table


@dataclass(frozen=True)
class Checked:
    """A right schedule's memory: for each worker, the most micro-batches (times stages) whose activations it keeps."""

    live: tuple[int, ...]


def check_shape(slots: tuple[int, ...], microbatches: int, steps: int = 1) -> None:
    """Numbers that make no pipeline are a PlanError."""
    if not slots:
        raise PlanError("a pipeline needs at least one stage")
    if microbatches < 1 or steps < 1:
        raise PlanError(f"a pipeline needs at least one micro-batch and step, not {microbatches} and {steps}")
    for stage, count in enumerate(slots):
        if count < 1:
            raise PlanError(f"stage {stage} has {count} slots; it needs at least one")
        if count > microbatches:
            raise PlanError(
                f"stage {stage} has {count} slots for {microbatches} micro-batches: {count - microbatches} would have "
                f"nothing to do; use at most {microbatches} slots or at least {count} micro-batches"
            )


def validate(schedule: Schedule, max_live: int | None = None) -> Checked:
    """Raises a PlanError that shows the schedule with the wrong cell marked; returns what the schedule keeps alive.

    max_live: the most micro-batches (times stages) that a worker may keep.
    """
    check_shape(schedule.slots, schedule.microbatches, schedule.steps)
    if schedule.lags and len(schedule.lags) != schedule.stages:
        raise PlanError(f"the schedule has {schedule.stages} stages, but lags of {len(schedule.lags)}")
    _check_workers(schedule)
    for index in range(len(schedule.workers)):
        _check_list(schedule, index)
    _check_progress(schedule)
    return Checked(tuple(_live(schedule, index, max_live) for index in range(len(schedule.workers))))


def _wrong(schedule: Schedule, worker: int, position: int, why: str) -> PlanError:
    name, actions = schedule.workers[worker].name, schedule.workers[worker].actions
    at = f"at {actions[position]} (action {position})" if position < len(actions) else "at its end"
    shown = table(schedule, (worker, position))
    return PlanError(f"schedule {schedule.name!r}, worker {name}, {at}: {why}\n{shown}")


def _check_workers(schedule: Schedule) -> None:
    found = Counter((stage, worker.slot) for worker in schedule.workers for stage in worker.stages)
    wanted = {(stage, slot) for stage, count in enumerate(schedule.slots) for slot in range(count)}
    for stage, slot in [*sorted(set(found) - wanted), *sorted(wanted)]:
        count = found[stage, slot]
        if (stage, slot) not in wanted:
            raise PlanError(
                f"schedule {schedule.name!r} has a worker for stage {stage}, slot {slot}; there are {schedule.stages} "
                f"stages with {' '.join(map(str, schedule.slots))} slots\n{table(schedule)}"
            )
        if count != 1:
            how = "no worker" if not count else f"{count} workers"
            raise PlanError(f"schedule {schedule.name!r} has {how} for stage {stage}, slot {slot}\n{table(schedule)}")


def _check_list(schedule: Schedule, index: int) -> None:
    """Each of the worker's own actions once and in order, and no others."""
    worker = schedule.workers[index]
    total = schedule.microbatches * schedule.steps
    seen: Counter[Action] = Counter()
    for position, action in enumerate(worker.actions):
        why = None
        if action.kind not in KINDS:
            why = f"{action.kind!r} is no kind of action; there are {', '.join(KINDS)}"
        elif action.stage not in worker.stages:
            why = f"stage {action.stage} is not this worker's"
        elif action.microbatch is None:
            own = range(seen[action] * schedule.microbatches, (seen[action] + 1) * schedule.microbatches)
            late = [m for m in own if _mine(schedule, action.stage, worker.slot, m)]
            missing = next((m for m in late if not seen[Action(action.stage, "W", m)]), None)
            if worker.slot:
                why = "a stage's weights are updated by its slot 0, once a step"
            elif seen[action] == schedule.steps:
                why = f"the stage is updated more than {schedule.steps} times"
            elif missing is not None:
                why = f"the weight gradients of micro-batch {missing}, which belong to this update, come later or never"
        elif action.microbatch >= total:
            why = f"there are only {total} micro-batches, from 0"
        elif not _mine(schedule, action.stage, worker.slot, action.microbatch):
            slots = schedule.slots[action.stage]
            why = f"micro-batch {action.microbatch} is for slot {action.microbatch % slots} of {slots}"
        elif any(seen[left] for left in leaves(action)):
            why = "this was done before"
        else:
            before = {"F": None, "W": "I"}.get(action.kind, "F")
            if before is not None and not seen[Action(action.stage, before, action.microbatch)]:
                why = f"{Action(action.stage, before, action.microbatch)} ({KINDS[before]}) must come first"
        if why is not None:
            raise _wrong(schedule, index, position, why)
        seen.update(leaves(action))
    for stage in worker.stages:
        for m in range(total):
            for kind in "FIW" if _mine(schedule, stage, worker.slot, m) else "":
                if not seen[Action(stage, kind, m)]:
                    why = f"{Action(stage, kind, m)} ({KINDS[kind]}) is missing"
                    raise _wrong(schedule, index, len(worker.actions), why)
        if worker.slot == 0 and seen[Action(stage, "U")] != schedule.steps:
            why = f"{seen[Action(stage, 'U')]} updates of stage {stage} for {schedule.steps} steps"
            raise _wrong(schedule, index, len(worker.actions), why)


def _mine(schedule: Schedule, stage: int, slot: int, microbatch: int) -> bool:
    return microbatch % schedule.slots[stage] == slot


def _check_progress(schedule: Schedule) -> None:
    """Let every worker do what it can, until all have done all, or none can go on."""
    done: Counter[Action] = Counter()
    at = [0] * len(schedule.workers)
    moved = True
    while moved:
        moved = False
        for index, worker in enumerate(schedule.workers):
            while at[index] < len(worker.actions) and _missing(schedule, worker.actions[at[index]], done) is None:
                done.update(leaves(worker.actions[at[index]]))
                at[index] += 1
                moved = True
    for index, worker in enumerate(schedule.workers):
        if at[index] < len(worker.actions):
            missing = _missing(schedule, worker.actions[at[index]], done)
            assert missing is not None
            what = _named(schedule, missing)
            raise _wrong(schedule, index, at[index], f"deadlock: it waits for {what}, and no worker can go on")


def _missing(schedule: Schedule, action: Action, done: Counter[Action]) -> Done | None:
    found = needs(schedule, action, done[action] + 1)
    return next((need for need in found if done[need.action] < need.times), None)


def _named(schedule: Schedule, need: Done) -> str:
    stage, microbatch = need.action.stage, need.action.microbatch
    slot = 0 if microbatch is None else microbatch % schedule.slots[stage]
    which = f"update {need.times} of stage {stage}" if microbatch is None else str(need.action)
    return f"{which} of worker {schedule.worker(stage, slot).name}"


def _live(schedule: Schedule, index: int, most: int | None) -> int:
    live = peak = 0
    for position, action in enumerate(schedule.workers[index].actions):
        live += {"F": 1, "B": -1, "W": -1}.get(action.kind, 0)
        peak = max(peak, live)
        if most is not None and live > most:
            raise _wrong(schedule, index, position, f"{live} micro-batches kept at once; the memory is for {most}")
    return peak
