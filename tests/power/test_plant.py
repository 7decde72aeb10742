"""The simulated GPU, and how workers share it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpcpipe.errors import PowerError
from mpcpipe.services.power.cards import card_named
from mpcpipe.services.power.plant import RESTART_S, Plant
from mpcpipe.services.power.setting import Setting, Slice
from mpcpipe.services.power.sharing import Shared, Sharing, check_setting
from tests.power.worlds import quiet

CARD = card_named("rtx3080ti")
NOTHING = Sharing(launch_ms=0.0, active_w_per_ghz=0.0, large=0.0, small=0.0, slowdown=0.0)


def alone(memory: int, clock: float, batch: float) -> tuple[float, float]:
    """2 ms a request at 1 GHz; 100 W above idle at 9501 MHz."""
    return 2.0 * batch * 1000 / clock, 168.2 + 100.0


def test_perfect_halves_do_what_the_whole_does() -> None:
    shared = Shared(CARD, alone, NOTHING)
    whole = Setting(1005, 9501, 8)
    halves = replace(whole, partition=(Slice(50, 8), Slice(50, 8)))
    assert shared.throughput_per_s(halves) == pytest.approx(shared.throughput_per_s(whole))
    assert shared.exec_s(halves) == pytest.approx(2 * shared.exec_s(whole))
    assert shared.power_w(halves) == pytest.approx(shared.power_w(whole))


def test_launches_overlap_and_neighbours_slow_down() -> None:
    halves = Setting(1000, 9501, 8, (Slice(50, 8), Slice(50, 8)))
    # 8 ms of 16 are launches: (8 + 8 / 0.5) ms a batch for each of two.
    launches = Shared(CARD, alone, replace(NOTHING, launch_ms=8.0))
    assert launches.throughput_per_s(halves) == pytest.approx(2 * 8 / 0.024)
    slowed = Shared(CARD, alone, replace(NOTHING, slowdown=0.1))
    assert slowed.exec_s(halves) == pytest.approx(2 * 0.016 * 1.05)


def test_all_together_take_no_more_from_the_memory_than_it_has() -> None:
    shared = Shared(CARD, alone, replace(NOTHING, launch_ms=12.0, memory_ms={9501: 2.0}))
    halves = Setting(1000, 9501, 8, (Slice(50, 8), Slice(50, 8)))
    assert shared.throughput_per_s(halves) == pytest.approx(1000 / 2.0)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (Setting(1234, 9501), r"Q chose an SM clock of 1234 MHz, which RTX 3080 Ti does not have; the nearest is 1230"),
        (Setting(1230, 9000), "a memory clock of 9000 MHz.*nearest is 9251"),
        (Setting(1230, 9501, 0), "a batch of 0"),
        (Setting(1230, 9501, 1, (Slice(60, 1), Slice(50, 1))), r"shares \[60, 50\]"),
        (Setting(1230, 9501, 1, (Slice(60, 1), Slice(40, 0))), r"batches \[1, 0\]"),
        (Setting(1230, 9501, power_limit_w=20.0), "power limit of 20 W; RTX 3080 Ti takes 100 to 350 W"),
    ],
)
def test_what_the_card_does_not_have_is_refused(setting: Setting, message: str) -> None:
    with pytest.raises(PowerError, match=message):
        check_setting(CARD, setting, "Q")


def plant(setting: Setting | None = None) -> Plant:
    world = quiet()
    return Plant(world.card, world.truth(0), setting or Setting(1230, 9501, 16))


def test_energy_is_power_times_time_and_the_sensor_follows_the_truth() -> None:
    gpu = plant()
    energy = 0.0
    for _ in range(50):
        gpu.saturated(0.1)
        energy += gpu.power_w * 0.1
    assert gpu.energy_j == pytest.approx(energy)
    assert gpu.read().power_w == pytest.approx(gpu.power_w, rel=0.01)
    assert gpu.time_s == pytest.approx(5.0)


def test_a_clock_is_in_force_later_and_a_batch_at_once() -> None:
    gpu = plant()
    gpu.apply(Setting(810, 5001, 64))
    assert gpu.read().sm_clock_mhz == 1230
    gpu.saturated(0.005)
    assert gpu.read().sm_clock_mhz == 1230
    gpu.saturated(0.1)
    assert (gpu.read().sm_clock_mhz, gpu.read().memory_clock_mhz) == (810, 5001)
    assert gpu.changes == 1


def test_clocks_that_are_taken_back_before_they_are_in_force_never_are() -> None:
    gpu = plant()
    gpu.apply(Setting(810, 9501, 16))
    gpu.apply(Setting(1230, 9501, 16))
    gpu.saturated(1.0)
    assert gpu.read().sm_clock_mhz == 1230


def test_workers_whose_share_changes_start_anew() -> None:
    gpu = plant()
    gpu.apply(Setting(1230, 9501, 16, (Slice(50, 16), Slice(50, 16))))
    assert gpu.saturated(RESTART_S) == 0.0
    assert gpu.saturated(1.0) > 0.0


def test_the_driver_keeps_a_power_limit_by_its_clock() -> None:
    gpu = plant(Setting(None, None, 64, power_limit_w=150.0))
    gpu.saturated(5.0)
    assert 140.0 < gpu.power_w <= 151.0
    free = plant(Setting(None, None, 64))
    free.saturated(5.0)
    assert free.power_w > 200.0


def test_what_is_above_the_cap_is_counted() -> None:
    gpu = plant(Setting(1950, 9501, 64))
    gpu.cap_w = 100.0
    gpu.saturated(2.0)
    assert gpu.over_s == pytest.approx(2.0)
    assert gpu.over_ws == pytest.approx(gpu.energy_j - 200.0)
