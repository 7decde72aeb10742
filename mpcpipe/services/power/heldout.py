"""How well a predictor does on clocks and batch sizes that it has not seen at all: they are held out whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mpcpipe.errors import PowerError
from mpcpipe.services.power.grid import Grid

Array = NDArray[np.float64]


class Predicts(Protocol):
    """What a fit gives."""

    def predict(self, memory_clock_mhz: int, sm_clocks_mhz: Array, batches: Array) -> tuple[Array, Array]:
        """Latency in ms and power in watts: (clocks, batches) each."""
        ...


@dataclass(frozen=True)
class HeldOut:
    """Mean and worst relative errors on what was held out. what: in words."""

    what: str
    points: int
    latency_mape: float
    energy_mape: float
    latency_worst: float
    energy_worst: float


def held_out(grid: Grid, learn: Callable[[Grid], Predicts]) -> tuple[HeldOut, ...]:
    """Errors on every third clock, on each batch size in turn, and on both at once; the last row is the mean of all.

    Batches at the edge of the grid are extrapolated, and listed apart.
    """
    clocks, batches = grid.sm_clocks_mhz, grid.batches
    if len(clocks) < 4 and len(batches) < 4:
        raise PowerError(
            f"{grid.name}: {len(clocks)} clocks and {len(batches)} batch sizes are too few to hold any out"
        )
    rows = []
    if len(clocks) >= 4:
        parts = [clocks[start::3] for start in range(3)]
        rows.append(_row("every third SM clock", [_errors(grid, learn, part, ()) for part in parts]))
    if len(batches) >= 4:
        inner, edges = batches[1:-1], (batches[0], batches[-1])
        rows.append(_row("each batch size between others", [_errors(grid, learn, (), (b,)) for b in inner]))
        for edge in edges:
            rows.append(_row(f"batch {edge}, extrapolated", [_errors(grid, learn, (), (edge,))]))
    if len(clocks) >= 4 and len(batches) >= 4:
        both = [_errors(grid, learn, clocks[1::2], batches[start:-1:2]) for start in (1, 2)]
        rows.append(_row("every second clock and batch at once", both))
    total = sum(row.points for row in rows)
    rows.append(
        HeldOut(
            "all of these",
            total,
            sum(row.points * row.latency_mape for row in rows) / total,
            sum(row.points * row.energy_mape for row in rows) / total,
            max(row.latency_worst for row in rows),
            max(row.energy_worst for row in rows),
        )
    )
    return tuple(rows)


def _errors(
    grid: Grid, learn: Callable[[Grid], Predicts], clocks: tuple[int, ...], batches: tuple[int, ...]
) -> tuple[Array, Array]:
    learned = learn(grid.without(clocks, batches))
    rows = [i for i, clock in enumerate(grid.sm_clocks_mhz) if not clocks or clock in clocks]
    columns = [j for j, batch in enumerate(grid.batches) if not batches or batch in batches]
    f, b = np.array(grid.sm_clocks_mhz, float)[rows], np.array(grid.batches, float)[columns]
    latency, energy = [], []
    for m, memory in enumerate(grid.memory_clocks_mhz):
        ms, watts = learned.predict(memory, f, b)
        at = np.ix_([m], rows, columns)
        latency.append(np.abs(ms / grid.latency_ms[at][0] - 1.0).ravel())
        energy.append(np.abs(ms * watts / b / grid.energy_mj[at][0] - 1.0).ravel())
    return np.concatenate(latency), np.concatenate(energy)


def _row(what: str, errors: list[tuple[Array, Array]]) -> HeldOut:
    latency, energy = (np.concatenate([pair[side] for pair in errors]) for side in (0, 1))
    return HeldOut(
        what, len(latency), float(latency.mean()), float(energy.mean()), float(latency.max()), float(energy.max())
    )
