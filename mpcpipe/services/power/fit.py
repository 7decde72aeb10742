"""The physics of `model`, fitted to a measured grid: a roofline for latency, voltage and utilisation for power.

What physics leaves over goes to a smooth residual (`residual`), so that a prediction between measured clocks and batch
sizes follows the measurements, and one far from them follows the physics. Needs numpy only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpcpipe.errors import PowerError
from mpcpipe.services.power.cards import Voltage
from mpcpipe.services.power.grid import Grid
from mpcpipe.services.power.model import Roofline, switching_ghz
from mpcpipe.services.power.residual import Residual

Array = NDArray[np.float64]
_KNEES = (0.45, 0.6, 0.75, 0.9)
_OVERLAPS = (1.05, 3.0)
_SUSTAINED = (0.96, 1.5)
_PULL, _PULL_VOLTAGE = 0.02, 0.15
_MOST_STEPS = 80


@dataclass(frozen=True)
class PowerLaw:
    """P = base[memory] + V^2 f (running + computing u_c) + memory[memory] u_m; u: shares of the time."""

    voltage: Voltage
    base_w: dict[int, float]
    running_w_per_ghz: float
    computing_w_per_ghz: float
    memory_w: dict[int, float]

    def power_w(self, roofline: Roofline, memory_clock_mhz: int, sm_clock_mhz: Array, batch: Array) -> Array:
        """Watts while the network works all the time."""
        total = roofline.exec_ms(memory_clock_mhz, sm_clock_mhz, batch)
        computing = roofline.compute_ms(sm_clock_mhz, batch) / total
        moving = roofline.memory_ms[memory_clock_mhz] * batch / total
        clock = np.minimum(sm_clock_mhz, roofline.sustained_mhz)
        switching = switching_ghz(self.voltage, clock)
        found: Array = (
            self.base_w[memory_clock_mhz]
            + switching * (self.running_w_per_ghz + self.computing_w_per_ghz * computing)
            + self.memory_w[memory_clock_mhz] * moving
        )
        return found


@dataclass(frozen=True)
class Fitted:
    """A network on a card as learned from a grid. Latency and power anywhere near the grid."""

    grid: Grid
    roofline: Roofline
    law: PowerLaw
    latency_residual: Residual | None = None
    power_residual: Residual | None = None

    def alone(self, memory_clock_mhz: int, sm_clock_mhz: float, batch: float) -> tuple[float, float]:
        """(ms a batch, watts) of one worker with the whole GPU."""
        ms, watts = self.predict(memory_clock_mhz, np.array([sm_clock_mhz]), np.array([batch]))
        return float(ms[0, 0]), float(watts[0, 0])

    def predict(self, memory_clock_mhz: int, sm_clocks_mhz: Array, batches: Array) -> tuple[Array, Array]:
        """Latency in ms and power in watts: (clocks, batches) each."""
        if memory_clock_mhz not in self.grid.memory_clocks_mhz:
            known = ", ".join(map(str, self.grid.memory_clocks_mhz))
            raise PowerError(f"{self.grid.name}: fitted for memory clocks {known} MHz, not for {memory_clock_mhz}")
        f, b = np.asarray(sm_clocks_mhz, float)[:, None], np.asarray(batches, float)[None, :]
        ms = self.roofline.exec_ms(memory_clock_mhz, f, b)
        watts = self.law.power_w(self.roofline, memory_clock_mhz, f, b)
        m = self.grid.memory_clocks_mhz.index(memory_clock_mhz)
        if self.latency_residual is not None:
            ms = ms * np.exp(self.latency_residual.at(m, f[:, 0], b[0]))
        if self.power_residual is not None:
            watts = watts * np.exp(self.power_residual.at(m, f[:, 0], b[0]))
        return ms, watts


def fit(grid: Grid, residuals: bool = True) -> Fitted:
    """Learn a network from a grid. residuals: False keeps the bare physics."""
    roofline = fit_roofline(grid)
    law = fit_power(grid, roofline)
    bare = Fitted(grid, roofline, law)
    if not residuals:
        return bare
    predicted = [bare.predict(m, np.array(grid.sm_clocks_mhz), np.array(grid.batches)) for m in grid.memory_clocks_mhz]
    latency = np.log(grid.latency_ms / np.stack([ms for ms, _ in predicted]))
    power = np.log(grid.power_w / np.stack([watts for _, watts in predicted]))
    axes = (grid.sm_clocks_mhz, grid.batches)
    return Fitted(grid, roofline, law, Residual.learn(latency, *axes), Residual.learn(power, *axes))


def fit_roofline(grid: Grid) -> Roofline:
    """Latency alone; the best of several starts, since overlap and memory can trade places."""
    f, b = np.array(grid.sm_clocks_mhz, float), np.array(grid.batches, float)
    wanted = np.log(grid.latency_ms)
    count, last = len(grid.memory_clocks_mhz), grid.latency_ms[:, -1, -1] / b[-1]
    small = float(grid.latency_ms[-1, -1, 0])

    def roofline(x: Array) -> Roofline:
        p = np.exp(np.clip(x, -30, 30))
        memory = dict(zip(grid.memory_clocks_mhz, p[6:].tolist(), strict=True))
        return Roofline(p[0], p[1], p[2], p[3], min(1.0 + p[4], 20.0), memory, p[5])

    def errors(x: Array) -> Array:
        r = roofline(x)
        return np.stack([np.log(r.exec_ms(m, f[:, None], b[None, :])) for m in grid.memory_clocks_mhz]) - wanted

    tries = []
    item = max(float(last.min()), 1e-6)
    weights = np.full(6 + count, _PULL)
    weights[5] = 3.0  # few points tell where the clock stops to matter
    for overlap, sustained in itertools.product(_OVERLAPS, _SUSTAINED):
        compute = [0.4 * small * f[-1] / 1e3, 0.5 * item * f[-1] / 1e3]
        start = [0.4 * small, 0.05 * item, *compute, overlap - 1, sustained * f[-1], *(0.5 * last)]
        found, cost = minimise(errors, np.log(np.array(start)), weights)
        # That the highest clocks do nothing would be believed above the grid, too: only if it explains more.
        tries.append((found, cost * (1.03 if sustained < 1 else 1.0)))
    return roofline(min(tries, key=lambda pair: pair[1])[0])


def fit_power(grid: Grid, roofline: Roofline) -> PowerLaw:
    """Power given the latency's utilisations; the best of several knees of the voltage."""
    f, b = np.array(grid.sm_clocks_mhz, float), np.array(grid.batches, float)
    wanted, count = np.log(grid.power_w), len(grid.memory_clocks_mhz)
    lowest, highest = grid.power_w.min(axis=(1, 2)), float(grid.power_w.max())

    def law(x: Array) -> PowerLaw:
        p = np.exp(np.clip(x, -30, 30))
        base = dict(zip(grid.memory_clocks_mhz, p[4 : 4 + count].tolist(), strict=True))
        memory = dict(zip(grid.memory_clocks_mhz, p[4 + count :].tolist(), strict=True))
        return PowerLaw(Voltage(float(p[0]), float(p[1])), base, float(p[2]), float(p[3]), memory)

    def errors(x: Array) -> Array:
        found = law(x)
        rows = [np.log(found.power_w(roofline, m, f[:, None], b[None, :])) for m in grid.memory_clocks_mhz]
        return np.stack(rows) - wanted

    pull = np.full(4 + 2 * count, _PULL)
    pull[:2] = _PULL_VOLTAGE
    tries = []
    for knee in _KNEES:
        watts = 0.15 * highest / (f[-1] / 1e3)
        x0 = np.log(np.array([knee * f[-1], 0.8, 0.3 * watts, watts, *(0.7 * lowest), *(0.2 * highest + 0 * lowest)]))
        tries.append(minimise(errors, x0, pull))
    return law(min(tries, key=lambda pair: pair[1])[0])


