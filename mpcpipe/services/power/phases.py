"""Clocks for phases of a step: each action has its own, and a GPU on which none runs rests.

    worker 0   |  0F0 at 1200  |  0F1 at 1200  |          rest          |  0B0 at 900 ...
                set at the boundary                set at the boundary

A GPU has the highest clock that an action on it asks for: nothing gets slower than planned. A clock that rises is late,
which costs the beginning of the action: that is part of the plan, and phases shorter than ten changes get no clock.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from mpcpipe.services.power.clockplan import LEAST_PHASE_S, Curve, clocks_of_actions, fastest_s
from mpcpipe.services.power.stepgraph import Part, ends_s

CHANGES = 10
"""A phase is so many times as long as a change of clocks."""

MOST_PARTS = 80
"""Larger graphs keep one clock: the frontier takes too long."""

TRIES = 3


@dataclass(frozen=True)
class PhasePlan:
    """clocks_mhz: by the name of the part; rest_mhz: where none runs. joules, seconds: of a step, by the model."""

    clocks_mhz: Mapping[str, int]
    rest_mhz: int
    joules: float
    seconds: float


class Running:
    """Which actions run on a GPU now; told by the workers' threads, asked by the service's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: dict[str, str] = {}

    def begins(self, worker: str, action: str) -> None:
        """A worker's action begins to work."""
        with self._lock:
            self._now[worker] = f"{worker} {action}"

    def ends(self, worker: str) -> None:
        """It has ended."""
        with self._lock:
            self._now.pop(worker, None)

    def clock_mhz(self, plan: PhasePlan) -> int:
        """The clock for what runs; the highest of the plan for what the plan does not know."""
        with self._lock:
            names = list(self._now.values())
        unknown = max(plan.clocks_mhz.values(), default=plan.rest_mhz)
        return max((plan.clocks_mhz.get(name, unknown) for name in names), default=plan.rest_mhz)


def plan_phases(
    parts: Sequence[Part],
    curve: Curve,
    gpus: Sequence[int],
    one_mhz: Mapping[int, int],
    slack_s: float,
    change_s: float,
    step_s: float,
) -> PhasePlan | None:
    """The cheaper one, by the model, of two plans that take slack_s more at most than one_mhz, by GPU, for everything;
    None if neither does, or no action is long enough.

    gpus: of each worker. change_s: until a clock is in force. step_s: what energy is counted over. The plans: one_mhz
    for all actions, with rests between them; and from the frontier a clock for each action, no higher than one_mhz, for
    what is known to be on time may only get slower where there is slack. Short actions keep one_mhz.
    """
    least_s = max(LEAST_PHASE_S, CHANGES * change_s)
    if len(parts) > MOST_PARTS or not any(p.compute_s > 0 and p.compute_s + p.fixed_s >= least_s for p in parts):
        return None
    same = {part.name: one_mhz[gpus[part.worker]] for part in parts}
    at_one = [replace(part, compute_s=part.compute_s * curve.slower(same[part.name])) for part in parts]
    base_s = fastest_s(at_one)
    target_s = base_s + slack_s
    short = {p.name for p in parts if p.compute_s + p.fixed_s < least_s}
    found = [_weighed(parts, curve, gpus, same, change_s, step_s)]
    allowed_s = target_s
    for _ in range(TRIES):  # the frontier knows nothing of changes: what they cost is taken off its time
        clocks = clocks_of_actions(parts, curve, max(base_s, allowed_s), same)
        clocks |= {name: same[name] for name in short}
        found.append(_weighed(parts, curve, gpus, clocks, change_s, step_s))
        if found[-1].seconds <= target_s:
            break
        allowed_s -= found[-1].seconds - target_s
    return min((plan for plan in found if plan.seconds <= target_s), key=lambda plan: plan.joules, default=None)


def _weighed(
    parts: Sequence[Part],
    curve: Curve,
    gpus: Sequence[int],
    clocks: Mapping[str, int],
    change_s: float,
    step_s: float,
) -> PhasePlan:
    """Energy and length of a plan: what runs when, and at which clock each GPU is meanwhile."""
    rest = curve.clocks_mhz[0]
    late = with_changes(parts, curve, clocks, change_s)
    ends = ends_s(late, lambda worker: 1.0)
    spans: dict[int, list[tuple[float, float, int, float]]] = {gpu: [] for gpu in gpus}
    for at, part in enumerate(late):
        seconds = part.compute_s + part.fixed_s
        if seconds > 0:
            clock = clocks[part.name]
            spans[gpus[part.worker]].append((ends[at] - seconds, ends[at], clock, part.compute_s / seconds))
    seconds = max(ends.values(), default=0.0)
    joules = sum(_energy_j(own, curve, rest, max(step_s, seconds)) for own in spans.values())
    return PhasePlan(dict(clocks), rest, joules, seconds)


def with_changes(parts: Sequence[Part], curve: Curve, clocks: Mapping[str, int], change_s: float) -> list[Part]:
    """The parts as long as they are at these clocks, with what a rise to them costs at their beginning: from the clock
    of the worker's part before, or from the rest's after a pause."""
    found = [replace(part, compute_s=part.compute_s * curve.slower(clocks[part.name])) for part in parts]
    ends = ends_s(found, lambda worker: 1.0)
    last: dict[int, tuple[float, int]] = {}
    for at in sorted(range(len(parts)), key=lambda at: ends[at]):
        part, clock = found[at], clocks[parts[at].name]
        begin_s = ends[at] - part.compute_s - part.fixed_s
        ended_s, before = last.get(part.worker, (float("-inf"), 0))
        before = before if begin_s - ended_s < 1e-9 else curve.clocks_mhz[0]
        lost_s = change_s * max(0.0, 1.0 - before / clock)
        found[at] = replace(part, compute_s=part.compute_s + min(lost_s, part.compute_s))
        last[part.worker] = ends[at], clock
    return found


def _energy_j(spans: Sequence[tuple[float, float, int, float]], curve: Curve, rest_mhz: int, step_s: float) -> float:
    """Of a GPU. spans: (begin, end, clock, share of it that computes)."""
    edges = sorted({0.0, step_s, *(t for begin, end, _, _ in spans for t in (begin, end))})
    joules = 0.0
    for begin, end in pairwise(edges):
        own = [span for span in spans if span[0] < end - 1e-12 and span[1] > begin + 1e-12]
        clock = max((span[2] for span in own), default=rest_mhz)
        busy = min(1.0, sum(span[3] for span in own))
        joules += (end - begin) * (curve.idle_w(clock) + busy * (curve.busy_w(clock) - curve.idle_w(clock)))
    return joules
