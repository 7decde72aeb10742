"""The pictures of a replay as a PNG, with matplotlib (extra `power`)."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from mpcpipe.errors import PowerError
from mpcpipe.services.power.charts import COLOURS, Drawn, charts
from mpcpipe.services.power.replay import Comparison

_DPI = 140


def draw(found: Comparison, file: str) -> None:
    """All charts of a comparison under caps, in one picture."""
    drawn = charts(found)
    columns = 1 if len(drawn) == 1 or any(chart.steps for chart in drawn) else 2
    rows = -(-len(drawn) // columns)
    figure, axes = _figure(rows, columns)
    for chart, axis in zip(drawn, axes, strict=False):
        _chart(axis, chart)
    for axis in axes[len(drawn) :]:
        axis.set_visible(False)
    names = [curve.name for curve in drawn[0].curves]
    _legend(figure, axes[0], len(names))
    figure.suptitle(f"{found.policy} and others, replayed, {found.seeds} seeds", x=0.01, ha="left", fontsize=13)
    _save(figure, file)


def draw_served(title: str, names: Sequence[str], said: dict[str, Any], file: str) -> None:
    """Mean power, and the part of it above an idle GPU, of policies that serve the same requests; late ones beside."""
    figure, (left, right) = _figure(1, 2)
    places = list(range(len(names)))[::-1]
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(names))]
    whole, net = ([said[key][name] for name in names] for key in ("mean_power_w", "net_power_w"))
    left.barh(places, [v[0] for v in whole], xerr=[v[1] for v in whole], color=colours, alpha=0.35, height=0.6)
    left.barh(places, [v[0] for v in net], color=colours, height=0.6)
    left.set_xlabel("mean power, W (dark: above an idle GPU)")
    late = [100 * said["violation_share"][name][0] for name in names]
    right.barh(places, late, color=colours, height=0.6)
    right.set_xlabel("late requests, %")
    for axis, labels in ((left, names), (right, [""] * len(names))):
        axis.set_yticks(places, labels)
        _plain(axis, "x")
    figure.suptitle(f"{title}: replayed, {said['seeds']} seeds", x=0.01, ha="left", fontsize=13)
    _save(figure, file)


def _figure(rows: int, columns: int) -> tuple[Any, list[Any]]:
    try:
        module = importlib.import_module("matplotlib.figure")
        backend = importlib.import_module("matplotlib.backends.backend_agg")
    except ImportError as error:
        raise PowerError("--png needs matplotlib: pip install 'mpcpipe[power]'; --html needs nothing") from error
    wide = 6.0 * columns if columns > 1 else 10.0
    figure = module.Figure(figsize=(wide, 3.6 * rows + 0.9), layout="constrained")
    backend.FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).ravel())


def _chart(axis: Any, chart: Drawn) -> None:
    for i, curve in enumerate(chart.curves):
        colour = COLOURS[i % len(COLOURS)]
        style = {
            "color": colour,
            "label": curve.name,
            "linewidth": 2.2 if i == 0 else 1.3,
            "zorder": 3 if i == 0 else 2,
        }
        if curve.halves:
            axis.errorbar(curve.xs, curve.ys, yerr=curve.halves, marker="o", markersize=4, capsize=2, **style)
        else:
            axis.plot(curve.xs, curve.ys, **style)
    if chart.steps:
        axis.plot(*zip(*chart.steps, strict=True), color="#444444", linestyle="--", linewidth=1.2, label="cap")
    else:
        axis.set_ylim(bottom=0)
    axis.set_title(chart.title, loc="left", fontsize=10.5)
    axis.set_xlabel(chart.x_name)
    axis.set_ylabel(chart.y_name)
    _plain(axis, "y")


def _plain(axis: Any, grid: str) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis=grid, color="#e2e5ea", linewidth=0.8)
    axis.set_axisbelow(True)


def _legend(figure: Any, axis: Any, count: int) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=min(count + 1, 6), frameon=False, fontsize=9)


def _save(figure: Any, file: str) -> None:
    try:
        figure.savefig(file, dpi=_DPI)
    except OSError as error:
        raise PowerError(f"{file}: cannot be written: {error.strerror}") from error
