"""Simulated cards: power, heat, late clocks, a late sensor, and the driver's limit."""

from __future__ import annotations

import pytest

from mpcpipe.services.power.cards import CARDS
from mpcpipe.services.power.device import DeviceError
from mpcpipe.services.power.simulated import Simulated, card_power_w


class Time:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("name", sorted(CARDS))
def test_a_simulated_card_counts_what_it_draws(name: str) -> None:
    time, card = Time(), CARDS[name]
    device = Simulated(card, seed=1, now=time)
    assert device.capabilities().simulated and "simulated" in device.capabilities().name
    device.work(1.0)
    time.now_s = 100.0
    first = device.read()
    time.now_s = 101.0
    second = device.read()
    assert first.energy_j is not None and second.energy_j is not None
    assert second.energy_j - first.energy_j == pytest.approx(device.power_w, rel=0.01)
    assert device.power_w <= card.tdp_w + 1e-6
    assert second.power_w == pytest.approx(device.power_w, abs=5 * card.sensor.noise_w)


def test_the_sensor_is_late_and_a_clock_is_not_in_force_at_once() -> None:
    time, card = Time(), CARDS["rtx3080ti"]
    device = Simulated(card, seed=1, now=time)
    device.work(1.0)
    time.now_s = 60.0
    before = device.read()
    device.set_knob("sm", 600)
    assert device.read().sm_clock_mhz == before.sm_clock_mhz
    time.now_s = 60.9
    during = device.read()
    assert during.sm_clock_mhz == 600
    time.now_s = 63.0
    after = device.read()
    assert before.power_w is not None and during.power_w is not None and after.power_w is not None
    assert device.power_w < after.power_w + 5 * card.sensor.noise_w
    assert after.power_w + 20 < during.power_w < before.power_w, "a moving average over a second"


def test_a_power_limit_lowers_the_clock() -> None:
    time, card = Time(), CARDS["a100-40gb"]
    device = Simulated(card, now=time)
    device.work(1.0)
    limit_w = card.limit_w[0]
    device.set_knob("limit", limit_w)
    time.now_s = 5.0
    sample = device.read()
    assert sample.sm_clock_mhz is not None and sample.sm_clock_mhz < card.sustained_mhz
    assert device.power_w <= limit_w and sample.limited_by == ("its power limit",)
    with pytest.raises(DeviceError, match="takes no limit"):
        device.set_knob("limit", limit_w - 1)
    with pytest.raises(DeviceError, match="has no clock of 1001 MHz"):
        device.set_knob("sm", 1001)


def test_power_rises_with_clock_and_work() -> None:
    card = CARDS["a100-40gb"]
    by_clock = [card_power_w(card, 1215, clock, 1.0) for clock in card.sm_clocks_mhz]
    assert by_clock == sorted(by_clock)
    assert card_power_w(card, 1215, 1410, 0.5) < by_clock[-1]
