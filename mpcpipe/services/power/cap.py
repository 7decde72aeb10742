"""Keeping a power cap: the highest clock that may be set, from a model first and from the sensor after that.

The first ceiling assumes that the card works all the time, so the cap is kept from the first moment. Readings above the
cap lower it at once, by as much as the model's slope says; it rises by half of the way while there is room for long.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence

ROOM = 0.03
"""Of the cap is kept free before the ceiling rises."""

TRUST = 0.15
"""By so much the model may say more than the cap, and the ceiling still rises."""

RISE_S = 1.5
"""So long there must be room: longer than a sensor that averages over a second."""


MEMORY_USED = 0.5
"""Of its rate at full clocks, by the same assumption as the power of a busy card."""


def memory_clock_for(cap_w: float, clocks_mhz: Sequence[int], busy_w: Mapping[int, Callable[[int], float]]) -> int:
    """The memory clock with which a card that works all the time does the most under a cap; the highest of equal ones.

    busy_w: power at an SM clock, by memory clock. How fast: the slower of the SM clock's share and of the memory's,
    which is half used. Where no clock keeps the cap: the one that draws the least.
    """
    top_sm, top_memory = clocks_mhz[-1], max(busy_w)
    best: tuple[float, int] | None = None
    for memory, power in busy_w.items():
        fitting = [clock for clock in clocks_mhz if power(clock) <= cap_w]
        if fitting:
            pace = min(1.0, fitting[-1] / top_sm, memory / (MEMORY_USED * top_memory))
            best = max(best or (0.0, 0), (pace, memory))
    return best[1] if best is not None else min(busy_w, key=lambda memory: busy_w[memory](clocks_mhz[0]))


class Cap:
    """clocks_mhz: rising. busy_w: what the card draws at a clock if it works all the time, by a model."""

    def __init__(self, cap_w: float, clocks_mhz: Sequence[int], busy_w: Callable[[int], float]) -> None:
        self.clocks_mhz = tuple(clocks_mhz)
        self._busy_w = [busy_w(clock) for clock in self.clocks_mhz]
        self.cap_w = cap_w
        self._level = 0
        self._since_s: float | None = None
        self._lowered_at_s: float | None = None
        self.change(cap_w)

    @property
    def ceiling_mhz(self) -> int:
        """No higher clock may be set now."""
        return self.clocks_mhz[self._level]

    def change(self, cap_w: float) -> None:
        """Another cap from now on: the ceiling by the model."""
        self.cap_w = cap_w
        fitting = [level for level, busy_w in enumerate(self._busy_w) if busy_w <= cap_w]
        self._level = fitting[-1] if fitting else 0
        self._since_s = None

    def see(self, now_s: float, power_w: float | None, clock_mhz: float | None) -> int:
        """A reading, at the clock in force; the ceiling from now on."""
        if power_w is None:
            return self.ceiling_mhz
        if power_w > self.cap_w:
            self._since_s = None
            # A sensor that averages shows a change late: one step down for each change, then wait for it.
            if self._lowered_at_s is None or now_s - self._lowered_at_s >= 0.3:
                self._lowered_at_s = now_s
                self._level = self._below(power_w, clock_mhz)
            return self.ceiling_mhz
        at_ceiling = clock_mhz is None or clock_mhz >= self.ceiling_mhz
        room = self._with_room(power_w) - self._level
        if not at_ceiling or room < 1:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
        elif now_s - self._since_s >= RISE_S:
            self._since_s = now_s
            self._level += (room + 1) // 2
        return self.ceiling_mhz

    def _with_room(self, power_w: float) -> int:
        """The highest level at which what was measured would grow to no more than the cap but ROOM. The model is not
        trusted to be more than TRUST too high: a card that waits now may have work again."""
        share = power_w / self._busy_w[self._level]
        most_w = min((1 - ROOM) * self.cap_w / max(share, 1e-9), (1 + TRUST) * self.cap_w)
        levels = [level for level, busy_w in enumerate(self._busy_w) if busy_w <= most_w]
        return max(levels, default=0)

    def _below(self, power_w: float, clock_mhz: float | None) -> int:
        """The level at which the model says that what was measured shrinks to the cap; a level lower at least."""
        now = self._level if clock_mhz is None else bisect.bisect_right(self.clocks_mhz, clock_mhz) - 1
        wanted_w = self._busy_w[max(0, min(self._level, now))] * self.cap_w / power_w
        fitting = [level for level, busy_w in enumerate(self._busy_w) if busy_w <= wanted_w]
        return max(0, min(self._level - 1, fitting[-1] if fitting else 0))
