"""Where to cut, how many workers for each stage, how many micro-batches and pieces, which schedule: the smallest
simulated step, where a further worker has to be worth it.

Dynamic programming proposes cuts and slots, such that the busiest worker has as little to do as possible; a bound that
no schedule can beat sorts the proposals; the simulator decides, and looks at nothing whose bound is above the best.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from mpcpipe.errors import PlanError
from mpcpipe.plan.actions import Schedule
from mpcpipe.plan.bound import Bound, Bounds
from mpcpipe.plan.check import check_shape, validate
from mpcpipe.plan.net import Net
from mpcpipe.plan.schedule import build
from mpcpipe.plan.simulate import Simulation, simulate
from mpcpipe.plan.stages import Cut, NodesOf, check_stages
from mpcpipe.plan.trace import totals

EXACT = ("sequential", "1f1b", "gpipe", "zero-bubble", "interleaved")
"""What `auto` chooses among: schedules whose result is that of the sequential run."""

ASYNC_STEPS = 8
STALE_STAGES = 3
"""Of `async` where it is left to the planner: gradients are stale by at most one step less."""
TIE = 0.02
"""Steps that differ by less than this share are the same, as the simulator is no better; then fewer workers and
micro-batches win."""

A_WORKER = 0.02
"""By this share of its computing each further worker must make a step shorter. Measured, stages without slots took 2
to 3 % a stage longer than simulated where computing was most of a step (AlexNet and VGG-16; docs/performance.md)."""


@dataclass(frozen=True)
class Wish:
    """What is given; None is for the planner to choose.

    starts: first layer of each stage. slots: workers of each stage. schedule: a name, or a schedule of one's own.
    pieces: of a micro-batch in large layers.
    max_workers: the most workers of a party.
    """

    starts: tuple[int, ...] | None = None
    slots: tuple[int, ...] | None = None
    microbatches: int | None = None
    schedule: str | Schedule | None = None
    pieces: int | None = None
    max_workers: int = 6
    max_simulations: int = 300
    loss_alone: bool = False


ANYTHING = Wish()


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to do it, and what limits it."""

    cut: Cut
    schedule: Schedule
    bound: Bound

    @property
    def effort(self) -> tuple[int, int, int, int]:
        """What it needs, for ties: workers, micro-batches, pieces, and the more unusual schedule."""
        known = EXACT.index(self.schedule.name) if self.schedule.name in EXACT else len(EXACT)
        return len(self.schedule.workers), self.cut.microbatches, self.cut.pieces, known


@dataclass(frozen=True)
class Choice:
    """The best candidate with its simulation; how many others were looked at, and the step of the sequential run."""

    best: Candidate
    simulation: Simulation
    sequential_s: float
    considered: int
    simulated: int

    def why(self) -> str:
        """One or two sentences on the choice."""
        step_s, limit = self.simulation.step_s, self.best.bound
        return (
            f"{step_s:.3g} s a step, {self.sequential_s / step_s:.2f}x as fast as one after another "
            f"({self.sequential_s:.3g} s). No schedule with {limit.in_flight} pieces in flight can be below "
            f"{limit.bound_s:.3g} s, for {limit.limited_by}; this one reaches {limit.bound_s / step_s:.0%} of that. "
            f"The best of {self.considered} ways, {self.simulated} of them simulated."
        )


