"""A simulated GPU for work that comes in batches: it runs one, or waits. Only the grid that it is given was measured.

How long a change of clocks takes depends on the two clocks far more than on chance (arXiv 2502.20075), so it is drawn
once for each pair of clocks, and varies by a tenth from time to time. Until the new clocks are in force the old ones
count, for a batch that has already started, too. The GPU is as warm as it was when the grid was measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mpcpipe.services.power import model
from mpcpipe.services.power.cards import Card
from mpcpipe.services.power.policies.base import Predictor
from mpcpipe.services.power.setting import Setting
from mpcpipe.services.power.sharing import check_setting, clocks_of

JITTER = 0.02
_CHANGE_JITTER = 5.0

Clocks = tuple[int, float]
"""Memory and SM, in MHz."""


@dataclass(frozen=True)
class _Steady:
    exec_s: float
    power_w: float


class ServingPlant:
    """A card, a network on it, and nothing to do until it is told.

    truth: time and power of a batch. start: the setting at first, in force at once. seed: of the changes of clocks and
    the jitter. time_s, energy_j, busy_s (time with a batch), changes (of clocks) count from the start; power is
    limited to the card's. jitter: standard deviation of the logarithm of a batch's time; changes of
    clocks vary five times as much.
    """

    def __init__(self, card: Card, truth: Predictor, start: Setting, seed: int = 0, jitter: float = JITTER) -> None:
        check_setting(card, start, "the start")
        self.card, self.truth, self.setting = card, truth, start
        self.time_s = self.energy_j = self.busy_s = 0.0
        self.changes = 0
        self.clocks: Clocks = clocks_of(card, start)
        self._coming: tuple[float, Clocks] | None = None
        self._random = np.random.default_rng([seed, 1])
        self._seed, self._jitter = seed, jitter
        self._pairs: dict[tuple[Clocks, Clocks], float] = {}
        self._known: dict[tuple[Clocks, int], _Steady] = {}

    def apply(self, setting: Setting, who: str = "the policy") -> None:
        """Ask for clocks; they are in force later."""
        if setting == self.setting:
            return
        check_setting(self.card, setting, who)
        before, after = clocks_of(self.card, self.setting), clocks_of(self.card, setting)
        self.setting = setting
        if before != after:
            self.changes += 1
            late = self._change_s(before, after) * math.exp(
                _CHANGE_JITTER * self._jitter * float(self._random.standard_normal())
            )
            self._coming = (self.time_s + late, after)

    def idle_until(self, then_s: float) -> None:
        """Nothing to do until then."""
        while self.time_s < then_s:
            self._advance_to(self._next(then_s), self._waiting_w())

    def run_batch(self, batch: int) -> float:
        """Work on one batch with all of the GPU; the seconds that it took. A clock change in the middle counts."""
        began, left = self.time_s, math.exp(self._jitter * float(self._random.standard_normal()))
        while left > 0.0:
            self._next(self.time_s)
            steady = self._steady(batch)
            end = self.time_s + left * steady.exec_s
            until = self._next(end)
            left = 0.0 if until >= end else left - (until - self.time_s) / steady.exec_s
            self._advance_to(until, steady.power_w)
        self.busy_s += self.time_s - began
        return self.time_s - began

    def _next(self, end_s: float) -> float:
        """The next moment at which something changes, end_s at the latest; takes what is due into force."""
        if self._coming and self._coming[0] <= self.time_s:
            self.clocks, self._coming = self._coming[1], None
        return min(end_s, self._coming[0]) if self._coming else end_s

    def _steady(self, batch: int) -> _Steady:
        """A batch at the clocks in force; lower ones where the driver's limit of power asks for it."""
        if (self.clocks, batch) not in self._known:
            memory, sm = self.clocks
            found = self._at(memory, sm, batch)
            for clock in reversed([clock for clock in self.card.sm_clocks_mhz if clock < sm]):
                if found.power_w <= self.card.tdp_w:
                    break
                found = self._at(memory, clock, batch)
            self._known[self.clocks, batch] = found
        return self._known[self.clocks, batch]

    def _at(self, memory: int, sm: float, batch: int) -> _Steady:
        setting = Setting(round(sm), memory, batch)
        return _Steady(self.truth.exec_s(setting), self.truth.power_w(setting))

    def _waiting_w(self) -> float:
        return float(model.idle_w(self.card, *self.clocks))

    def _advance_to(self, then_s: float, power_w: float) -> None:
        self.energy_j += power_w * (then_s - self.time_s)
        # Set, not added up: the sum would miss the arrival that it waits for by a rounding error.
        self.time_s = then_s

    def _change_s(self, before: Clocks, after: Clocks) -> float:
        if (before, after) not in self._pairs:
            draw = np.random.default_rng([self._seed, *(round(clock) for clock in (*before, *after))])
            self._pairs[before, after] = model.transition_s(self.card.transition, float(draw.standard_normal()))
        return self._pairs[before, after]
