"""The timeline of one step for a terminal: rows are workers, columns slices of time."""

from __future__ import annotations

from collections.abc import Sequence

from mpcpipe.report.events import Run
from mpcpipe.report.pieces import Row, columns

LEGEND = "F forward, B (I, W) gradients, U update: computing    . waiting for other parties    blank: idle"


def drawn(rows: Sequence[Row], begin_s: float, end_s: float, width: int = 100) -> str:
    """A line a worker, and a scale in seconds. width: of the whole picture, in characters; at least 30."""
    left = max((len(row.worker) for row in rows), default=0)
    count = max(20, width - left - 3)
    lines = [f"{row.worker:>{left}} │{columns(row.pieces, begin_s, end_s, count)}│" for row in rows]
    scale = f" {end_s - begin_s:.3g} s"
    return "\n".join([*lines, f"{' ' * left} └{scale.rjust(count, '─')}┘"])


def step_timeline(run: Run, step: int | None = None, party: str | None = None, width: int = 100) -> str:
    """The timeline of one party (the first one) in one step (the last one), with what the signs mean under it."""
    if not run.parties or not run.steps:
        return "no timeline: the run wrote no events"
    found = next((one for one in run.parties if one.party == party), run.parties[0])
    chosen = run.steps[-1] if step is None else step
    rows = found.rows(chosen)
    pieces = [piece for row in rows for piece in row.pieces]
    begin_s, end_s = min(p.begin_s for p in pieces), max(p.end_s for p in pieces)
    return f"step {chosen}, {found.party}\n{drawn(rows, begin_s, end_s, width)}\n{LEGEND}"