def choose(nodes_of: NodesOf, layers: int, batch_size: int, net: Net, cores: float, wish: Wish = ANYTHING) -> Choice:
    """The candidate with the smallest simulated step. `cores`: this party's share of its machine.

    What cannot be had (stages that do not exist, more slots than micro-batches) is a PlanError.
    """
    if wish.starts is not None:
        check_stages(wish.starts, layers, wish.loss_alone)
    cached = cache(nodes_of)
    whole = Cut(cached, (0,), batch_size, 1)
    sequential_s = simulate(build("sequential", (1,), 1), whole.trace, net, cores).step_s
    bounds = Bounds(net, cores)
    found = [
        Candidate(cut, schedule, bounds.of(schedule, cut.trace, sequential_s))
        for cut, schedule in _candidates(cached, batch_size, net, cores, wish)
    ]
    if not found:
        raise PlanError(
            f"no pipeline fits stages {wish.starts}, slots {wish.slots}, {wish.microbatches} micro-batches and the "
            f"schedule {wish.schedule} with at most {wish.max_workers} workers; give fewer of them"
        )
    search = _Search(net, cores, wish.max_simulations)
    # Many workers have low bounds and seldom reach them: as many simulations for what needs little.
    promising, modest = sorted(found, key=lambda c: (c.bound.bound_s, c.effort)), sorted(found, key=lambda c: c.effort)
    for candidate in dict.fromkeys(itertools.chain.from_iterable(zip(promising, modest, strict=True))):
        search.look_at(candidate)
    best, simulation = search.best()
    while not isinstance(wish.schedule, Schedule):
        for cut, schedule in _near(best, cached, layers, wish):
            found.append(Candidate(cut, schedule, bounds.of(schedule, cut.trace, sequential_s)))
            search.look_at(found[-1], more=40)
        if search.best()[0] is best:
            break
        best, simulation = search.best()
    return Choice(best, simulation, sequential_s, len(found), search.simulated)


@dataclass
class _Search:
    net: Net
    cores: float
    most: int
    simulated: int = 0
    found: tuple[Candidate, Simulation] | None = None

    def best(self) -> tuple[Candidate, Simulation]:
        assert self.found is not None
        return self.found

    def look_at(self, candidate: Candidate, more: int = 0) -> None:
        """Simulate it, unless its bound says that it is no better, or there were enough of them."""
        if self.found is not None and (
            _counted(candidate, candidate.bound.bound_s) > (1 + TIE) * _counted(self.found[0], self.found[1].step_s)
            or self.simulated >= self.most + more
        ):
            return
        result = simulate(candidate.schedule, candidate.cut.trace, self.net, self.cores)
        self.simulated += 1
        if self.found is None or _better(candidate, result, *self.found):
            self.found = candidate, result


def _near(best: Candidate, nodes_of: NodesOf, layers: int, wish: Wish) -> Iterator[tuple[Cut, Schedule]]:
    """The best with another number of pieces, another schedule, or another cut."""
    cut, schedule = best.cut, best.schedule
    if schedule.name == "sequential":
        return
    if wish.schedule is None:
        for name in ("1f1b", "gpipe", "zero-bubble"):
            if name != schedule.name and _suits(name, schedule.slots, cut.pieces):
                yield cut, build(name, schedule.slots, schedule.microbatches)
    for pieces in _pieces(wish):
        if pieces != cut.pieces and _suits(schedule.name, schedule.slots, pieces):
            yield replace(cut, pieces=pieces, _cache={}), schedule
    for starts in _shifted(cut.starts, layers) if wish.starts is None else ():
        yield replace(cut, starts=starts, _cache={}), schedule


def _shifted(starts: tuple[int, ...], layers: int) -> Iterator[tuple[int, ...]]:
    """The cut with one of its starts moved by a layer."""
    for index in range(1, len(starts)):
        ends = (*starts, layers)
        for moved in (starts[index] - 1, starts[index] + 1):
            if ends[index - 1] < moved < ends[index + 1]:
                yield (*starts[:index], moved, *starts[index + 1 :])


def _counted(candidate: Candidate, step_s: float) -> float:
    """A step as long as it counts in a choice."""
    return step_s + A_WORKER * (len(candidate.schedule.workers) - 1) * candidate.bound.compute_s


def _better(a: Candidate, a_result: Simulation, b: Candidate, b_result: Simulation) -> bool:
    other_s = _counted(b, b_result.step_s)
    ratio = _counted(a, a_result.step_s) / other_s if other_s else 1.0
    if abs(ratio - 1) > TIE:
        return ratio < 1
    return a.effort < b.effort


