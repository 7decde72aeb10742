"""SIMULATED GPUs: cards of the table with the physics of `model`. Nothing here was measured on a GPU.

The truth (power, heat, clocks) goes on in time; what `read` shows is the sensor's: late, averaged, with noise. A new
clock is in force only after a transition, and a power limit lowers the clock as a driver does.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable

import numpy as np

from mpcpipe.services.power import model
from mpcpipe.services.power.cards import Card, card_named
from mpcpipe.services.power.device import (
    KNOBS,
    Capabilities,
    DeviceError,
    Original,
    PowerDevice,
    Reason,
    Sample,
    no_choice,
)

SLICE_S = 0.01
_MOST_SLICES = 200
_numbers = itertools.count()


def card_power_w(card: Card, memory_clock_mhz: int, sm_clock_mhz: float, busy: float) -> float:
    """Power at the thermal reference of a card that works a share `busy` of the time: all multiprocessors, and half of
    the memory's rate, then."""
    switching = float(model.switching_ghz(card.voltage, sm_clock_mhz))
    working_w = card.busy_w_per_ghz * switching + 0.5 * card.memory_w[memory_clock_mhz]
    return float(model.idle_w(card, memory_clock_mhz, sm_clock_mhz)) + busy * working_w


class Simulated(PowerDevice):
    """One GPU that is not there. `busy`: the share of time that it computes, from 0 to 1, as its user says.

    now: the clock, for runs in a time of their own. power_w, sm_clock_mhz, temperature_c: the truth.
    """

    outlives_process = False

    def __init__(self, card: Card, seed: int = 0, now: Callable[[], float] = time.perf_counter) -> None:
        self.card, self._now = card, now
        self.spec = f"simulated:{card.name}"
        self.uuid = f"SIMULATED-{card.name}-{os.getpid()}-{next(_numbers)}"
        self._random = np.random.default_rng(seed)
        sensor = card.sensor
        self._sensor = model.Sensor(sensor.average_s, sensor.period_s, sensor.noise_w, seed)
        self._at_s = now()
        self._coming: list[tuple[float, str, int]] = []
        self._known: dict[tuple[int, int], tuple[float, float]] = {}
        self.busy = 0.0
        self.sm_clock_mhz = card.sustained_mhz
        self.memory_clock_mhz = card.memory_clocks_mhz[-1]
        self.limit_w = card.tdp_w
        self.energy_j = 0.0
        self.temperature_c = card.thermal.ambient_c
        self._throttled = False
        self._can = self._capabilities()

    def _capabilities(self) -> Capabilities:
        card = self.card
        one = no_choice(f"{card.title}, simulated", "memory", card.memory_clocks_mhz)
        cannot = [] if one is None else [one]
        return Capabilities(
            self.uuid,
            f"{card.title}, simulated",
            card.sm_clocks_mhz,
            card.memory_clocks_mhz,
            card.limit_w,
            card.tdp_w,
            frozenset(KNOBS) - {entry.what for entry in cannot},
            True,
            True,
            tuple(cannot),
        )

    def capabilities(self) -> Capabilities:
        """Those of the card; marked as simulated."""
        return self._can

    @property
    def power_w(self) -> float:
        """The truth, now."""
        return min(self.limit_w, self._power(self._clock()))

    def _power(self, sm_clock_mhz: int) -> float:
        key = (self.memory_clock_mhz, sm_clock_mhz)
        if key not in self._known:  # asked a hundred times a second
            idle_w = card_power_w(self.card, *key, busy=0.0)
            self._known[key] = idle_w, card_power_w(self.card, *key, busy=1.0) - idle_w
        idle_w, more_w = self._known[key]
        thermal = self.card.thermal
        growth = math.exp(thermal.leakage_per_k * (self.temperature_c - thermal.reference_c)) - 1.0
        return idle_w + self.busy * more_w + thermal.leakage_share * idle_w * growth

    def _clock(self) -> int:
        """In force: no higher than the power limit allows."""
        self._throttled = self._power(self.sm_clock_mhz) > self.limit_w
        if not self._throttled:
            return self.sm_clock_mhz
        clocks = [clock for clock in self.card.sm_clocks_mhz if clock <= self.sm_clock_mhz]
        return next((clock for clock in reversed(clocks) if self._power(clock) <= self.limit_w), clocks[0])

    def work(self, busy: float) -> None:
        """From now on the GPU computes this share of the time."""
        self.advance()
        self.busy = min(1.0, max(0.0, busy))

    def advance(self) -> None:
        """Let the truth catch up with the clock."""
        end_s = self._now()
        slice_s = max(SLICE_S, (end_s - self._at_s) / _MOST_SLICES)
        while self._at_s < end_s:
            until_s = min(end_s, self._at_s + slice_s, *(at_s for at_s, _, _ in self._coming if at_s > self._at_s))
            self._live(until_s - self._at_s)
            self._at_s = until_s
            for change in [c for c in self._coming if c[0] <= until_s]:
                self._coming.remove(change)
                self._take(change[1], change[2])

    def _live(self, seconds: float) -> None:
        power_w = self.power_w
        self.energy_j += power_w * seconds
        self.temperature_c = model.warmed(self.card.thermal, self.temperature_c, power_w, seconds)
        self._sensor.feed(power_w, seconds)

    def _take(self, knob: str, clock: int) -> None:
        if knob == "sm":
            self.sm_clock_mhz = clock
        else:
            self.memory_clock_mhz = clock

    def read(self) -> Sample:
        """What the card's sensor shows."""
        self.advance()
        clock = self._clock()
        return Sample(
            self._at_s,
            self._sensor.read(),
            self.energy_j,
            clock,
            self.memory_clock_mhz,
            round(self.temperature_c),
            self.limit_w,
            self.card.sensor.average_s,
            ("its power limit",) if self._throttled else (),
        )

    def original(self) -> Original:
        """As the driver has it."""
        return Original(self.card.tdp_w)

    def set_knob(self, knob: str, value: float | None) -> None:
        """In force after a transition; the limit at once."""
        self.advance()
        if knob == "limit":
            wanted_w = self.card.tdp_w if value is None else float(value)
            if not self.card.limit_w[0] <= wanted_w <= self.card.limit_w[1]:
                raise DeviceError(f"{self._can.name} takes no limit of {wanted_w:g} W", Reason.ARGUMENT)
            self.limit_w = wanted_w
            return
        clocks = self.card.sm_clocks_mhz if knob == "sm" else self.card.memory_clocks_mhz
        free = self.card.sustained_mhz if knob == "sm" else clocks[-1]
        clock = free if value is None else round(value)
        if clock not in clocks:
            raise DeviceError(f"{self._can.name} has no clock of {clock} MHz", Reason.ARGUMENT)
        took_s = model.transition_s(self.card.transition, float(self._random.standard_normal()))
        self._coming = [change for change in self._coming if change[1] != knob]
        self._coming.append((self._at_s + took_s, knob, clock))


def open_simulated(card: str) -> PowerDevice:
    """A card of the table. Errors: PowerError with those there are."""
    return Simulated(card_named(card))
