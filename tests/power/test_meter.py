"""Joules of windows, from counters and from samples; what is not known is None."""

from __future__ import annotations

import pytest

from mpcpipe.services.power.device import Sample
from mpcpipe.services.power.meter import COUNTER, SAMPLED, Meter


def filled(power_w: float | None, counts: bool, until_s: float = 10.0, every_s: float = 0.1) -> Meter:
    """Readings at constant power (200 W where none is shown)."""
    meter = Meter()
    for k in range(round(until_s / every_s) + 1):
        at_s = k * every_s
        meter.add(Sample(at_s, power_w, 1000.0 + 200.0 * at_s if counts else None))
    return meter


def test_a_counter_is_read_at_the_windows_ends() -> None:
    energy = filled(150.0, counts=True).energy(2.03, 5.08)
    assert energy.joules == pytest.approx(200.0 * 3.05)
    assert (energy.how, energy.mean_w) == (COUNTER, pytest.approx(200.0))


def test_a_short_step_gets_its_share_of_half_a_second() -> None:
    """A counter that jumps every 0.1 s says nothing about 20 ms; half a second around them does."""
    meter = Meter()
    for k in range(101):
        meter.add(Sample(k * 0.02, None, 20.0 * (k // 5)))
    energy = meter.energy(1.00, 1.02)
    assert energy.how == COUNTER
    assert energy.joules == pytest.approx(200.0 * 0.02, rel=0.35)


def test_without_a_counter_the_power_is_summed_up_and_labelled() -> None:
    meter = Meter()
    for k in range(11):
        meter.add(Sample(k * 0.5, 100.0 + 10.0 * k))
    energy = meter.energy(1.0, 4.0)
    assert energy.joules == pytest.approx((120.0 + 180.0) / 2 * 3.0)
    assert energy.how == SAMPLED


def test_what_is_not_known_is_none() -> None:
    nothing = filled(None, counts=False).energy(1.0, 2.0)
    assert (nothing.joules, nothing.how, nothing.mean_w) == (None, None, None)
    assert Meter().energy(0.0, 1.0).joules is None
    late = filled(100.0, counts=False, until_s=3.0).energy(2.0, 6.0)
    assert late.joules is None, "nobody looked for three seconds"
    gap = Meter()
    for at_s in (0.0, 0.1, 5.0, 5.1):
        gap.add(Sample(at_s, 100.0))
    assert gap.energy(0.0, 5.1).joules is None


def test_a_driver_that_was_loaded_anew_begins_at_zero() -> None:
    """A counter that falls is no counter: the samples have to do, and there are none."""
    meter = Meter()
    for k in range(20):
        meter.add(Sample(k * 0.1, None, 500.0 + k if k < 10 else float(k)))
    assert meter.energy(0.2, 1.5).joules is None


def test_old_readings_are_forgotten() -> None:
    meter = Meter(kept_s=1.0)
    for k in range(1000):
        meter.add(Sample(k * 0.1, 100.0))
    assert len(meter._samples) <= 25
    assert meter.energy(99.0, 99.5).joules == pytest.approx(50.0)
