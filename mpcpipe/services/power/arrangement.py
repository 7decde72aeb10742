"""Micro-batches, pieces, stages and clock together: the way to do a step with the least energy that is done in time.

    for each number of micro-batches and pieces:  the fastest pipeline (the planner's)
        for clocks from the highest down:         its step, with computing as slow as that   ──> joules, in time?

A later deadline is worth more than a lower clock: fewer pieces and micro-batches take longer and compute less. Among
pipelines with the same numbers of both, whose results are the same bits, the fastest takes the least energy within a
few percent, as it waits the least; among different numbers results round otherwise. So this is for before a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mpcpipe.errors import PlanError, PowerError
from mpcpipe.plan.actions import Action
from mpcpipe.plan.net import Net
from mpcpipe.plan.partition import Choice, Wish, choose
from mpcpipe.plan.simulate import Simulation, simulate
from mpcpipe.plan.stages import Cut, NodesOf
from mpcpipe.plan.trace import TimedTrace
from mpcpipe.services.power.clockplan import Curve
from mpcpipe.services.power.pace import LONGER
from mpcpipe.services.power.setting import Limits

STRIDE = 4
"""Every so many of a card's clocks are tried."""

MICROBATCHES, PIECES = (1, 2, 3, 4, 6, 8), (1, 2, 4)

MOST_SIMULATIONS = 12
"""Of the planner, for each number of micro-batches and pieces."""


@dataclass(frozen=True)
class Way:
    """A pipeline at a clock, on one GPU. full_s: a step at the highest clock; step_s, joules: at this one."""

    choice: Choice
    full_s: float
    clock_mhz: int
    step_s: float
    joules: float

    @property
    def numbers(self) -> tuple[int, int]:
        """Micro-batches and pieces: what the rounding of results depends on."""
        return self.choice.best.cut.microbatches, self.choice.best.cut.pieces


def slowed_trace(cut: Cut, action: Action, slower: float) -> TimedTrace:
    """An action's trace with its computing stretched."""
    return tuple(replace(piece, compute_s=piece.compute_s * slower) for piece in cut.trace(action))


def at_clock(choice: Choice, curve: Curve, net: Net, cores: float, clock_mhz: int) -> tuple[Simulation, float]:
    """A step with all computing as slow as the clock is, and the joules of the GPU that all workers share."""
    slower = curve.slower(clock_mhz)
    cut, schedule = choice.best.cut, choice.best.schedule
    found = simulate(schedule, lambda action: slowed_trace(cut, action, slower), net, cores)
    busy_s = min(found.step_s, sum(span.end_s - span.start_s for span in found.spans if span.computes))
    joules = busy_s * curve.busy_w(clock_mhz) + (found.step_s - busy_s) * curve.idle_w(clock_mhz)
    return found, joules


def ways(
    nodes_of: NodesOf, layers: int, batch_size: int, net: Net, cores: float, wish: Wish, curve: Curve, limits: Limits
) -> list[Way]:
    """For each number of micro-batches and pieces that the wish leaves open, the least energy in time; the cheapest
    first. In time: `limits.deadline_s`, or LONGER than the fastest of all. Errors: PowerError with the fastest possible
    for a deadline or a cap that nothing keeps; PlanError, as the planner's.
    """
    clocks = [clock for clock in curve.clocks_mhz[::-STRIDE] if clock <= curve.card.sustained_mhz]
    if limits.cap_w is not None:
        clocks = [clock for clock in clocks if curve.busy_w(clock) <= limits.cap_w]
        if not clocks:
            raise PowerError(
                f"a cap of {limits.cap_w:g} W is kept by no clock of {curve.card.title} under full load: it takes "
                f"{curve.busy_w(curve.clocks_mhz[0]):.0f} W at {curve.clocks_mhz[0]} MHz"
            )
    found = []
    for own in _wishes(wish):
        try:
            choice = choose(nodes_of, layers, batch_size, net, cores, own)
        except PlanError:
            if own == wish:
                raise
            continue  # these numbers do not fit what else is given; others may
        found.append((choice, at_clock(choice, curve, net, cores, clocks[0])))
    fastest_s = min(first.step_s for _, (first, _) in found)
    allowed_s = (1 + LONGER) * fastest_s if limits.deadline_s is None else limits.deadline_s
    if allowed_s < fastest_s:
        raise PowerError(
            f"a deadline of {allowed_s:g} s a step cannot be met: the fastest possible is {fastest_s:.4g} s, at "
            f"{clocks[0]} MHz; give a later one, or none"
        )
    cheapest = [_cheapest(choice, first, clocks, allowed_s, curve, net, cores) for choice, first in found]
    return sorted((way for way in cheapest if way is not None), key=lambda way: way.joules)


def _wishes(wish: Wish) -> Iterator[Wish]:
    """One for each number of micro-batches and pieces; the wish itself where both are given."""
    counts: Sequence[int | None] = MICROBATCHES if wish.microbatches is None else (wish.microbatches,)
    pieces: Sequence[int | None] = PIECES if wish.pieces is None else (wish.pieces,)
    for count in counts:
        for piece in pieces:
            yield replace(wish, microbatches=count, pieces=piece, max_simulations=MOST_SIMULATIONS)


def _cheapest(
    choice: Choice,
    first: tuple[Simulation, float],
    clocks: Sequence[int],
    allowed_s: float,
    curve: Curve,
    net: Net,
    cores: float,
) -> Way | None:
    """Down from the highest clock, as long as steps are in time and energy falls; None if not even that one is."""
    best: Way | None = None
    for clock in clocks:
        step, joules = first if clock == clocks[0] else at_clock(choice, curve, net, cores, clock)
        if step.step_s > allowed_s or (best is not None and joules >= best.joules):
            break
        best = Way(choice, first[0].step_s, clock, step.step_s, joules)
    return best
