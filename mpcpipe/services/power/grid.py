"""A measured grid: latency and energy by memory clock, SM clock and batch size."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpcpipe.errors import PowerError
from mpcpipe.services.power.cards import Card

COLUMNS = ("memory_mhz", "sm_mhz", "batch", "latency_ms_per_batch", "energy_mj_per_inference")
_SAME_CLOCK = 0.05
_MANY = 5


@dataclass(frozen=True, eq=False)
class Grid:
    """latency_ms: (memory clocks, SM clocks, batches), of a batch. energy_mj: same shape, of a request, idle power
    included. All axes rise."""

    name: str
    memory_clocks_mhz: tuple[int, ...]
    sm_clocks_mhz: tuple[int, ...]
    batches: tuple[int, ...]
    latency_ms: NDArray[np.float64]
    energy_mj: NDArray[np.float64]
    _log_latency: NDArray[np.float64] = field(init=False, repr=False)
    _powers: NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_log_latency", np.log(self.latency_ms))
        object.__setattr__(self, "_powers", self.power_w)

    @property
    def power_w(self) -> NDArray[np.float64]:
        """Mean power while it works, same shape."""
        power: NDArray[np.float64] = self.energy_mj * np.array(self.batches) / self.latency_ms
        return power

    def at(self, memory_clock_mhz: int, sm_clock_mhz: float, batch: float) -> tuple[float, float]:
        """(ms a batch, watts), interpolated between clocks and batches; outside of them the nearest edge counts.

        Latency is interpolated in logarithms over 1/f and batch, power over f: both nearly straight there.
        """
        if memory_clock_mhz not in self.memory_clocks_mhz:
            known = ", ".join(map(str, self.memory_clocks_mhz))
            raise PowerError(
                f"{self.name}: nothing was measured at a memory clock of {memory_clock_mhz} MHz, only {known}"
            )
        m = self.memory_clocks_mhz.index(memory_clock_mhz)
        i, x = _between(self.sm_clocks_mhz, sm_clock_mhz)
        j, y = _between(self.batches, batch)
        latency = _blend(self._log_latency[m], i, x, j, y)
        return float(np.exp(latency)), float(_blend(self._powers[m], i, x, j, y))

    def on(self, card: Card) -> Grid:
        """The same with the card's own names of memory clocks (a lock at 405 MHz reads back as 420)."""
        clocks = []
        for measured in self.memory_clocks_mhz:
            near = min(card.memory_clocks_mhz, key=lambda clock: abs(clock - measured))
            if abs(near - measured) > _SAME_CLOCK * measured:
                raise PowerError(
                    f"{self.name}: a memory clock of {measured} MHz is none of {card.title}'s "
                    f"({', '.join(map(str, card.memory_clocks_mhz))}); is it another card's grid?"
                )
            clocks.append(near)
        return Grid(self.name, tuple(clocks), self.sm_clocks_mhz, self.batches, self.latency_ms, self.energy_mj)

    def without(self, sm_clocks_mhz: Sequence[int] = (), batches: Sequence[int] = ()) -> Grid:
        """The grid with whole clocks and whole batch sizes taken out, to be held out."""
        rows = [i for i, clock in enumerate(self.sm_clocks_mhz) if clock not in sm_clocks_mhz]
        columns = [j for j, batch in enumerate(self.batches) if batch not in batches]
        return Grid(
            self.name,
            self.memory_clocks_mhz,
            tuple(self.sm_clocks_mhz[i] for i in rows),
            tuple(self.batches[j] for j in columns),
            self.latency_ms[:, rows][:, :, columns],
            self.energy_mj[:, rows][:, :, columns],
        )


def _between(axis: Sequence[int], value: float) -> tuple[int, float]:
    if len(axis) == 1:
        return 0, 0.0
    i = int(np.clip(np.searchsorted(axis, value, side="right") - 1, 0, len(axis) - 2))
    low, high = axis[i], axis[i + 1]
    return i, float(np.clip((value - low) / (high - low), 0.0, 1.0))


def _blend(values: NDArray[np.float64], i: int, x: float, j: int, y: float) -> float:
    k, n = min(i + 1, values.shape[0] - 1), min(j + 1, values.shape[1] - 1)
    low = values[i, j] * (1 - y) + values[i, n] * y
    high = values[k, j] * (1 - y) + values[k, n] * y
    return float(low * (1 - x) + high * x)


def load(path: str | Path) -> Grid:
    """A grid from a CSV file with the columns `COLUMNS`. Every combination of its clocks and batches must be there."""
    path = Path(path)
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
            if missing:
                raise PowerError(f"{path}: no column {missing[0]!r}; a grid has {', '.join(COLUMNS)}")
            rows = list(reader)
    except OSError as error:
        raise PowerError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise PowerError(f"{path}: is no CSV file: {error}") from error
    if not rows:
        raise PowerError(f"{path}: has no measurements")
    points: dict[tuple[int, int, int], tuple[float, float]] = {}
    for line, row in enumerate(rows, 2):
        key, value = _point(path, line, row)
        if key in points:
            where = "memory {} MHz, SM {} MHz, batch {}".format(*key)
            raise PowerError(f"{path}, line {line}: {where} is there twice")
        points[key] = value
    return _grid(path, points)


def _point(path: Path, line: int, row: dict[str, str]) -> tuple[tuple[int, int, int], tuple[float, float]]:
    try:
        numbers = [float(row[column]) for column in COLUMNS]
    except (TypeError, ValueError) as error:
        raise PowerError(f"{path}, line {line}: a value is missing or no number") from error
    if not all(np.isfinite(number) and number > 0 for number in numbers):
        raise PowerError(f"{path}, line {line}: {numbers} must all be finite and above 0")
    memory, sm, batch = (round(number) for number in numbers[:3])
    return (memory, sm, batch), (numbers[3], numbers[4])


def _grid(path: Path, points: dict[tuple[int, int, int], tuple[float, float]]) -> Grid:
    memory, sm, batches = (tuple(sorted({key[axis] for key in points})) for axis in range(3))
    holes = [key for key in itertools.product(memory, sm, batches) if key not in points]
    if holes:
        shown = "; ".join(f"memory {m} MHz, SM {s} MHz, batch {b}" for m, s, b in holes[:_MANY])
        more = f" and {len(holes) - _MANY} more" if len(holes) > _MANY else ""
        raise PowerError(
            f"{path}: {len(holes)} of {len(memory) * len(sm) * len(batches)} points are missing: {shown}{more}. "
            "Measure them, or leave out their whole clock or batch size"
        )
    values = np.array([points[key] for key in itertools.product(memory, sm, batches)])
    shape = (len(memory), len(sm), len(batches))
    return Grid(path.stem, memory, sm, batches, values[:, 0].reshape(shape), values[:, 1].reshape(shape))


def load_rates(path: str | Path) -> NDArray[np.float64]:
    """Requests a second, one value a second, from a CSV file with the column `requests_per_second`."""
    path = Path(path)
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            if "requests_per_second" not in (reader.fieldnames or ()):
                raise PowerError(f"{path}: no column 'requests_per_second'")
            rates = np.array([float(row["requests_per_second"]) for row in reader])
    except OSError as error:
        raise PowerError(f"{path}: cannot be read: {error.strerror}") from error
    except (TypeError, ValueError) as error:
        raise PowerError(f"{path}: a value is missing or no number: {error}") from error
    if not len(rates) or not np.all(np.isfinite(rates)) or np.any(rates < 0):
        raise PowerError(f"{path}: there must be at least one rate, and all finite and not below 0")
    return rates
