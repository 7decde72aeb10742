"""The geometry of a line chart in SVG units: the page's template draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mpcpipe.report.figures import plain, seconds, ticks

WIDTH, HEIGHT = 520, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 14, 34
_MOST_DOTS = 60
_MOST_POINTS = 400


@dataclass(frozen=True)
class Dot:
    """A value, and what is said when one points at it."""

    x: float
    y: float
    title: str


@dataclass(frozen=True)
class Level:
    """A horizontal line with a name."""

    y: float
    name: str
    kind: str


@dataclass(frozen=True)
class Chart:
    """title: for who cannot see it. path: of an SVG path. dots: all values, or none where there are many. limit: a path
    that the values are to stay below, or nothing. x_name: what goes to the right."""

    title: str
    path: str
    dots: tuple[Dot, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    levels: tuple[Level, ...] = ()
    limit: str = ""
    x_name: str = "step"
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def line_chart(
    title: str,
    xs: Sequence[int],
    ys: Sequence[float | None],
    levels: Sequence[tuple[float, str, str]] = (),
    in_seconds: bool = False,
) -> Chart | None:
    """Values ys at steps xs; None leaves a gap. levels: (value, name, kind). None where there is nothing to draw.

    The axis begins at 0 where values are of one sign and 0 is not far below them.
    """
    known = [y for y in ys if y is not None] + [value for value, _, _ in levels]
    if not any(y is not None for y in ys):
        return None
    low, high = min(known), max(known)
    if low >= 0 and (in_seconds or low < 0.6 * high):
        low = 0.0
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    low, high = (0.0 if low == 0 else low - room), high + room
    first, last = min(xs), max(xs)

    def at_x(x: float) -> float:
        share = (x - first) / (last - first) if last > first else 0.5
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def at_y(y: float) -> float:
        return round(HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)

    shown = seconds if in_seconds else (lambda y: f"{y:.4g}")
    path, pen_down, dots = [], False, []
    for x, y in zip(xs, ys, strict=True):
        if y is not None:
            path.append(f"{'L' if pen_down else 'M'}{at_x(x)} {at_y(y)}")
            dots.append(Dot(at_x(x), at_y(y), f"step {x}: {shown(y)}"))
        pen_down = y is not None
    whole = sorted({round(x) for x in ticks(first, last)})
    return Chart(
        title,
        "".join(path),
        tuple(dots) if len(dots) <= _MOST_DOTS else (),
        tuple((at_x(x), f"{x:,}") for x in whole),
        tuple((at_y(y), plain(y)) for y in ticks(low, high, 5)),
        tuple(Level(at_y(value), name, kind) for value, name, kind in levels),
    )


def time_chart(
    title: str, points: Sequence[tuple[float, float]], limits: Sequence[tuple[float, float | None]], end_s: float
) -> Chart | None:
    """Values over time, from 0 to end_s. points: (at_s, value). limits: (since when, a limit from then on, or None). Of
    many values means are drawn, of as many each. None where there is nothing to draw."""
    if not points:
        return None
    every = -(-len(points) // _MOST_POINTS)
    few = [_mean(points[at : at + every]) for at in range(0, len(points), every)]
    high = max([*(value for _, value in few), *(limit for _, limit in limits if limit is not None)])
    high += 0.06 * high or 1.0

    def at_x(x: float) -> float:
        return round(LEFT + min(1.0, x / max(end_s, 1e-9)) * (WIDTH - LEFT - RIGHT), 1)

    def at_y(y: float) -> float:
        return round(HEIGHT - BOTTOM - y / high * (HEIGHT - TOP - BOTTOM), 1)

    drawn, down = [], False
    for number, (since_s, limit) in enumerate(limits):
        until_s = limits[number + 1][0] if number + 1 < len(limits) else end_s
        if limit is not None:
            drawn.append(f"{'V' if down else f'M{at_x(since_s)} '}{at_y(limit)}H{at_x(until_s)}")
        down = limit is not None
    unit_s, name = (60.0, "minutes") if end_s >= 180 else (1.0, "seconds")
    return Chart(
        title,
        "".join(f"{'L' if number else 'M'}{at_x(x)} {at_y(y)}" for number, (x, y) in enumerate(few)),
        (),
        tuple((at_x(x * unit_s), plain(x)) for x in ticks(0.0, end_s / unit_s)),
        tuple((at_y(y), plain(y)) for y in ticks(0.0, high, 5)),
        limit="".join(drawn),
        x_name=name,
    )


def _mean(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return sum(at_s for at_s, _ in points) / len(points), sum(value for _, value in points) / len(points)