def minimise(errors: Callable[[Array], Array], start: Array, pull: Array) -> tuple[Array, float]:
    """Levenberg-Marquardt with robust weights and a slight pull to the start, for what the data say nothing about.

    Returns the parameters and the mean squared error there. pull: weight by parameter, of a distance of 1.
    """

    def all_errors(x: Array) -> Array:
        raw = errors(x).ravel()
        soft = raw / np.sqrt(1.0 + np.abs(raw) / 0.1)  # beyond 10 % an error counts by its size, not its square
        return np.concatenate([soft, pull * (x - start)])

    x, damping = start.copy(), 1e-2
    value = all_errors(x)
    cost = float(value @ value)
    for _ in range(_MOST_STEPS):
        slopes = np.stack([(all_errors(x + step) - value) / 1e-5 for step in 1e-5 * np.eye(len(x))], axis=1)
        normal, gradient = slopes.T @ slopes, slopes.T @ value
        better = False
        while damping < 1e8:
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), -gradient)
            trial = all_errors(x + np.clip(step, -2, 2))
            if np.isfinite(trial).all() and float(trial @ trial) < cost:
                better = True
                break
            damping *= 4
        if not better:
            break
        gain = cost - float(trial @ trial)
        x, value, cost = x + np.clip(step, -2, 2), trial, float(trial @ trial)
        damping = max(damping / 6, 1e-9)
        if gain < 1e-6 * cost:
            break
    return x, cost / max(1, len(value))
