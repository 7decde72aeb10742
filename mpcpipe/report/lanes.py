"""The geometry of a timeline in SVG units: parties, a lane for each of their workers, actions on it.

alice              (predicted stands above all, if there is a plan)
  0.0  ▇▇░▇▇░░▇      1800 columns; each has the colour of what took the most of it
  1.0  ..▇▇░▇▇░
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from mpcpipe.plan.plan import Plan
from mpcpipe.report import figures
from mpcpipe.report.events import PartyEvents, Run
from mpcpipe.report.figures import plain, seconds, share, ticks
from mpcpipe.report.pieces import COMPUTING, WAITING, Piece, Row, columns, runs

WIDTH, LEFT, RIGHT = 1080, 92, 112
PLOT = WIDTH - LEFT - RIGHT
_COLUMNS = 2 * PLOT
_BAR, _LANE, _HEAD, _GAP, _AXIS = 14, 30, 26, 12, 30
_LABEL = 6.2
"""Width of a letter of an action's name."""

KINDS = {"F": "forward", "B": "gradients", "I": "gradients", "W": "weights", "U": "update", WAITING: "waiting"}
"""Class of each sign in the page's style."""


@dataclass(frozen=True)
class Box:
    """An action: where it is, its name if there is room, and what is said of it when one points at it."""

    x: float
    width: float
    label: str
    title: str


@dataclass(frozen=True)
class Lane:
    """A worker. paths: (class, SVG path) of each kind. note: at the right."""

    name: str
    y: float
    x: float
    width: float
    paths: tuple[tuple[str, str], ...]
    boxes: tuple[Box, ...]
    note: str


@dataclass(frozen=True)
class ClockLane:
    """The clock of a party's GPU over the step: an SVG path, from 0 at its foot to the highest clock of the run."""

    y: float
    path: str
    title: str
    note: str


@dataclass(frozen=True)
class Group:
    """A party's lanes, or the prediction's."""

    name: str
    note: str
    y: float
    lanes: tuple[Lane, ...]
    predicted: bool = False
    clock: ClockLane | None = None


@dataclass(frozen=True)
class Timeline:
    """One step."""

    step: int
    name: str
    seconds: float
    groups: tuple[Group, ...]
    x_ticks: tuple[tuple[float, str], ...]
    unit: str
    height: float
    top: float
    bottom: float
    width: int = WIDTH
    left: int = LEFT
    bar: int = _BAR

    @property
    def kinds(self) -> set[str]:
        """The classes that it has."""
        return {kind for group in self.groups for lane in group.lanes for kind, _ in lane.paths}


@dataclass(frozen=True)
class _Scale:
    begin_s: float
    per_s: float

    def x(self, at_s: float) -> float:
        return round(LEFT + (at_s - self.begin_s) * self.per_s, 1)


def timeline(run: Run, step: int, name: str, plan: Plan | None = None) -> Timeline:
    """The timeline of one step at every party whose events are there, the prediction above it on the same scale."""
    begin_s, end_s = run.span_of(step)
    predicted = predicted_rows(plan) if plan is not None else ()
    predicted_s = max((piece.end_s for row in predicted for piece in row.pieces), default=0.0)
    whole_s = max(end_s - begin_s, predicted_s, 1e-9)
    y = 4.0
    groups = []
    if predicted:
        assert plan is not None
        scale = _Scale(0.0, PLOT / whole_s)
        own_s = _span(predicted)
        lanes = tuple(
            _lane(row, scale, y + _HEAD + i * _LANE, whole_s, own_s, _predicted_boxes(plan, i, scale))
            for i, row in enumerate(predicted)
        )
        note = f"{seconds(plan.predicted_step_s)} a step, by the plan for {plan.net}"
        groups.append(Group("predicted", note, y, lanes, True))
        y += _HEAD + _LANE * len(lanes) + _GAP
    scale = _Scale(begin_s, PLOT / whole_s)
    for party in run.parties:
        rows = party.rows(step)
        own_s = _span(rows)
        lanes = tuple(
            _lane(row, scale, y + _HEAD + i * _LANE, whole_s, own_s, _boxes(party, step, row.worker, scale))
            for i, row in enumerate(rows)
        )
        foot = y + _HEAD + _LANE * len(lanes)
        clock = _clock_lane(run, party, step, scale, foot, begin_s + whole_s)
        groups.append(Group(party.party, "measured" if predicted else "", y, lanes, clock=clock))
        y = foot + (0 if clock is None else _LANE) + _GAP
    unit, factor = ("s", 1.0) if whole_s >= 1 else ("ms", 1e3)
    marks = tuple((scale.x(begin_s + at / factor), plain(at)) for at in ticks(0.0, whole_s * factor, 9))
    return Timeline(step, name, end_s - begin_s, tuple(groups), marks, unit, y - _GAP + _AXIS, _HEAD, y - _GAP)


