"""A replay as one self-contained HTML page, in the style of a run's report: everything inline, nothing fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from mpcpipe.report.figures import plain, ticks
from mpcpipe.services.power.charts import Curve, Drawn, charts
from mpcpipe.services.power.replay import Comparison
from mpcpipe.services.power.serving import Interval

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 260, 56, 12, 18, 38
_SHADES = 8


@dataclass(frozen=True)
class Line:
    """A curve in SVG units. whiskers: (x, top, bottom) of intervals. dots: (x, y, title)."""

    name: str
    shade: int
    path: str
    dots: tuple[tuple[float, float, str], ...]
    whiskers: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True)
class Picture:
    """A chart in SVG units."""

    title: str
    x_name: str
    y_name: str
    lines: tuple[Line, ...]
    limit: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


@dataclass(frozen=True)
class Sheet:
    """A table: the first column names, the others are numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def page(found: Comparison) -> str:
    """Of a comparison under caps."""
    count = f"{len(found.tasks)} task{'s' if len(found.tasks) > 1 else ''}"
    lead = (
        f"{found.policy} against {', '.join(found.against)} on simulated GPUs that always have work: "
        f"{count}, {found.seeds} seeds each, the same start for all. Power is the simulated truth."
    )
    sheets = [_overall(found)] if len(found.tasks) > 1 else []
    return _render(
        f"{found.policy} under power caps",
        lead,
        found.policies,
        tuple(picture(chart) for chart in charts(found)),
        (*sheets, *(_sheet(found, index) for index in range(len(found.tasks)))),
    )


def served_page(title: str, names: Sequence[str], said: dict[str, Any]) -> str:
    """Of policies that serve the same requests; said: what `serving.summary` returns."""
    rows = []
    for name in names:
        gross, net = (said[key].get(name) for key in ("gross_saving", "net_saving"))
        rows.append(
            (
                name,
                _pair(said["mean_power_w"][name], 1.0, ""),
                _pair(said["net_power_w"][name], 1.0, ""),
                "" if gross is None else _pair(gross, 100.0, " %"),
                "" if net is None else _pair(net, 100.0, " %"),
                _pair(said["violation_share"][name], 100.0, " %"),
                _pair(said["p99_s"][name], 1000.0, ""),
                _pair(said["mean_batch"][name], 1.0, ""),
            )
        )
    first = said["policy"]
    columns = ("policy", "W", "net W", f"{first} saves", "net of idle", "late", "p99, ms", "batch")
    lead = (
        f"{first} and others serve the same requests on a simulated GPU: {said['seeds']} seeds, the same start for all."
    )
    note = "Means over the seeds and 95 % intervals. Net: beyond an idle GPU at its lowest clocks."
    return _render(title, lead, tuple(names), (), (Sheet("Energy and latency", columns, tuple(rows), note),))


def _pair(value: Sequence[float], scale: float, unit: str) -> str:
    return f"{scale * value[0]:.1f} ± {scale * value[1]:.1f}{unit}"


def _render(
    title: str, lead: str, names: tuple[str, ...], pictures: tuple[Picture, ...], sheets: tuple[Sheet, ...]
) -> str:
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader("mpcpipe.services.power", "."), jinja2.PackageLoader("mpcpipe.report", ".")]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    legend = tuple((name, i % _SHADES) for i, name in enumerate(names))
    template = environment.get_template("replay.html.jinja")
    capped = any(drawn.limit for drawn in pictures)
    return template.render(title=title, lead=lead, legend=legend, pictures=pictures, sheets=sheets, capped=capped)


def picture(chart: Drawn) -> Picture:
    """A chart's geometry."""
    xs = [x for curve in chart.curves for x in curve.xs] + [x for x, _ in chart.steps]
    tops = [
        y + half
        for curve in chart.curves
        for y, half in zip(curve.ys, curve.halves or (0.0,) * len(curve.ys), strict=True)
    ]
    least, most = min(xs), max(xs)
    high = 1.05 * max([*tops, *(y for _, y in chart.steps)])

    def at_x(x: float) -> float:
        share = (x - least) / (most - least) if most > least else 0.5
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def at_y(y: float) -> float:
        return round(HEIGHT - BOTTOM - y / high * (HEIGHT - TOP - BOTTOM), 1)

    def line(i: int, curve: Curve) -> Line:
        path = "".join(
            f"{'L' if k else 'M'}{at_x(x)} {at_y(y)}" for k, (x, y) in enumerate(zip(curve.xs, curve.ys, strict=True))
        )
        if not curve.halves:
            return Line(curve.name, i % _SHADES, path, (), ())
        points = tuple(zip(curve.xs, curve.ys, curve.halves, strict=True))
        dots = tuple((at_x(x), at_y(y), f"{curve.name} at {x:g}: {y:.4g} ± {half:.2g}") for x, y, half in points)
        whiskers = tuple((at_x(x), at_y(y + half), at_y(max(0.0, y - half))) for x, y, half in points)
        return Line(curve.name, i % _SHADES, path, dots, whiskers)

    return Picture(
        chart.title,
        chart.x_name,
        chart.y_name,
        tuple(line(i, curve) for i, curve in enumerate(chart.curves)),
        "".join(f"{'L' if k else 'M'}{at_x(x)} {at_y(y)}" for k, (x, y) in enumerate(chart.steps)),
        tuple((at_x(x), plain(x)) for x in ticks(least, most)),
        tuple((at_y(y), plain(y)) for y in ticks(0.0, high, 5)),
    )


def _overall(found: Comparison) -> Sheet:
    rows = []
    for other in found.against:
        gain, gross, net = (
            Interval.of([sign * value for value in found.over(other, figure)])
            for sign, figure in (
                (1.0, lambda o: o.throughput_per_s),
                (-1.0, lambda o: o.gross_j),
                (-1.0, lambda o: o.net_j),
            )
        )
        broken = found.mean(other, lambda o: o.violation_share)
        rows.append((other, *(_pair((i.mean, i.half), 100.0, " %") for i in (gain, gross, net, broken))))
    columns = ("against", "throughput gained", "energy saved", "net of idle", "its time above the cap")
    note = "Means over all tasks, and 95 % intervals over the seeds."
    return Sheet(f"{found.policy} over each of the others", columns, tuple(rows), note)


def _sheet(found: Comparison, index: int) -> Sheet:
    task = found.tasks[index]
    rows = []
    for name in found.policies:
        outcomes = found.outcomes[task.name, name]
        figures = (
            [o.throughput_per_s for o in outcomes],
            [1000 * o.gross_j for o in outcomes],
            [1000 * o.net_j for o in outcomes],
            [max(p.settling_s for p in o.phases) for o in outcomes],
            [sum(p.overshoot_ws for p in o.phases) for o in outcomes],
            [sum(p.over_s for p in o.phases) for o in outcomes],
        )
        rows.append((name, *(_pair((i.mean, i.half), 1.0, "") for i in map(Interval.of, figures))))
    columns = ("policy", "requests/s", "mJ each", "net mJ", "settles, s", "above the cap, Ws", "above it, s")
    return Sheet(task.name, columns, tuple(rows))
