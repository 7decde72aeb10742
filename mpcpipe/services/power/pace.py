"""The lowest clock at which steps are on time, from how long they take at each: tried, judged, and watched after that.

    full clock ── as predicted ── lower ── lower ── late! ── between ── kept, and watched
    (the base)      timed         timed    timed    timed     timed

Steps scatter, and a network gets slower and faster in the course of a day. So no clock is judged before the error of
its middle is smaller than what it is judged by; a clock that was on time and is late now goes up; and the base is timed
again after many steps, and whenever steps say that it is wrong.

The middle of steps is the median of the means of all pairs of them. Like the median it is not moved by the few steps
that take three times as long, and it needs two thirds as many steps or fewer for the same error.

Source: Hodges and Lehmann, "Estimates of Location Based on Rank Tests", Annals of Mathematical Statistics 34 (1963).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

LONGER = 0.009
"""By so much a step may be longer than at full clocks."""

PROMISED = 0.01
"""No clock is kept of which it is likely that steps are longer by more."""

LEAST, MOST = 4, 256
"""Steps at a clock before it is judged; after so many it is, however much they scatter."""

BASE, BASE_ERROR = 64, 0.001
"""The base is known with so many steps, or once its error is no larger."""

SCATTERED, ALIKE = 12, 0.0002
"""Steps at a clock before it is judged, unless all steps are as good as alike: four say little of how they scatter."""

ON_TIME, OVER, SOON = 1.5, 2.0, 64
"""Standard errors that it takes to say so: on time, late; late after so many steps is one, as it costs time to try."""

ERROR = 1.03
"""Of the middle of many normal values: in their standard deviations over the root of their number."""

STRIDE, LONGEST_STRIDE = 0.04, 0.16
"""By so much of the clock a lower one is tried; more, where steps are hardly longer."""

NEAR = 0.03
"""Clocks that differ by less are not told apart."""

WINDOWS = (16, 64, 256)
"""A clock that is kept is late if it is in any of these numbers of latest steps, and LATE standard errors say so."""

LATE = 3.5

AGAIN = 1000
"""After so many steps the base is timed again, and then after twice as many."""


@dataclass(frozen=True)
class Timed:
    """Steps at a clock: their middle, and its standard error."""

    middle_s: float
    error_s: float
    count: int


class Pace:
    """`add` each step, then ask for the `clock`. searching: false while a clock is kept.

    alone: no other party's clocks change the steps. With others, the base is timed by `time_base` alone, while all are
    at full clocks: it must not grow by what others do.
    """

    def __init__(self, alone: bool = True) -> None:
        self._alone = alone
        self._most = MOST if alone else SOON  # with others, each further turn for the same clock is two changes
        self._steps: dict[int, deque[float]] = {}
        self._middles: dict[tuple[int, int], float] = {}
        self._base: Timed | None = None
        self._earlier: Timed | None = None
        self._patience, self._again = LEAST, AGAIN
        self._full = 0
        self._allowed_s = 0.0
        self._good: int | None = None
        self._bad = 0
        self._resume: int | None = None
        self._shortest_s = math.inf
        self._spread: float | None = None
        self._trial: int | None = None
        self._retimed = self._search_again = False
        self._stride = STRIDE
        self._kept_for = 0

    @property
    def fastest_s(self) -> float | None:
        """The base: a step at the full clock; None before it is known."""
        return None if self._base is None else self._base.middle_s

    @property
    def searching(self) -> bool:
        """Is a clock being judged?"""
        return self._base is None or self._trial is not None

    @property
    def kept(self) -> int | None:
        """The clock that was on time last; None before the base is known."""
        return None if self._base is None else self._good or self._full

    @property
    def room_s(self) -> float | None:
        """What the clock that is kept has left of what is allowed; None before that is known."""
        timed = None if self.searching or self._good is None else self.timed(self._good)
        return None if timed is None else max(0.0, self._allowed_s - timed.middle_s - timed.error_s)

    def add(self, clock_mhz: int, step_s: float) -> None:
        """A step, all of it at this clock."""
        self._steps.setdefault(clock_mhz, deque(maxlen=MOST)).append(step_s)
        self._kept_for += 1
        self._spread = None
        self._unknown(clock_mhz)

    def timed(self, clock_mhz: int, latest: int = MOST) -> Timed | None:
        """What is known of a clock by its latest steps; None before LEAST of them."""
        steps = list(self._steps.get(clock_mhz, ()))[-latest:]
        if len(steps) < LEAST:
            return None
        if (clock_mhz, latest) not in self._middles:
            self._middles[clock_mhz, latest] = middle(steps)
        middle_s = self._middles[clock_mhz, latest]
        return Timed(middle_s, ERROR * self._scattered() * middle_s / math.sqrt(len(steps)), len(steps))

    def _scattered(self) -> float:
        if self._spread is None:
            self._spread = self._scatter()
        return self._spread

    def _scatter(self) -> float:
        """Standard deviation of a step over its clock's median: of all clocks together, outliers left out."""
        known = [(statistics.median(steps), steps) for steps in self._steps.values() if len(steps) >= LEAST]
        apart = [abs(step_s / median_s - 1) for median_s, steps in known for step_s in steps]
        free = len(apart) - len(known)
        return 1.4826 * statistics.median(apart) * math.sqrt(len(apart) / free) if free > 0 else 0.0

    def _enough(self, timed: Timed) -> bool:
        """Is it known how much steps scatter?"""
        return timed.count >= SCATTERED or timed.error_s <= ALIKE * timed.middle_s

    def late(self, clock_mhz: int, allowed_s: float) -> bool | None:
        """Are steps at this clock too long? None: that is not known yet."""
        timed, base = self.timed(clock_mhz), self._base
        if timed is None or base is None or not self._enough(timed):
            return None
        error_s = math.hypot(timed.error_s, base.error_s)
        if timed.middle_s + ON_TIME * error_s <= allowed_s:
            return False
        if timed.middle_s - (OVER if timed.count < SOON else 1.0) * error_s > allowed_s:
            return True
        limit_s = allowed_s + (PROMISED - LONGER) * base.middle_s
        return None if timed.count < self._most else timed.middle_s + error_s > limit_s

    def clock(self, full: int, least: int, clocks_mhz: Sequence[int], first: Callable[[], int], later_s: float) -> int:
        """The clock for the steps to come.

        full: the highest that may be set. least: below it nothing is saved. clocks_mhz: rising. first: a prediction,
        where to begin. later_s: a step may take as long as that in any case.
        """
        self._begin_at(full)
        if self._base is None and not self._timed_base():
            return self._full
        assert self._base is not None
        allowed_s = max((1 + LONGER) * self._base.middle_s, later_s)
        if self._good is None or abs(allowed_s / self._allowed_s - 1) > LONGER / 2:
            self._allowed_s, self._bad, self._stride = allowed_s, 0, STRIDE
            self._good = self._full
            self._trial = self._next(self._resume or first(), least, clocks_mhz)
            self._resume = None
        elif self._search_again:
            self._allowed_s = allowed_s
            self._trial = self._next(round((1 - STRIDE) * self._good), least, clocks_mhz)
        self._search_again = False
        if self._trial is not None:
            self._judge(least, clocks_mhz)
        else:
            self._watch(clocks_mhz)
        return self._full if self._base is None else self._trial or self._good

    def _begin_at(self, full: int) -> None:
        """All anew, where another clock is the highest now."""
        if abs(full - self._full) > NEAR * self._full:
            self._full, self._base, self._earlier, self._good, self._shortest_s = full, None, None, None, math.inf
            self._forget(tuple(self._steps))

    def time_base(self, full: int, begins: bool) -> None:
        """All parties are at full clocks. begins: since just now. What was kept is kept again once that is over."""
        self._begin_at(full)
        if begins:
            self._forget([self._full])
            self._retimed = False
        if self._retimed:
            return
        before, self._base, self._earlier = self._base, None, None
        if not self._timed_base():
            self._base = before
        elif before is not None and self._good is not None:
            self._retimed = self._search_again = True
            self._resume, self._trial, self._bad, self._shortest_s = self._good, None, 0, math.inf
            self._forget([self._good] if self._good != self._full else [])

    def _timed_base(self) -> bool:
        found = self.timed(self._full)
        if found is None or found.count < self._patience or not self._enough(found):
            return False
        if found.error_s > BASE_ERROR * found.middle_s and found.count < BASE:
            return False
        # Timed again only to see whether steps could be shorter: another party's clocks may be in the way just now.
        if self._earlier is not None and self._earlier.middle_s < found.middle_s:
            found = self._earlier
        self._base, self._earlier = found, None
        return True

    def _next(self, wanted: int, least: int, clocks_mhz: Sequence[int]) -> int | None:
        """The clock to try next, at or below what is wanted; apart from those that are known, not lower than of use."""
        assert self._good is not None
        lowest = max(least, math.ceil((1 + NEAR) * self._bad))
        highest = min((1 - NEAR) * self._good, max(wanted, lowest))
        fitting = [clock for clock in clocks_mhz if lowest <= clock <= highest]
        found = fitting[-1] if fitting else None
        self._kept_for = 0
        if found is not None:
            self._forget([found])
        return found

    def _judge(self, least: int, clocks_mhz: Sequence[int]) -> None:
        assert self._trial is not None and self._base is not None and self._good is not None
        late = self.late(self._trial, self._allowed_s)
        if late is None:
            return
        if late:
            self._bad, self._stride = self._trial, STRIDE
        else:
            timed = self.timed(self._trial)
            assert timed is not None
            room_s = self._allowed_s - self._base.middle_s
            self._stride = STRIDE
            if timed.middle_s - self._base.middle_s < room_s / 3:
                self._stride = min(LONGEST_STRIDE, 2 * max(self._stride, 1 - self._trial / self._good))
            self._good = self._trial
        between = (self._good + self._bad) // 2 if self._bad else 0
        self._trial = self._next(max(between, round((1 - self._stride) * self._good)), least, clocks_mhz)
        if self._trial is None:
            self._forget([self._good])
            self._stride = STRIDE

    def _watch(self, clocks_mhz: Sequence[int]) -> None:
        """A clock is kept: still on time? Is the base still right?"""
        assert self._good is not None and self._base is not None
        timed = self.timed(self._good)
        if timed is None:
            return
        if self._good != self._full and self._late_again(self._good):
            higher = [
                clock for clock in clocks_mhz if (1 + self._stride) * self._good <= clock < (1 - NEAR) * self._full
            ]
            self._bad = self._good
            self._stride = min(LONGEST_STRIDE, 2 * self._stride)
            if higher:
                self._good = higher[0]
                self._forget(higher[:1])
                return
            if not self._alone:  # until all parties are at full clocks for a new base
                self._good = self._full
                return
            # Late at all clocks: the network has changed, not what ours do. A new base, with more patience each time.
            self._patience = min(2 * max(self._patience, BASE), AGAIN)
            self._begin_again()
        elif timed.middle_s + LATE * timed.error_s < (1 - PROMISED) * min(self._base.middle_s, self._shortest_s):
            # Shorter than at full clocks: the network is faster now; or less is on the line at once, which stays so.
            self._shortest_s = timed.middle_s
            self._earlier = None if self._alone else self._base
            self._begin_again(self._good)
        elif self._alone and self._kept_for >= self._again:
            self._again *= 2
            self._earlier = self._base if self._good != self._full else None
            self._begin_again(self._good)

    def _late_again(self, clock_mhz: int) -> bool:
        base = self._base
        assert base is not None
        for latest in WINDOWS:
            timed = self.timed(clock_mhz, latest)
            if timed is not None and timed.count >= latest:
                error_s = math.hypot(timed.error_s, base.error_s)
                if timed.middle_s - LATE * error_s > self._allowed_s:
                    return True
        return False

    def _begin_again(self, resume: int | None = None) -> None:
        """The base is timed again; the search goes on from `resume`, or from the prediction. At the full clock the
        latest steps are the new base."""
        if self._good != self._full:
            self._forget([self._full])
        self._base = self._good = None
        self._resume = resume

    def _forget(self, clocks_mhz: Sequence[int]) -> None:
        for clock in clocks_mhz:
            self._steps.pop(clock, None)
            self._unknown(clock)

    def _unknown(self, clock_mhz: int) -> None:
        """Its steps are others now."""
        for latest in (*WINDOWS, MOST):
            self._middles.pop((clock_mhz, latest), None)


def middle(values: Sequence[float]) -> float:
    """The median of the means of all pairs, each value with itself among them."""
    own = np.asarray(values)
    rows, columns = np.triu_indices(len(own))
    return float(np.median(own[rows] + own[columns])) / 2