def _clock_lane(run: Run, party: PartyEvents, step: int, scale: _Scale, y: float, end_s: float) -> ClockLane | None:
    """Steps of the clock, from reading to reading; None where the party had no power service, or it saw no clock."""
    power = next((found for found in run.power if found.party == party.party), None)
    if power is None or power.clocks_mhz is None:
        return None
    own = _span(party.rows(step))
    begin_s, stop_s = own[0], min(own[1], end_s)
    seen = power.between(begin_s - party.origin_s, stop_s - party.origin_s)
    if not seen:
        return None
    highest = max(power.clocks_mhz[1], 1.0)
    path = []
    for number, reading in enumerate(seen):
        clock = reading.sm_clock_mhz or 0.0
        x = scale.x(max(begin_s, reading.at_s + party.origin_s))
        height = round(_BAR * (1 - clock / highest), 1)
        path.append(f"M{x} {height}" if number == 0 else f"H{x}V{height}")
    path.append(f"H{scale.x(stop_s)}")
    clocks = [reading.sm_clock_mhz for reading in seen if reading.sm_clock_mhz is not None]
    span = f"{min(clocks):.0f} MHz" if min(clocks) == max(clocks) else f"{min(clocks):.0f} to {max(clocks):.0f} MHz"
    joules = power.joules.get(step)
    used = "joules not known" if joules is None else figures.joules(joules)
    caps = power.caps_between(begin_s - party.origin_s, stop_s - party.origin_s)
    under = f", cap {', then '.join(caps)}" if caps != ("none",) else ""
    title = f"clock of {power.device}, {party.party}: {span}{under}; this step: {used}"
    return ClockLane(y, "".join(path), title, f"{span}, {used}")


def predicted_rows(plan: Plan) -> tuple[Row, ...]:
    """The plan's simulated step, a row a worker."""
    found: list[list[Piece]] = [[] for _ in plan.schedule.workers]
    for span in plan.spans:
        found[span.worker].append(Piece(span.start_s, span.end_s, span.action.kind if span.computes else WAITING))
    return tuple(Row(w.name, tuple(p)) for w, p in zip(plan.schedule.workers, found, strict=True))


def _span(rows: Sequence[Row]) -> tuple[float, float]:
    pieces = [piece for row in rows for piece in row.pieces]
    return min((p.begin_s for p in pieces), default=0.0), max((p.end_s for p in pieces), default=0.0)


def _lane(
    row: Row, scale: _Scale, y: float, whole_s: float, span_s: tuple[float, float], boxes: tuple[Box, ...]
) -> Lane:
    signs = columns(row.pieces, scale.begin_s, scale.begin_s + whole_s, _COLUMNS)
    paths: dict[str, list[str]] = {}
    for sign, first, last in runs(signs):
        moves = paths.setdefault(KINDS[sign], [])
        moves.append(f"M{LEFT + first / 2:g} 0h{(last - first) / 2:g}v{_BAR}h-{(last - first) / 2:g}z")
    begin_s, end_s = span_s
    computing_s = sum(p.end_s - p.begin_s for p in row.pieces if p.sign in COMPUTING)
    return Lane(
        row.worker,
        y,
        scale.x(begin_s),
        round(max(0.5, (end_s - begin_s) * scale.per_s), 1),
        tuple((kind, "".join(moves)) for kind, moves in paths.items()),
        boxes,
        f"{share(computing_s, end_s - begin_s)} computing",
    )


def _boxes(party: PartyEvents, step: int, worker: str, scale: _Scale) -> tuple[Box, ...]:
    boxes = _Boxes(scale)
    for event in party.of(step):
        if event.worker != worker:
            continue
        name = event.action if " " not in event.action else event.kind
        sent = "" if event.sent_bytes is None else f", {event.sent_bytes:,} bytes sent"
        title = (
            f"{event.action} of worker {worker}, {party.party}: {seconds(event.end_s - event.begin_s)}, of which "
            f"{seconds(event.compute_s)} computing, {seconds(event.wait_s)} waiting, {seconds(event.idle_s)} idle{sent}"
        )
        # The name stands where the action gets to work.
        begin_s = event.begin_s + event.idle_s + party.origin_s
        boxes.add(begin_s, max(begin_s, event.end_s + party.origin_s), name, title)
    return tuple(boxes.made)


def _predicted_boxes(plan: Plan, worker: int, scale: _Scale) -> tuple[Box, ...]:
    boxes = _Boxes(scale)
    spans = [span for span in plan.spans if span.worker == worker]
    for action, group in groupby(spans, key=lambda span: span.action):
        own = list(group)
        took_s, computing_s = (sum(s.end_s - s.start_s for s in own if s.computes or every) for every in (True, False))
        title = f"{action}, predicted: {seconds(took_s)}, of which {seconds(computing_s)} computing"
        boxes.add(own[0].start_s, own[-1].end_s, str(action), title)
    return tuple(boxes.made)


@dataclass
class _Boxes:
    """Actions of a lane, from left to right; a name stands where there is room for it."""

    scale: _Scale
    made: list[Box] = field(default_factory=list)
    free: float = 0.0

    def add(self, begin_s: float, end_s: float, name: str, title: str) -> None:
        x, end = self.scale.x(begin_s), self.scale.x(end_s)
        width = len(name) * _LABEL
        fits = x >= self.free and width <= end - x + 4
        if fits:
            self.free = x + width
        self.made.append(Box(x, round(max(0.5, end - x), 1), name if fits else "", title))


def chosen_steps(run: Run, most: int = 9) -> tuple[tuple[int, str], ...]:
    """Steps worth a picture, with what they are: the first, the last, the fastest, the middle one, the slowest, others
    in between; in order.
    """
    steps: Sequence[int] = run.steps
    if not steps:
        return ()
    took = {step: end_s - begin_s for step in steps for begin_s, end_s in [run.span_of(step)]}
    warm = sorted(steps[1:] or steps, key=lambda step: took[step])
    special = {warm[0]: "fastest", warm[-1]: "slowest", warm[(len(warm) - 1) // 2]: "median"}
    special = {steps[0]: "first", steps[-1]: "last"} | special
    spread = [steps[round(i * (len(steps) - 1) / max(1, most - 1))] for i in range(most)]
    others = [step for step in dict.fromkeys(spread) if step not in special]
    keep = sorted({*special, *others[: max(0, most - len(special))]})
    return tuple((step, special.get(step, "")) for step in keep)
