"""The time-energy frontier of a step's graph: which node should be how slow, for every length of the step.

    ┌─ 0F0 ──> net ─┬─> 0F1 ──> net ...        a node is computing, which a slower clock stretches and makes cheaper,
    └───────────────┴─> 1F0 ──> net ...        or communication, whose duration no clock changes

All nodes begin at their cheapest duration. Then the step is shortened unit by unit, each time where it costs least: a
minimum cut through the graph. Nodes that the cut crosses forwards get a unit shorter, those that it crosses backwards
get one longer again. What comes out is the cheapest way to be done in every time, up to the unit.

The cut goes through the whole graph, slack included, not through its critical part alone as published: a node that
gets longer again might otherwise delay a path that had slack. Beginnings and ends are potentials, the cost is convex
in them (L-natural), so one cut a unit is exact (Murota, "Discrete Convex Analysis", 2003, chapter 7).

Source: Phillips and Dessouky, Management Science 24 (1977), for project crashing; Chung et al., "Reducing Energy Bloat
in Large Model Training" (Perseus), SOSP 2024, for pipelines. Communication as nodes of fixed duration is ours.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mpcpipe.errors import PowerError


@dataclass(frozen=True)
class Choice:
    """A way to do a node: at this clock it takes so long and costs so much (more than waiting would)."""

    clock_mhz: int
    seconds: float
    joules: float


@dataclass(frozen=True)
class Node:
    """choices: one with a fixed duration, or several clocks. after: names of the nodes that come before it."""

    name: str
    choices: tuple[Choice, ...]
    after: tuple[str, ...] = ()

    @property
    def fixed(self) -> bool:
        """No clock changes it."""
        return len(self.choices) == 1


@dataclass(frozen=True)
class Point:
    """A length of the step, what it costs at least, and how long each node takes then, in units."""

    seconds: float
    joules: float
    units: tuple[int, ...]


def longest_path_s(nodes: Sequence[Node], seconds: Mapping[str, float]) -> float:
    """How long the graph takes if each node takes `seconds[name]`. Errors: PowerError for a graph with a circle."""
    ends: dict[str, float] = {}
    for node in in_order(nodes):
        ends[node.name] = max((ends[name] for name in node.after), default=0.0) + seconds[node.name]
    return max(ends.values(), default=0.0)


def in_order(nodes: Sequence[Node]) -> list[Node]:
    """Each after those that come before it. Errors: PowerError for a circle, or a node that is not there."""
    by_name = {node.name: node for node in nodes}
    waits = {node.name: len(node.after) for node in nodes}
    followers: dict[str, list[str]] = {name: [] for name in by_name}
    for node in nodes:
        for name in node.after:
            if name not in by_name:
                raise PowerError(f"node {node.name} comes after {name}, which is not in the graph")
            followers[name].append(node.name)
    ready = deque(name for name, count in waits.items() if count == 0)
    out: list[Node] = []
    while ready:
        name = ready.popleft()
        out.append(by_name[name])
        for follower in followers[name]:
            waits[follower] -= 1
            if waits[follower] == 0:
                ready.append(follower)
    if len(out) < len(nodes):
        raise PowerError("the step's graph has a circle: its actions wait for one another")
    return out


class Frontier:
    """Of a graph. unit_s: the resolution of time; durations are rounded to it. Points come from the slowest to the
    fastest, each the cheapest of its length. `choices_at` says which clocks a point means."""

    def __init__(self, nodes: Sequence[Node], unit_s: float) -> None:
        self.nodes, self.unit_s = in_order(nodes), unit_s
        self._costs = [_cost_by_units(node, unit_s) for node in self.nodes]
        index = {node.name: i for i, node in enumerate(self.nodes)}
        self._after = [[index[name] for name in node.after] for node in self.nodes]
        has_follower = {i for before in self._after for i in before}
        self._last = {i for i in range(len(self.nodes)) if i not in has_follower}

    def points(self) -> Iterator[Point]:
        """From all nodes at their cheapest down to what no clock can beat."""
        count = len(self.nodes)
        at = [0] * (2 * count)  # node i begins at at[2 i] and has time until at[2 i + 1]
        for i, before in enumerate(self._after):
            at[2 * i] = max((at[2 * j + 1] for j in before), default=0)
            at[2 * i + 1] = at[2 * i] + self._costs[i].most
        total = max(at[1::2], default=0)
        while True:
            units = tuple(min(c.most, at[2 * i + 1] - at[2 * i]) for i, c in enumerate(self._costs))
            yield Point(total * self.unit_s, sum(c.at(u) for c, u in zip(self._costs, units, strict=True)), units)
            near = self._cheapest_cut(at, total)
            if near is None:
                return
            total -= 1
            at = [when if near[node] else when - 1 for node, when in enumerate(at)]

    def point_for(self, target_s: float) -> Point:
        """The cheapest that is done by target_s; the fastest if none is."""
        point = None
        for point in self.points():
            if point.seconds <= target_s + 1e-12:
                break
        assert point is not None
        return point

    def choices_at(self, point: Point) -> dict[str, Choice]:
        """Of each node the slowest choice that is done within its units."""
        found = {}
        for node, units in zip(self.nodes, point.units, strict=True):
            allowed_s = units * self.unit_s + 1e-9
            fitting = [choice for choice in node.choices if choice.seconds <= allowed_s]
            found[node.name] = max(fitting or [min(node.choices, key=_seconds)], key=_seconds)
        return found

    def _cheapest_cut(self, at: Sequence[int], total: int) -> list[bool] | None:
        """Which moments stay as they are; all others come a unit earlier. None: no clock is fast enough for that."""
        count = len(self.nodes)
        source, sink = 2 * count, 2 * count + 1
        flow = Flow(2 * count + 2)
        for i, costs in enumerate(self._costs):
            begin, end = at[2 * i], at[2 * i + 1]
            units = end - begin
            if units <= costs.most:
                dearer = costs.at(units - 1) - costs.at(units) if units > costs.least else math.inf
                saved = costs.at(units) - costs.at(units + 1) if units < costs.most else 0.0
                flow.add(2 * i, 2 * i + 1, saved, max(saved, dearer))
            for j in self._after[i]:
                if at[2 * j + 1] == begin:
                    flow.add(2 * j + 1, 2 * i, 0.0, math.inf)
            if begin == 0 and not self._after[i]:
                flow.add(source, 2 * i, 0.0, math.inf)
            if end == total and i in self._last:
                flow.add(2 * i + 1, sink, 0.0, math.inf)
        return flow.minimum_cut(source, sink)


def _seconds(choice: Choice) -> float:
    return choice.seconds


@dataclass(frozen=True)
class _Costs:
    """Joules by units of time from `least` to `most`: convex and falling."""

    least: int
    values: tuple[float, ...]

    @property
    def most(self) -> int:
        return self.least + len(self.values) - 1

    def at(self, units: int) -> float:
        return self.values[units - self.least]


def _cost_by_units(node: Node, unit_s: float) -> _Costs:
    """On the lower hull of the choices, up to the cheapest one; a slower one than that is never of use."""
    if node.fixed:
        return _Costs(round(node.choices[0].seconds / unit_s), (node.choices[0].joules,))
    hull = _hull(node.choices)
    least = max(1, round(hull[0].seconds / unit_s))
    most = max(least, math.floor(hull[-1].seconds / unit_s + 1e-9))
    return _Costs(least, tuple(_on(hull, units * unit_s) for units in range(least, most + 1)))


def _hull(choices: Sequence[Choice]) -> list[Choice]:
    """The fastest, and from there only what is cheaper the longer it takes, convex."""
    hull: list[Choice] = []
    for choice in sorted(choices, key=lambda c: (c.seconds, c.joules)):
        if hull and choice.joules >= hull[-1].joules:
            continue
        while len(hull) > 1 and _slope(hull[-2], choice) <= _slope(hull[-2], hull[-1]):
            hull.pop()
        if hull and choice.seconds == hull[-1].seconds:
            hull.pop()
        hull.append(choice)
    return hull


def _slope(a: Choice, b: Choice) -> float:
    return (b.joules - a.joules) / (b.seconds - a.seconds) if b.seconds > a.seconds else -math.inf


def _on(hull: Sequence[Choice], seconds: float) -> float:
    for a, b in pairwise(hull):
        if seconds <= b.seconds:
            share = max(0.0, (seconds - a.seconds) / (b.seconds - a.seconds))
            return a.joules + share * (b.joules - a.joules)
    return hull[-1].joules


class Flow:
    """A network with lower and upper bounds of the flow on each edge, for minimum cuts. Small: adjacency lists."""

    def __init__(self, count: int) -> None:
        self._to: list[int] = []
        self._room: list[float] = []
        self._at: list[list[int]] = [[] for _ in range(count + 2)]
        self._count = count
        self._demand = [0.0] * count

    def add(self, a: int, b: int, low: float, high: float) -> int:
        """An edge; its number."""
        number = self._edge(a, b, high - low)
        self._demand[a] -= low
        self._demand[b] += low
        return number

    def _edge(self, a: int, b: int, room: float, back: float = 0.0) -> int:
        self._at[a].append(len(self._to))
        self._to.append(b)
        self._room.append(room)
        self._at[b].append(len(self._to))
        self._to.append(a)
        self._room.append(back)
        return len(self._to) - 2

    def minimum_cut(self, source: int, sink: int) -> list[bool] | None:
        """Which nodes are on the source's side of a cut of least (upper bounds forwards - lower bounds backwards).

        None: every cut has an edge without an upper bound.
        """
        # First a flow that keeps the lower bounds, through a source and a sink of its own; then as much as fits.
        first, last = self._count, self._count + 1
        for node, demand in enumerate(self._demand):
            if demand > 0:
                self._edge(first, node, demand)
            elif demand < 0:
                self._edge(node, last, -demand)
        around = self._edge(sink, source, math.inf)
        self._push_all(first, last)
        self._room[around] = self._room[around + 1] = 0.0
        if math.isinf(self._push_all(source, sink)):
            return None
        return self._reachable(source)

    def _reachable(self, source: int) -> list[bool]:
        seen = [False] * len(self._at)
        seen[source] = True
        queue = deque([source])
        while queue:
            for edge in self._at[queue.popleft()]:
                if self._room[edge] > 1e-9 and not seen[self._to[edge]]:
                    seen[self._to[edge]] = True
                    queue.append(self._to[edge])
        return seen

    def _push_all(self, source: int, sink: int) -> float:
        """Along shortest paths (Edmonds and Karp); infinite if one has no upper bound."""
        total = 0.0
        while True:
            came: dict[int, int] = {source: -1}
            queue = deque([source])
            while queue and sink not in came:
                for edge in self._at[queue.popleft()]:
                    node = self._to[edge]
                    if self._room[edge] > 1e-9 and node not in came:
                        came[node] = edge
                        queue.append(node)
            if sink not in came:
                return total
            path, node = [], sink
            while node != source:
                path.append(came[node])
                node = self._to[came[node] ^ 1]
            amount = min(self._room[edge] for edge in path)
            if math.isinf(amount):
                return math.inf
            for edge in path:
                self._room[edge] -= amount
                self._room[edge ^ 1] += amount
            total += amount
