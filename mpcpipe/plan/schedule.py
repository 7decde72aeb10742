"""Schedules, one pure function each: (slots of each stage, micro-batches) -> what every worker does, in order.

One slot a stage, four micro-batches; time runs to the right, a dot is a wait:

    gpipe    0  F0 F1 F2 F3 .  .  B0 B1 B2 B3 U       1f1b    0  F0 F1 .  B0 F2 B1 F3 B2 .  B3 U
             1  .  F0 F1 F2 F3 B0 B1 B2 B3 U                  1  .  F0 B0 F1 B1 F2 B2 F3 B3 U

`SCHEDULES` has them by name. All but `async` are exact: the same result as `sequential`, bit for bit.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

from mpcpipe.errors import PlanError
from mpcpipe.plan.actions import Action, Schedule, Worker, leaves, needs
from mpcpipe.plan.check import check_shape

Slots = tuple[int, ...]


def sequential(slots: Slots, microbatches: int) -> Schedule:
    """The baseline: one worker owns all stages, one micro-batch after another."""
    if set(slots) != {1}:
        raise PlanError(f"sequential has one worker; slots {' '.join(map(str, slots))} need another schedule")
    stages = range(len(slots))
    actions: list[Action] = []
    for m in range(microbatches):
        actions += [Action(s, "F", m) for s in stages]
        actions += [Action(s, "B", m) for s in reversed(stages)]
    actions += [Action(s, "U") for s in stages]
    return Schedule("sequential", slots, microbatches, (Worker(tuple(stages), 0, tuple(actions)),))


def gpipe(slots: Slots, microbatches: int) -> Schedule:
    """All forwards, all backwards. Source: Huang et al., NeurIPS 2019."""

    def actions(stage: int, own: Sequence[int]) -> list[Action]:
        return [Action(stage, kind, m) for kind in "FB" for m in own]

    return _by_stage("gpipe", slots, microbatches, actions)


def one_f_one_b(slots: Slots, microbatches: int) -> Schedule:
    """As many forwards ahead as keep the later stages busy, then one forward, one backward in turn.

    Source: Narayanan et al., SOSP 2019 (PipeDream), with a flush after every step.
    """

    def actions(stage: int, own: Sequence[int]) -> list[Action]:
        return _alternate(stage, own, ahead(slots, stage))

    return _by_stage("1f1b", slots, microbatches, actions)


def interleaved(slots: Slots, microbatches: int) -> Schedule:
    """Each worker owns stages that are far apart: stage s and s + half of them. Needs the same slots everywhere.

    At most as many micro-batches are under way as there are stages; gradients go first, then the forward that is
    furthest. Source: Narayanan et al., SC 2021 (the idea of several chunks a worker).
    """
    stages, each = len(slots), slots[0]
    if set(slots) != {each}:
        raise PlanError(f"interleaved needs the same number of slots for all stages, not {' '.join(map(str, slots))}")
    owners = max(2, (stages + 1) // 2) if stages > 1 else 1
    idle = [Worker(tuple(range(r, stages, owners)), slot, ()) for r in range(owners) for slot in range(each)]
    played = _play(Schedule("interleaved", slots, microbatches, tuple(idle)), stages * each)
    ends = [tuple(Action(s, "U") for s in w.stages) if w.slot == 0 else () for w in idle]
    workers = [Worker(w.stages, w.slot, played[i] + ends[i]) for i, w in enumerate(idle)]
    return Schedule("interleaved", slots, microbatches, tuple(workers))


def _play(schedule: Schedule, most: int) -> list[tuple[Action, ...]]:
    """Every tick, each worker does what is ready: gradients first, then the furthest forward.

    At most `most` micro-batches are under way, so whatever has been started can always go on.
    """
    lists: list[list[Action]] = [[] for _ in schedule.workers]
    done: set[Action] = set()

    def under_way() -> int:
        begun = sum(a.stage == 0 and a.kind == "F" for mine in lists for a in mine)
        return begun - sum(a.stage == 0 and a.kind == "B" for mine in lists for a in mine)

    def ready(worker: Worker) -> Action | None:
        for kind, order in (("B", worker.stages), ("F", worker.stages[::-1])):
            for stage in order:
                for m in range(worker.slot, schedule.microbatches, schedule.slots[stage]):
                    action = Action(stage, kind, m)
                    waits = done.intersection(leaves(action)) or any(
                        need.action not in done for need in needs(schedule, action)
                    )
                    if not waits and (kind == "B" or stage or under_way() < most):
                        return action
        return None

    while True:
        tick = []
        for worker, mine in zip(schedule.workers, lists, strict=True):
            if (action := ready(worker)) is not None:
                mine.append(action)
                tick.append(action)
        if not tick:
            return [tuple(mine) for mine in lists]
        for action in tick:
            done.update(leaves(action))


def zero_bubble(slots: Slots, microbatches: int) -> Schedule:
    """1f1b with the gradients split: that of the input at once, those of the weights where there would be a gap.

    No stage keeps more micro-batches than the first. Source: Qi et al., ICLR 2024 (ZB-H1).
    """
    most = ahead(slots, 0)

    def actions(stage: int, own: Sequence[int]) -> list[Action]:
        first = ahead(slots, stage)
        late = max(0, most - first)
        out: list[Action] = []
        for action in _alternate(stage, own, first):
            if action.kind == "F":
                out.append(action)
                continue
            out.append(Action(stage, "I", action.microbatch))
            count = sum(a.kind == "I" for a in out)
            if count > late:
                out.append(Action(stage, "W", own[count - 1 - late]))
        return out + [Action(stage, "W", m) for m in own[max(0, len(own) - late) :]]

    return _by_stage("zero-bubble", slots, microbatches, actions)


def async_(slots: Slots, microbatches: int, steps: int = 1) -> Schedule:
    """1f1b through all steps without a flush: forwards of the next steps start before a step's update.

    Every micro-batch sees weights of a version that the schedule knows (`Schedule.version`), stale by at most
    stages - 1 steps, and its gradients are those of that version. Source: Narayanan et al., SOSP 2019 (PipeDream).
    """
    last = (len(slots) - 1) * microbatches
    early = [max(0, min(ahead(slots, s), (last + 1) // k - 1)) for s, k in enumerate(slots)]

    def actions(stage: int, own: Sequence[int]) -> list[Action]:
        return _alternate(stage, own, early[stage])

    lags = tuple(min(k * early[s] + k - 1, last) for s, k in enumerate(slots))
    return _by_stage("async", slots, microbatches, actions, steps, lags if any(lags) else ())


SCHEDULES: dict[str, Callable[[Slots, int], Schedule]] = {
    "sequential": sequential,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zero-bubble": zero_bubble,
    "async": async_,
}


def build(name: str, slots: Sequence[int], microbatches: int, steps: int = 1) -> Schedule:
    """The schedule called `name`. `steps` is for async; all others are one step long, and run again for each.

    A wrong name, more slots than micro-batches and slots that the schedule cannot use are a PlanError.
    """
    if name not in SCHEDULES:
        near = difflib.get_close_matches(name, SCHEDULES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        raise PlanError(f"there is no schedule {name!r}{hint} there are {', '.join(SCHEDULES)}")
    slots = tuple(slots)
    check_shape(slots, microbatches, steps)
    return async_(slots, microbatches, steps) if name == "async" else SCHEDULES[name](slots, microbatches)


def ahead(slots: Slots, stage: int) -> int:
    """Forwards that a worker of `stage` does before its first backward, so that every later worker has one to do."""
    return -(-sum(slots[stage:]) // slots[stage]) - 1


def _alternate(stage: int, own: Sequence[int], first: int) -> list[Action]:
    out = [Action(stage, "F", m) for m in own[:first]]
    for index, m in enumerate(own):
        out += [Action(stage, "F", n) for n in own[first + index : first + index + 1]]
        out.append(Action(stage, "B", m))
    return out


def _by_stage(
    name: str,
    slots: Slots,
    microbatches: int,
    actions: Callable[[int, Sequence[int]], list[Action]],
    steps: int = 1,
    lags: Slots = (),
) -> Schedule:
    """A worker for each stage and slot. Slot 0 updates, after its last gradient of each step."""
    workers = []
    for stage, count in enumerate(slots):
        for slot in range(count):
            own = range(slot, microbatches * steps, count)
            mine = actions(stage, own)
            for step in reversed(range(steps)) if slot == 0 else ():
                ends = [m for m in own if m < (step + 1) * microbatches]
                at = max(i for i, a in enumerate(mine) if a.kind in "BW" and a.microbatch in ends)
                mine.insert(at + 1, Action(stage, "U"))
            workers.append(Worker((stage,), slot, tuple(mine)))
    return Schedule(name, slots, microbatches, tuple(workers), steps, lags)
