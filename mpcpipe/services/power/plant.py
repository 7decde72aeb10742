"""A simulated GPU that always has work: late clocks, heat, the driver's power limit, a sensor apart from the truth.

For work that comes in batches there is `serving_plant`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from mpcpipe.services.power import model
from mpcpipe.services.power.cards import Card
from mpcpipe.services.power.setting import Setting, Slice
from mpcpipe.services.power.sharing import Shared, Steady, check_setting, clocks_of

RESTART_S = 2.0
"""Workers whose share changes start anew (assumed)."""
OVER = 1.02
"""Seconds count as above the cap from here on: nearer than this no controller can see."""
_TICK_S = 0.1
_JITTER = 0.01


@dataclass(frozen=True)
class Reading:
    """What the card shows. Power is the sensor's, energy the counter's."""

    time_s: float
    power_w: float | None
    energy_j: float
    sm_clock_mhz: float
    memory_clock_mhz: float
    temperature_c: float


class Plant:
    """A card, and a network on it.

    truth: the network. start: the setting at first, in force at once. seed: of clock transitions, the sensor's noise
    and jitter. cap_w: what `over_s` and `over_ws` count against; stretch_s, longest_s: time above it without a break,
    now and at most. Energy, peak and these are the truth, not the sensor's.
    """

    def __init__(self, card: Card, truth: Shared, start: Setting, seed: int = 0) -> None:
        check_setting(card, start, "the start")
        self.card, self.truth, self.setting = card, truth, start
        self.time_s = self.energy_j = self.over_ws = self.over_s = self.peak_w = 0.0
        self.stretch_s = self.longest_s = 0.0
        self.cap_w: float | None = None
        self.changes = 0
        self.power_w = self._idle_power(start)
        self.temperature_c = card.thermal.ambient_c + card.thermal.resistance_k_per_w * self.power_w
        self.sensor = model.Sensor(card.sensor.average_s, card.sensor.period_s, card.sensor.noise_w, seed)
        self._random = np.random.default_rng([seed, 1])
        self._in_force = start
        self._pending_s = math.inf
        self._down_until_s = 0.0
        self._throttled: dict[tuple[int, float, tuple[Slice, ...], int], tuple[float, Steady]] = {}

    def apply(self, setting: Setting, who: str = "the policy") -> None:
        """Ask for a setting. Clocks are in force later; workers whose share changes are down for a while."""
        check_setting(self.card, setting, who)
        if setting == self.setting:
            return
        old = self.setting
        self.setting = setting
        if [w.percent for w in old.workers] != [w.percent for w in setting.workers]:
            self._down_until_s = self.time_s + RESTART_S
        self._in_force = replace(self._in_force, batch=setting.batch, partition=setting.partition)
        if _clocks(setting) == _clocks(self._in_force):
            self._pending_s = math.inf
        elif _clocks(setting) != _clocks(old):
            self.changes += 1
            late = model.transition_s(self.card.transition, float(self._random.standard_normal()))
            self._pending_s = self.time_s + late

    def saturated(self, seconds: float) -> float:
        """All workers work all the time; requests that they finish."""
        end, done = self.time_s + seconds, 0.0
        while self.time_s < end - 1e-9:
            until = self._until(min(end, self.time_s + _TICK_S))
            if self.time_s < self._down_until_s - 1e-9:
                self._advance(min(until, self._down_until_s) - self.time_s, self._idle_power(self._in_force))
                continue
            steady, dt = self.steady(self._in_force.workers), until - self.time_s
            done += sum(steady.throughput_per_s) * dt * math.exp(_JITTER * float(self._random.standard_normal()))
            self._advance(dt, self._hot(steady.power_w))
        return done

    @property
    def restarting(self) -> bool:
        """Workers are down, as their share was changed."""
        return self.time_s < self._down_until_s - 1e-9

    def read(self) -> Reading:
        """What the card shows now."""
        memory, sm = clocks_of(self.card, self._in_force)
        return Reading(self.time_s, self.sensor.read(), self.energy_j, sm, memory, self.temperature_c)

    def steady(self, workers: tuple[Slice, ...]) -> Steady:
        """What the workers do now, with the clock that the driver's power limit leaves them."""
        memory, sm = clocks_of(self.card, self._in_force)
        limit = self._in_force.power_limit_w or self.card.tdp_w
        if self.temperature_c >= self.card.thermal.throttle_c:
            limit = min(limit, 0.7 * self.card.tdp_w)
        extra = self._hot(0.0)
        key = (memory, sm, workers, round(limit - extra))
        if key not in self._throttled:
            self._throttled[key] = self._within(memory, sm, workers, limit - extra)
        return self._throttled[key][1]

    def _within(self, memory: int, sm: float, workers: tuple[Slice, ...], limit_w: float) -> tuple[float, Steady]:
        steady = self.truth.steady(memory, sm, workers)
        if steady.power_w <= limit_w:
            return sm, steady
        for clock in sorted((c for c in self.card.sm_clocks_mhz if c < sm), reverse=True):
            steady = self.truth.steady(memory, clock, workers)
            if steady.power_w <= limit_w:
                return clock, steady
        return self.card.sm_clocks_mhz[0], steady

    def _idle_power(self, setting: Setting) -> float:
        return float(model.idle_w(self.card, *clocks_of(self.card, setting)))

    def _hot(self, power_w: float) -> float:
        base = self.card.idle_w[clocks_of(self.card, self._in_force)[0]]
        return power_w + float(model.leakage_w(self.card.thermal, base, self.temperature_c))

    def _until(self, end_s: float) -> float:
        """The next moment at which something changes, `end_s` at the latest; takes what is due into force."""
        if self._pending_s <= self.time_s + 1e-12:
            self._in_force, self._pending_s = self.setting, math.inf
        return min(end_s, self._pending_s)

    def _advance(self, dt_s: float, power_w: float) -> None:
        self.time_s += dt_s
        self.energy_j += power_w * dt_s
        self.power_w = power_w
        self.peak_w = max(self.peak_w, power_w)
        if self.cap_w is not None:
            self.over_ws += max(0.0, power_w - self.cap_w) * dt_s
            self.over_s += dt_s * (power_w > OVER * self.cap_w)
            self.stretch_s = self.stretch_s + dt_s if power_w > OVER * self.cap_w else 0.0
            self.longest_s = max(self.longest_s, self.stretch_s)
        self.temperature_c = model.warmed(self.card.thermal, self.temperature_c, power_w, dt_s)
        self.sensor.feed(power_w, dt_s)


def _clocks(setting: Setting) -> tuple[int | None, int | None, float | None]:
    return setting.sm_clock_mhz, setting.memory_clock_mhz, setting.power_limit_w