def _candidates(
    nodes_of: NodesOf, batch_size: int, net: Net, cores: float, wish: Wish
) -> Iterator[tuple[Cut, Schedule]]:
    if isinstance(wish.schedule, Schedule):
        yield _given(nodes_of, batch_size, net, cores, wish, wish.schedule)
        return
    named = (wish.schedule,) if wish.schedule else EXACT
    made = cache(build)
    for count in _counts(batch_size, wish):
        seen = set()
        for starts, slots in _proposals(nodes_of, batch_size, count, net, cores, wish):
            if (starts, slots) in seen or (wish.microbatches is None and max(slots) > count):
                continue
            seen.add((starts, slots))
            overlap = wish.schedule != "sequential"
            cuts = [Cut(nodes_of, starts, batch_size, count, pieces, overlap) for pieces in _pieces(wish)]
            for cut, name in itertools.product(cuts, named):
                # a schedule that cannot have the slots that were asked for says so itself
                fits = _fits(name, slots) or wish.slots is not None
                if fits if wish.schedule is not None else _suits(name, slots, cut.pieces):
                    yield cut, made(name, slots, count, ASYNC_STEPS if name == "async" else 1)


def _pieces(wish: Wish) -> Sequence[int]:
    """Numbers of pieces to try. Where nothing overlaps they are of no use."""
    if wish.pieces is not None:
        return [wish.pieces]
    return [1] if wish.schedule == "sequential" else [1, 2, 3, 4]


def _given(
    nodes_of: NodesOf, batch_size: int, net: Net, cores: float, wish: Wish, schedule: Schedule
) -> tuple[Cut, Schedule]:
    """A schedule of the user's own, with the cut that is given or an even one."""
    validate(schedule)
    count = schedule.microbatches
    if wish.microbatches not in (None, count):
        raise PlanError(f"the schedule has {count} micro-batches, but microbatches = {wish.microbatches}")
    if wish.slots not in (None, schedule.slots):
        raise PlanError(f"the schedule has slots {schedule.slots}, but slots = {wish.slots}")
    costs = layer_costs(nodes_of, batch_size, count, net, cores, wish.loss_alone)
    found = cut_evenly(costs, sum(schedule.slots), max(schedule.slots), wish.starts, schedule.slots)
    if found is None:
        stages = f"stages = {list(wish.starts)}" if wish.starts else f"{len(costs)} layers"
        raise PlanError(f"the schedule has {schedule.stages} stages, which do not fit {stages}")
    return Cut(nodes_of, found[0], batch_size, count, wish.pieces or 1), schedule


def _fits(name: str, slots: tuple[int, ...]) -> bool:
    """Whether a schedule can have these slots at all."""
    if name == "sequential":
        return set(slots) == {1}
    return name != "interleaved" or len(set(slots)) == 1


def _suits(name: str, slots: tuple[int, ...], pieces: int) -> bool:
    """Whether a schedule is worth a try: where it would be the same as another it is not."""
    if name == "sequential":
        return slots == (1,) and pieces == 1
    if (sum(slots) == 1 and pieces == 1) or not _fits(name, slots):
        return False
    if name == "interleaved":
        return len(slots) > 2
    return len(slots) > 1 or name == "1f1b"


def _counts(batch_size: int, wish: Wish) -> Sequence[int]:
    """Micro-batch counts to try."""
    if wish.microbatches is not None:
        return [wish.microbatches]
    most = min(batch_size, 4 * wish.max_workers)
    least = max(wish.slots) if wish.slots else 1
    return [m for m in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32) if least <= m <= most] or [least]


