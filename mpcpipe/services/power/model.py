"""The physics of a GPU's power: voltage, idle and busy power, latency, heat, clock changes, and the sensor.

    clock ──> voltage ──> power ──> heat ──> leakage ──> power (truth) ──> sensor ──> what a policy sees
      └────> latency ──> utilisation ──┘

All functions take numbers or numpy arrays. Clocks in MHz, power in watts, time in seconds, temperature in Celsius.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpcpipe.services.power.cards import Card, Thermal, Transition, Voltage

Number = Any
"""A float or an array of floats; what comes out has the shape of what went in."""

_SOFT_MHZ = 40.0


def voltage(curve: Voltage, sm_clock_mhz: Number) -> Number:
    """V(f) relative to its flat part: 1 + slope * softplus(f - knee).

    Source: PctoDL's and GREENDLS's published measurements, refitted (docs/power.md).
    """
    x = (np.asarray(sm_clock_mhz, dtype=float) - curve.knee_mhz) / _SOFT_MHZ
    return 1.0 + curve.slope_per_ghz * _SOFT_MHZ * np.logaddexp(0.0, x) / 1000.0


def switching_ghz(curve: Voltage, sm_clock_mhz: Number) -> Number:
    """V^2 f in GHz: what the power of switching grows with."""
    return voltage(curve, sm_clock_mhz) ** 2 * np.asarray(sm_clock_mhz, dtype=float) / 1000.0


def idle_w(card: Card, memory_clock_mhz: int, sm_clock_mhz: Number) -> Number:
    """Power with locked clocks and nothing to do, at the thermal reference."""
    cubic, square, linear = card.idle_rise_w

    def rise(f: Number) -> Number:
        return cubic * f**3 + square * f**2 + linear * f

    f = np.asarray(sm_clock_mhz, dtype=float)
    return card.idle_w[memory_clock_mhz] + np.maximum(0.0, rise(f) - rise(float(card.sm_clocks_mhz[0])))


def leakage_w(thermal: Thermal, idle_power_w: Number, temperature_c: Number) -> Number:
    """What the temperature adds to (or takes from) the power at the reference temperature."""
    growth = np.exp(thermal.leakage_per_k * (np.asarray(temperature_c) - thermal.reference_c)) - 1.0
    return thermal.leakage_share * idle_power_w * growth


def warmed(thermal: Thermal, temperature_c: float, power_w: float, dt_s: float) -> float:
    """The temperature after dt_s at constant power: exact, so any dt_s will do."""
    target = thermal.ambient_c + thermal.resistance_k_per_w * power_w
    return target + (temperature_c - target) * math.exp(-dt_s / thermal.tau_s)


def transition_s(transition: Transition, normal: float) -> float:
    """Seconds until a new clock is in force, for a standard normal draw: lognormal, besides the call."""
    sigma = math.log(transition.p99_s / transition.median_s) / 2.3263478740408408
    return transition.call_s + transition.median_s * math.exp(sigma * normal)


@dataclass(frozen=True)
class Roofline:
    """Latency of a batch: a smooth maximum of computing and memory, beside what no clock changes.

    launch_ms: constant. per_item_ms: of a request, whatever the clock. fixed_cycles: in ms at 1 GHz. item_cycles:
    ms GHz a request. overlap: 1 adds computing and memory, infinity is their maximum. memory_ms: a request, by memory
    clock. sustained_mhz: a higher clock than this changes nothing.
    """

    launch_ms: float
    per_item_ms: float
    fixed_cycles: float
    item_cycles: float
    overlap: float
    memory_ms: dict[int, float]
    sustained_mhz: float

    def exec_ms(self, memory_clock_mhz: int, sm_clock_mhz: Number, batch: Number) -> Number:
        """Milliseconds for a batch."""
        return (
            self.launch_ms
            + self.per_item_ms * np.asarray(batch)
            + self._gpu_ms(self.compute_ms(sm_clock_mhz, batch), self.memory_ms[memory_clock_mhz] * np.asarray(batch))
        )

    def compute_ms(self, sm_clock_mhz: Number, batch: Number) -> Number:
        """The part that goes with the SM clock."""
        f = np.minimum(np.asarray(sm_clock_mhz, dtype=float), self.sustained_mhz)
        return (self.fixed_cycles + self.item_cycles * np.asarray(batch)) * 1000.0 / f

    def _gpu_ms(self, compute: Number, memory: Number) -> Number:
        # Scaled by the larger, so that a power of a large overlap neither overflows nor vanishes.
        top = np.maximum(compute, memory)
        low = np.minimum(compute, memory)
        return top * (1.0 + (low / top) ** self.overlap) ** (1.0 / self.overlap)


class Sensor:
    """What the card reports: a moving average of the truth, renewed now and then, with noise; apart from the truth."""

    def __init__(self, average_s: float, period_s: float, noise_w: float, seed: int) -> None:
        self.average_s, self.period_s, self.noise_w = average_s, period_s, noise_w
        self._random = np.random.default_rng(seed)
        self._pieces: list[tuple[float, float]] = []
        self._since_s = math.inf
        self._shown: float | None = None

    def feed(self, power_w: float, dt_s: float) -> None:
        """The truth was power_w for dt_s."""
        self._pieces.append((power_w, dt_s))
        self._since_s += dt_s
        kept, left = [], self.average_s
        for power, length in reversed(self._pieces):
            if left <= 0:
                break
            kept.append((power, min(length, left)))
            left -= length
        self._pieces = kept[::-1]
        if self._since_s >= self.period_s:
            total = sum(length for _, length in self._pieces)
            mean = sum(power * length for power, length in self._pieces) / total
            self._shown = max(0.0, mean + self.noise_w * float(self._random.standard_normal()))
            self._since_s = 0.0

    def read(self) -> float | None:
        """Watts as shown; None before anything was measured."""
        return self._shown
