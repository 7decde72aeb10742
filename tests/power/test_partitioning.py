"""Clocks under a cap by bisection, and partitions by greed, against trying everything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpcpipe.errors import PowerError
from mpcpipe.services.power.partitioning import Room, best_clocks, equal, exhaustive, greedy, highest_clock, neighbours
from mpcpipe.services.power.setting import Setting, Slice
from tests.power.worlds import Simple

CLOCKS = tuple(range(210, 1411, 15))


def room(cap_w: float, batches: tuple[int, ...] = (8, 32), workers: int = 2, slo_s: float | None = None) -> Room:
    return Room(Simple(), CLOCKS, (1, 2), batches, cap_w, slo_s, workers)


@pytest.mark.parametrize("cap_w", [45.0, 60.0, 75.5, 100.0, 133.3, 174.0, 500.0])
def test_bisection_finds_what_trying_every_clock_finds(cap_w: float) -> None:
    for workers in ((Slice(100, 8),), (Slice(50, 8), Slice(50, 32))):
        start = Setting(None, 1, 8, workers)
        fits = [f for f in CLOCKS if Simple().power_w(replace(start, sm_clock_mhz=f)) <= cap_w]
        found = highest_clock(room(cap_w), start)
        assert (None if found is None else found.sm_clock_mhz) == max(fits, default=None)


def test_the_better_memory_clock_is_taken_when_it_is_worth_its_power() -> None:
    # 1.5 times the rate for 30 W: not with 50 W to share, but with 150 W.
    low, high = (best_clocks(room(cap_w), (Slice(100, 8),)) for cap_w in (50.0, 150.0))
    assert low is not None and low[1].memory_clock_mhz == 1
    assert high is not None and high[1].memory_clock_mhz == 2


@pytest.mark.parametrize("cap_w", [60.0, 90.0, 140.0, 400.0])
def test_greed_keeps_the_cap_and_is_within_two_percent_of_trying_everything(cap_w: float) -> None:
    asked = room(cap_w)
    found, best = greedy(asked), exhaustive(asked, 2)
    rates = [asked.predictor.throughput_per_s(s) for s in (found, best)]
    assert asked.predictor.power_w(found) <= cap_w
    assert 0.98 * rates[1] <= rates[0] <= rates[1] * (1 + 1e-9)


def test_greed_keeps_the_latency_too() -> None:
    free, bound = greedy(room(200.0, (8, 32, 128))), greedy(room(200.0, (8, 32, 128), slo_s=0.03))
    assert Simple().exec_s(bound) <= 0.03 < Simple().exec_s(free)


def test_a_cap_below_the_lowest_clocks_says_what_they_take() -> None:
    # 20 W + 210 MHz / 10 * 1.1
    with pytest.raises(PowerError, match=r"cap of 40 W: the lowest clocks with batch 8 already take 43 W"):
        greedy(room(40.0))
    with pytest.raises(PowerError, match="already take 43 W"):
        exhaustive(room(40.0), 1)


def test_equal_shares_use_the_whole_gpu() -> None:
    assert [[w.percent for w in equal(n, 1)] for n in (1, 2, 3, 6)] == [
        [100],
        [50, 50],
        [35, 35, 30],
        [20, 20, 15, 15, 15, 15],
    ]


def test_a_neighbour_is_one_move_away() -> None:
    found = set(neighbours((Slice(60, 8), Slice(40, 32)), (8, 32)))
    assert found == {
        (Slice(60, 32), Slice(40, 32)),
        (Slice(60, 8), Slice(40, 8)),
        (Slice(55, 8), Slice(45, 32)),
        (Slice(65, 8), Slice(35, 32)),
    }
