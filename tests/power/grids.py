"""Grids for tests: made from known physics, or measured where `MPCPIPE_POWER_DATA` names the folder that has them."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from mpcpipe.services.power.cards import Voltage
from mpcpipe.services.power.fit import PowerLaw
from mpcpipe.services.power.grid import COLUMNS, Grid, load
from mpcpipe.services.power.model import Roofline

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LAUNCHES = Roofline(4.28, 0.237, 7.28, 0.424, 2.28, {5001: 0.577, 9501: 0.340}, 1950.0)
"""Like DenseNet-201 on an RTX 3080 Ti: many small kernels."""
LARGE = Roofline(0.66, 0.0, 1.52, 0.092, 1.0, {5001: 0.419, 9501: 0.348}, 1950.0)
"""Like ResNet-50 on it."""
LAW = PowerLaw(Voltage(1458.0, 1.249), {5001: 53.0, 9501: 85.8}, 11.2, 36.5, {5001: 103.0, 9501: 147.0})


def made(
    roofline: Roofline = LARGE,
    law: PowerLaw = LAW,
    clocks: tuple[int, ...] = tuple(range(540, 1951, 120)),
    batches: tuple[int, ...] = BATCHES,
    noise: float = 0.0,
    tile: float = 0.0,
    seed: int = 0,
) -> Grid:
    """A grid of known physics. noise: relative. tile: how much more a batch takes that does not fill its last tile."""
    draw = np.random.default_rng(seed)
    f, b = np.array(clocks, float)[:, None], np.array(batches, float)[None, :]
    memory = tuple(sorted(roofline.memory_ms))
    latency = np.stack([roofline.exec_ms(m, f, b) for m in memory])
    power = np.stack([law.power_w(roofline, m, f, b) for m in memory])
    waste = 1.0 + tile * (np.ceil(b / 24.0) * 24.0 / b - 1.0).clip(0, 1)
    latency = latency * waste * np.exp(noise * draw.standard_normal(latency.shape))
    power = power * np.exp(noise * draw.standard_normal(power.shape))
    return Grid("made", memory, clocks, batches, latency, power * latency / b)


def one_memory(clocks: tuple[int, ...], **options: object) -> Grid:
    """For a card with a single memory clock of 1215 MHz."""
    roofline = Roofline(0.9, 0.0, 0.6, 0.128, 2.0, {1215: 0.25}, float(clocks[-1]))
    law = PowerLaw(Voltage(975.0, 0.9), {1215: 30.0}, 15.0, 140.0, {1215: 50.0})
    return made(roofline, law, clocks, **options)  # type: ignore[arg-type]


def write(grid: Grid, file: Path) -> Path:
    """As a CSV file."""
    with file.open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(COLUMNS)
        for m, memory in enumerate(grid.memory_clocks_mhz):
            for i, clock in enumerate(grid.sm_clocks_mhz):
                for j, batch in enumerate(grid.batches):
                    rows.writerow((memory, clock, batch, grid.latency_ms[m, i, j], grid.energy_mj[m, i, j]))
    return file


def measured(name: str) -> Grid:
    """A published grid, or a skipped test."""
    folder = os.environ.get("MPCPIPE_POWER_DATA")
    file = Path(folder or ".") / f"rtx3080ti_{name}.csv"
    if folder is None or not file.is_file():
        pytest.skip("MPCPIPE_POWER_DATA does not name the folder of the published grids")
    return load(file)
