"""The physics against published check values, and against what follows from its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mpcpipe.errors import PowerError
from mpcpipe.services.power import model
from mpcpipe.services.power.cards import CARDS, Thermal, Transition, card_named


def test_voltage_of_the_3080_ti_as_published() -> None:
    curve = CARDS["rtx3080ti"].voltage
    assert float(model.voltage(curve, 1740)) == pytest.approx(1.35, abs=0.01)
    assert float(model.voltage(curve, 1950)) == pytest.approx(1.61, abs=0.01)
    assert float(model.voltage(curve, 540)) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("card", "memory", "published", "within"),
    [
        ("rtx3080ti", 9501, {210: 68.2, 600: 70.7, 1005: 69.2, 1395: 71.9, 1650: 79.8, 1950: 98.5}, 0.3),
        ("a100-40gb", 1215, {210: 28.5, 810: 29.3, 1010: 31.6, 1210: 37.5, 1410: 48.5}, 1.8),
    ],
)
def test_idle_power_with_locked_clocks_as_published(
    card: str, memory: int, published: dict[int, float], within: float
) -> None:
    for clock, watts in published.items():
        assert float(model.idle_w(CARDS[card], memory, clock)) == pytest.approx(watts, abs=within)


def test_power_of_the_v100s_as_published() -> None:
    # P = 19.7 + K V^2 f with K = 71.8 W/GHz for batches of 256.
    for clock, watts in {1597: 159, 1237: 110, 997: 92, 517: 55}.items():
        found = 19.7 + 71.8 * float(model.switching_ghz(CARDS["v100s"].voltage, clock))
        assert found == pytest.approx(watts, rel=0.04)


def test_heat_is_exact_for_any_step() -> None:
    thermal = Thermal(ambient_c=20.0, resistance_k_per_w=0.2, tau_s=50.0)
    after_tau = model.warmed(thermal, 20.0, 100.0, 50.0)
    assert after_tau == pytest.approx(20.0 + 20.0 * (1 - math.exp(-1)))
    halves = model.warmed(thermal, model.warmed(thermal, 20.0, 100.0, 25.0), 100.0, 25.0)
    assert halves == pytest.approx(after_tau)
    assert float(model.leakage_w(thermal, 60.0, thermal.reference_c)) == 0.0
    assert float(model.leakage_w(thermal, 60.0, thermal.reference_c + 10)) == pytest.approx(
        thermal.leakage_share * 60.0 * (math.exp(10 * thermal.leakage_per_k) - 1)
    )


def test_a_transition_has_the_median_and_the_99th_percentile_that_it_says() -> None:
    transition = Transition(call_s=0.0, median_s=0.02, p99_s=0.2)
    assert model.transition_s(transition, 0.0) == pytest.approx(0.02)
    assert model.transition_s(transition, 2.3263478740408408) == pytest.approx(0.2)


def test_a_roofline_adds_at_overlap_one_and_takes_the_larger_at_infinity() -> None:
    def ms(overlap: float) -> float:
        return float(model.Roofline(1.0, 0.1, 2.0, 0.5, overlap, {1: 0.3}, 1500.0).exec_ms(1, 1000.0, 10))

    computing, memory = 2.0 + 5.0, 3.0
    assert ms(1.0) == pytest.approx(1.0 + 1.0 + computing + memory)
    assert ms(200.0) == pytest.approx(1.0 + 1.0 + computing, rel=1e-6)
    above = model.Roofline(1.0, 0.1, 2.0, 0.5, 1.0, {1: 0.3}, 1500.0)
    assert float(above.exec_ms(1, 1500.0, 10)) == float(above.exec_ms(1, 2100.0, 10))


def test_the_sensor_shows_a_mean_of_the_last_second_and_nothing_before_it_measured() -> None:
    sensor = model.Sensor(average_s=1.0, period_s=0.1, noise_w=0.0, seed=0)
    assert sensor.read() is None
    for _ in range(20):
        sensor.feed(100.0, 0.1)
    assert sensor.read() == pytest.approx(100.0)
    for _ in range(5):
        sensor.feed(200.0, 0.1)
    assert sensor.read() == pytest.approx(150.0)


def test_an_unknown_card_gets_the_nearest() -> None:
    with pytest.raises(PowerError, match=r"no card 'a100-40'; did you mean 'a100-40gb'\?"):
        card_named("a100-40")
    with pytest.raises(PowerError, match=r"no card 'A100'; did you mean 'a100-40gb' or 'a100-80gb'\?"):
        card_named("A100")


def test_clocks_of_all_cards_rise_and_are_within_their_tables() -> None:
    for card in CARDS.values():
        assert list(card.sm_clocks_mhz) == sorted(set(card.sm_clocks_mhz))
        assert set(card.memory_clocks_mhz) == set(card.idle_w) == set(card.memory_w)
        idle = model.idle_w(card, card.memory_clocks_mhz[-1], np.array(card.sm_clocks_mhz, float))
        assert idle.min() > 0
        assert idle.max() < card.tdp_w