def _proposals(
    nodes_of: NodesOf, batch_size: int, count: int, net: Net, cores: float, wish: Wish
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(starts, slots) worth a try."""
    if wish.starts is not None and wish.slots is not None:
        if len(wish.starts) != len(wish.slots):
            raise PlanError(f"stages = {list(wish.starts)} and slots = {list(wish.slots)} differ in number")
        check_shape(wish.slots, count)
        yield wish.starts, wish.slots
        return
    stages = len(wish.starts or wish.slots or ())
    if wish.schedule == "sequential":
        yield wish.starts or (0,), (1,) * max(1, stages)
        return
    least = max(1, stages, sum(wish.slots or ()))
    most_workers = min(wish.max_workers, STALE_STAGES) if wish.schedule == "async" else wish.max_workers
    for workers in [least] if wish.slots else range(least, max(least, most_workers) + 1):
        for scarce in (1.0, max(1.0, workers / cores)):
            costs = layer_costs(nodes_of, batch_size, count, net, cores, wish.loss_alone, scarce)
            most = tuple(wish.slots) if wish.slots else None
            for limit in (count, 1):
                if (found := cut_evenly(costs, workers, limit, wish.starts, most)) is not None:
                    yield found
        if wish.starts is None and wish.slots is None and workers <= count:
            yield (0,), (workers,)


def layer_costs(
    nodes_of: NodesOf,
    batch_size: int,
    count: int,
    net: Net,
    cores: float,
    loss_alone: bool,
    scarce: float = 1.0,
) -> list[float]:
    """Seconds of each layer in a step by itself, computing counted `scarce` times. The ends join their neighbours."""
    rows, weight, rate = math.ceil(batch_size / count), scarce / min(1.0, cores), net.leaves_per_s(cores)
    costs = []
    for node in nodes_of(rows):
        seconds = 0.0
        for direction, trace in node.traces.items():
            sums = totals(trace)
            one_s = weight * sums.compute_s + sums.sent_bytes / rate + sums.rounds * net.latency_s
            seconds += one_s if direction == "U" else count * one_s
        costs.append(seconds)
    features, *own, loss = costs
    own[0] += features
    if loss_alone:
        return [*own, loss]
    own[-1] += loss
    return own


def cut_evenly(
    costs: Sequence[float],
    workers: int,
    most_slots: int,
    starts: tuple[int, ...] | None = None,
    slots: tuple[int, ...] | None = None,
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(first layer, slots) of each stage, so that `workers` are all used and the largest cost / slots is smallest.

    starts, slots: given ones. Equal ones have more stages rather than more slots. None if there is no way.
    """
    sums = [0.0]
    for one in costs:
        sums.append(sums[-1] + one)
    layers = len(costs)

    @cache
    def best(start: int, left: int, stage: int) -> tuple[float, int, tuple[tuple[int, int], ...]]:
        """Largest cost, minus the stages, and the (first layer, slots) of the stages from layer `start` on."""
        if starts is not None and stage < len(starts) and start != starts[stage]:
            return math.inf, 0, ()
        if start == layers:
            complete = left == 0 and (slots is None or stage == len(slots))
            return (0.0, 0, ()) if complete else (math.inf, 0, ())
        if left < 1 or (slots is not None and stage >= len(slots)):
            return math.inf, 0, ()
        found: tuple[float, int, tuple[tuple[int, int], ...]] = (math.inf, 0, ())
        if starts is None:
            ends: Sequence[int] = range(start + 1, layers + 1)
        else:
            ends = [starts[stage + 1] if stage + 1 < len(starts) else layers]
        for own in range(1, min(left, most_slots) + 1) if slots is None else [slots[stage]]:
            for end in ends if own <= left else ():
                rest = best(end, left - own, stage + 1)
                largest = max((sums[end] - sums[start]) / own, rest[0])
                found = min(found, (largest, rest[1] - 1, ((start, own), *rest[2])))
        return found

    largest, _, stages = best(0, workers, 0)
    if math.isinf(largest) or not stages:
        return None
    return tuple(first for first, _ in stages), tuple(own for _, own in stages)
