"""Requests that arrive: rates a second from a file, and arrival times drawn from them."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from mpcpipe.errors import PowerError

Times = npt.NDArray[np.float64]
Spacing = Literal["poisson", "even"]


@dataclass(frozen=True)
class Rates:
    """Requests a second, one value a second."""

    per_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.per_s:
            raise PowerError("the trace of requests is empty; give at least one rate")
        for second, rate in enumerate(self.per_s):
            if not 0 <= rate < 1e7:
                raise PowerError(f"the rate in second {second} of the trace is {rate}; it must be 0 or more")

    @property
    def duration_s(self) -> int:
        """Seconds that the trace covers."""
        return len(self.per_s)

    @property
    def mean_per_s(self) -> float:
        """Requests a second on average."""
        return sum(self.per_s) / len(self.per_s)

    def first(self, seconds: int) -> Rates:
        """The beginning of the trace."""
        return Rates(self.per_s[:seconds])

    def smoothed(self, window_s: float) -> Rates:
        """Means over a window; the trace itself for one of up to a second."""
        width = min(len(self.per_s), round(window_s))
        if width <= 1:
            return self
        mean = np.convolve(self.per_s, np.ones(width) / width, mode="valid")
        return Rates(tuple(float(rate) for rate in mean))

    @classmethod
    def read(cls, path: Path) -> Rates:
        """From a CSV file with the column `requests_per_second`."""
        try:
            with path.open(newline="") as file:
                reader = csv.DictReader(file)
                if "requests_per_second" not in (reader.fieldnames or ()):
                    raise PowerError(f"{path}: no column 'requests_per_second'")
                rows = [row["requests_per_second"] for row in reader]
        except OSError as error:
            raise PowerError(f"{path}: cannot be read: {error.strerror}") from error
        except (UnicodeDecodeError, csv.Error) as error:
            raise PowerError(f"{path}: is no CSV file: {error}") from error
        return cls(tuple(_rate(path, line, text) for line, text in enumerate(rows, 2)))


def _rate(path: Path, line: int, text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError as error:
        raise PowerError(f"{path}, line {line}: {text!r} is no rate") from error


def arrivals(rates: Rates, seed: int = 0, spacing: Spacing = "poisson") -> Times:
    """Arrival times in seconds, rising: (requests,).

    poisson: a Poisson process with the given rate in each second, from the seed. even: in each second the rounded
    number of requests at equal distances, which is how GREENDLS's authors send theirs; the seed does nothing then.
    """
    if spacing == "even":
        return np.concatenate(
            [second + np.arange(round(rate)) / max(1, round(rate)) for second, rate in enumerate(rates.per_s)]
        ).astype(np.float64)
    draw = np.random.default_rng(seed)
    counts = draw.poisson(np.asarray(rates.per_s))
    times = np.repeat(np.arange(len(counts)), counts) + draw.random(int(counts.sum()))
    return np.sort(times).astype(np.float64)


def varied(seed: int, seconds: int, low_per_s: float, high_per_s: float, hold_s: int = 5) -> Rates:
    """Rates to train on: held for hold_s seconds each, drawn evenly between low and high, +-5 % each second."""
    draw = np.random.default_rng(seed)
    levels = draw.uniform(low_per_s, high_per_s, size=-(-seconds // hold_s))
    rates = np.repeat(levels, hold_s)[:seconds] * draw.uniform(0.95, 1.05, size=seconds)
    return Rates(tuple(float(rate) for rate in rates))
