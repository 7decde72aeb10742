"""Joules over windows: from the card's own counter where it has one, from samples of its power where not.

A counter is renewed every 20 to 100 ms, so windows shorter than half a second say little: a step that is shorter gets
its share, by time, of the window that it lies in. What is not known is None, never 0.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from mpcpipe.services.power.device import Sample

LEAST_WINDOW_S = 0.5
"""Shorter windows of a counter are not reported by themselves."""

LONGEST_GAP_S = 1.0
"""Between samples; what lies in a longer gap is not known."""

COUNTER, SAMPLED = "counter", "sampled"


@dataclass(frozen=True)
class Energy:
    """Of a window. joules: None: not known. how: "counter", "sampled" (a sum over samples of the power), or None."""

    seconds: float
    joules: float | None
    how: str | None

    @property
    def mean_w(self) -> float | None:
        """Over the window."""
        return None if self.joules is None or self.seconds <= 0 else self.joules / self.seconds


class Meter:
    """Fed with readings, answers for windows of time. Keeps so many seconds of them."""

    def __init__(self, kept_s: float = 600.0) -> None:
        self._kept_s = kept_s
        self._samples: list[Sample] = []
        self._times_s: list[float] = []

    def add(self, sample: Sample) -> None:
        """Readings in the order of their time."""
        self._samples.append(sample)
        self._times_s.append(sample.at_s)
        old = bisect.bisect_left(self._times_s, sample.at_s - self._kept_s)
        if old > len(self._times_s) // 2:  # now and then, not every time
            del self._samples[:old], self._times_s[:old]

    def energy(self, begin_s: float, end_s: float) -> Energy:
        """From begin_s to end_s (`time.perf_counter`)."""
        seconds = end_s - begin_s
        around = self._around(begin_s, end_s)
        joules = _counted(around, begin_s, end_s)
        if joules is not None:
            return Energy(seconds, joules, COUNTER)
        joules = _summed(around, begin_s, end_s)
        return Energy(seconds, joules, None if joules is None else SAMPLED)

    def _around(self, begin_s: float, end_s: float) -> list[Sample]:
        """The readings in the window and one on either side; where the window is short, so many that the counter has
        half a second."""
        need_s = max(0.0, LEAST_WINDOW_S - (end_s - begin_s)) / 2
        first = bisect.bisect_right(self._times_s, begin_s - need_s) - 1
        last = bisect.bisect_left(self._times_s, end_s + need_s)
        return self._samples[max(0, first) : last + 1]


def _counted(samples: Sequence[Sample], begin_s: float, end_s: float) -> float | None:
    """By the counter: the window's share of what it grew around it. A driver that was loaded anew has begun at 0."""
    known = [(s.at_s, s.energy_j) for s in samples if s.energy_j is not None]
    if len(known) < 2 or known[-1][0] - known[0][0] < LEAST_WINDOW_S:
        return None
    if any(b < a for (_, a), (_, b) in pairwise(known)):
        return None
    if end_s - begin_s < LEAST_WINDOW_S:
        return (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0]) * (end_s - begin_s)
    return _at(known, end_s) - _at(known, begin_s)


def _at(known: Sequence[tuple[float, float]], at_s: float) -> float:
    """The counter at a moment, on the lines through its readings; beyond them, on the nearest line."""
    pairs = list(pairwise(known))
    (a_s, a), (b_s, b) = next((pair for pair in pairs if pair[1][0] >= at_s), pairs[-1])
    return a if b_s == a_s else a + (b - a) * (at_s - a_s) / (b_s - a_s)


def _summed(samples: Sequence[Sample], begin_s: float, end_s: float) -> float | None:
    """Trapezes between samples of the power, the ends held. None: too few, or a gap in which anything can have been."""
    known = [(s.at_s, s.power_w) for s in samples if s.power_w is not None]
    if not known:
        return None
    edges = [begin_s, *(at_s for at_s, _ in known if begin_s < at_s < end_s), end_s]
    if known[0][0] > begin_s + LONGEST_GAP_S or known[-1][0] < end_s - LONGEST_GAP_S:
        return None
    if any(b[0] - a[0] > LONGEST_GAP_S for a, b in pairwise(known)):
        return None
    return sum((b_s - a_s) * (_power(known, a_s) + _power(known, b_s)) / 2 for a_s, b_s in pairwise(edges))


def _power(known: Sequence[tuple[float, float]], at_s: float) -> float:
    if at_s <= known[0][0]:
        return known[0][1]
    for (a_s, a), (b_s, b) in pairwise(known):
        if at_s <= b_s:
            return a if b_s == a_s else a + (b - a) * (at_s - a_s) / (b_s - a_s)
    return known[-1][1]
