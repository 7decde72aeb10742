"""Which clocks a step can do with: one for each GPU and step where actions are short, one for each action where not.

A clock takes tens of milliseconds to change, so an action has a clock of its own only if all actions are longer than
`LEAST_PHASE_S`; otherwise a GPU keeps one clock for the whole step, the slowest that leaves the step's time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mpcpipe.services.power import model
from mpcpipe.services.power.cards import Card
from mpcpipe.services.power.frontier import Choice, Frontier
from mpcpipe.services.power.stepgraph import Part, ends_s, longest_s, nodes_of

LEAST_PHASE_S = 0.1
"""Shorter phases have no clock of their own."""

LOOK = 4
"""So many steps down are tried where the first ones make the step too long: its length does not rise evenly, since
workers meet on the line in another order."""

UNITS = 250
"""How finely a step is cut for the frontier."""


@dataclass(frozen=True)
class Curve:
    """A card at one memory clock. clocks_mhz: rising, that may be chosen. stretch: how much of computing goes with the
    clock; 1 is all of it, which promises no slack that is not there."""

    card: Card
    memory_clock_mhz: int
    clocks_mhz: tuple[int, ...]
    stretch: float = 1.0
    _known: dict[int, tuple[float, float]] = field(default_factory=dict, compare=False, repr=False)

    def slower(self, clock_mhz: int) -> float:
        """How many times as long computing takes as at the highest clock."""
        highest = min(self.clocks_mhz[-1], self.card.sustained_mhz)
        return 1.0 - self.stretch + self.stretch * highest / min(clock_mhz, highest)

    def busy_w(self, clock_mhz: int) -> float:
        """Power while it computes."""
        return self._powers(clock_mhz)[0]

    def idle_w(self, clock_mhz: int) -> float:
        """Power while it waits at this clock."""
        return self._powers(clock_mhz)[1]

    def _powers(self, clock_mhz: int) -> tuple[float, float]:
        if clock_mhz not in self._known:  # searches ask the same again and again
            card = self.card
            idle_w = float(model.idle_w(card, self.memory_clock_mhz, clock_mhz))
            switching = float(model.switching_ghz(card.voltage, clock_mhz))
            working_w = card.busy_w_per_ghz * switching + 0.5 * card.memory_w[self.memory_clock_mhz]
            self._known[clock_mhz] = idle_w + working_w, idle_w
        return self._known[clock_mhz]


def fastest_s(parts: Sequence[Part]) -> float:
    """The step with nothing slowed down. compute_s of the parts: at the highest clock."""
    return longest_s(parts, lambda worker: 1.0)


def step_energy_j(
    parts: Sequence[Part], curve: Curve, clocks: Mapping[int, int], gpus: Sequence[int], step_s: float | None = None
) -> float:
    """Of all GPUs over the step, each at the clock of `clocks`; they wait when they do not compute. gpus: of each
    worker. step_s: how long the step takes then, if that is known better than by the graph."""
    if step_s is None:
        step_s = longest_s(parts, lambda worker: curve.slower(clocks[gpus[worker]]))
    busy_s = dict.fromkeys(clocks, 0.0)
    for part in parts:
        busy_s[gpus[part.worker]] += part.compute_s * curve.slower(clocks[gpus[part.worker]])
    return sum(
        busy_s[gpu] * curve.busy_w(clock) + max(0.0, step_s - busy_s[gpu]) * curve.idle_w(clock)
        for gpu, clock in clocks.items()
    )


def clocks_of_gpus(
    parts: Sequence[Part],
    curve: Curve,
    gpus: Sequence[int],
    target_s: float,
    length_s: Callable[[Mapping[int, int]], float] | None = None,
) -> dict[int, int]:
    """One clock for each GPU: from the highest down, always the step down, of one GPU or of all, that saves the most,
    while the step is done by target_s and energy falls. With a target that cannot be met: all the highest.

    length_s: how long a step takes at these clocks; by the graph if it is not given. In the graph a wait is a wait; a
    simulator of the line knows that it is shorter where others send less at the same time.
    """
    kept = [clock for clock in curve.clocks_mhz if clock <= curve.card.sustained_mhz] or list(curve.clocks_mhz[:1])
    levels = dict.fromkeys(sorted(set(gpus)), len(kept) - 1)

    def graph_s(clocks: Mapping[int, int]) -> float:
        return longest_s(parts, lambda worker: curve.slower(clocks[gpus[worker]]))

    length_of = length_s or graph_s
    clocks = {gpu: kept[level] for gpu, level in levels.items()}
    now_j = step_energy_j(parts, curve, clocks, gpus, length_of(clocks))
    together = [(gpu,) for gpu in levels] + ([tuple(levels)] if len(levels) > 1 else [])
    while True:
        best: tuple[float, dict[int, int]] | None = None
        for group in together:
            for down in range(1, LOOK + 1):
                lower = {gpu: max(0, levels[gpu] - down) for gpu in group}
                tried = {**clocks, **{gpu: kept[level] for gpu, level in lower.items()}}
                if tried == clocks:
                    break
                step_s = length_of(tried)
                joules = step_energy_j(parts, curve, tried, gpus, step_s)
                if step_s <= target_s and joules < now_j:
                    best = min(best or (joules, lower), (joules, lower), key=lambda pair: pair[0])
                    break
        if best is None:
            return clocks
        now_j = best[0]
        levels |= best[1]
        clocks = {gpu: kept[level] for gpu, level in levels.items()}


def clocks_of_actions(
    parts: Sequence[Part], curve: Curve, target_s: float, ceilings: Mapping[str, int] | None = None
) -> dict[str, int]:
    """A clock for each action, by the part's name, from the time-energy frontier: GPUs of their own for all workers.

    Energy counts above waiting at the lowest clock: a GPU that is not computing is waiting, for messages within an
    action at the action's clock. ceilings: no higher clock than this, by the part's name.
    """
    lowest_w = curve.idle_w(curve.clocks_mhz[0])
    tops = dict.fromkeys((part.name for part in parts), curve.card.sustained_mhz) | dict(ceilings or {})

    def choices(part: Part) -> tuple[Choice, ...]:
        if part.compute_s <= 0:
            return (Choice(curve.clocks_mhz[-1], 0.0, 0.0),)
        found = []
        for clock in curve.clocks_mhz:
            if clock <= tops[part.name]:
                seconds = part.compute_s * curve.slower(clock)
                waiting_j = (curve.idle_w(clock) - lowest_w) * part.fixed_s
                found.append(Choice(clock, seconds, (curve.busy_w(clock) - lowest_w) * seconds + waiting_j))
        return tuple(found)

    target_s = max(target_s, fastest_s(parts))
    nodes = nodes_of(parts, choices)
    frontier = Frontier(nodes, target_s / UNITS)
    chosen = frontier.choices_at(frontier.point_for(target_s))
    clocks = {part.name: chosen[f"{at}"].clock_mhz for at, part in enumerate(parts)}
    return _on_time(parts, curve, clocks, target_s, tops)


def _on_time(
    parts: Sequence[Part], curve: Curve, clocks: dict[str, int], target_s: float, tops: Mapping[str, int]
) -> dict[str, int]:
    """What rounding to units has made too late is made good: on the longest path, a clock at a time goes up, that of
    the action which gains the most time for it."""
    levels = curve.clocks_mhz
    highest = {name: max(clock for clock in levels if clock <= top) for name, top in tops.items()}
    while True:
        length_s, path = _longest_path(parts, curve, clocks)
        slow = [part for part in path if part.compute_s > 0 and clocks[part.name] < highest[part.name]]
        if length_s <= target_s * (1 + 1e-9) or not slow:
            return clocks
        name = max(slow, key=lambda part: part.compute_s * curve.slower(clocks[part.name])).name
        clocks[name] = next(clock for clock in levels if clock > clocks[name])


def _longest_path(parts: Sequence[Part], curve: Curve, clocks: Mapping[str, int]) -> tuple[float, list[Part]]:
    """Its length, and the parts on it."""
    slowed = [replace(part, compute_s=part.compute_s * curve.slower(clocks[part.name])) for part in parts]
    ends = ends_s(slowed, lambda worker: 1.0)
    at = max(ends, key=lambda position: ends[position])
    length_s, path = ends[at], [parts[at]]
    while parts[at].after:
        at = max(parts[at].after, key=lambda before: ends[before])
        path.append(parts[at])
    return length_s, path
