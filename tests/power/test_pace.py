"""Which clock is kept, of steps whose length at each clock is known: with scatter, and where the network changes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from mpcpipe.services.power.pace import LONGER, MOST, NEAR, PROMISED, Pace

CLOCKS = tuple(range(210, 1411, 15))
FULL = CLOCKS[-1]


def steps(pace: Pace, count: int, length_s: Callable[[int], float], scatter: float = 0.0, seed: int = 0) -> list[int]:
    """Run steps at the clock that the pace says; every clock that it said. A step: one that is at most `scatter` longer
    in most cases, and three times as long now and then."""
    draw, said, clock = random.Random(seed), [], FULL
    for number in range(count):
        noise = abs(draw.gauss(0.0, scatter)) + (2.0 if scatter and number % 29 == 7 else 0.0)
        pace.add(clock, length_s(clock) * (1 + noise))
        clock = pace.clock(FULL, 690, CLOCKS, lambda: 1200, 0.0)
        said.append(clock)
    return said


def bent(clock: int, at_mhz: int = 900, steep: float = 1.0) -> float:
    """The line decides down to a clock; below it computing does."""
    return 1.0 + steep * max(0.0, at_mhz / clock - 1)


@pytest.mark.parametrize("scatter", [0.0, 0.01])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_finds_the_lowest_clock_that_is_on_time(scatter: float, seed: int) -> None:
    pace = Pace()
    kept = steps(pace, 600, bent, scatter, seed)[-1]
    assert not pace.searching
    assert bent(kept) <= 1 + PROMISED + scatter / 10
    lowest = min(clock for clock in CLOCKS if bent(clock) <= 1 + LONGER)
    assert kept <= (1 + (3 if scatter else 1.5) * NEAR) * lowest


def test_no_lower_than_of_use_and_no_lower_where_steps_get_longer_at_once() -> None:
    assert steps(Pace(), 200, lambda clock: 1.0)[-1] < 690 / (1 - NEAR)
    assert steps(Pace(), 200, lambda clock: FULL / clock)[-1] == FULL


def test_a_clock_that_is_late_later_on_goes_up_and_comes_back() -> None:
    """Another tenant's traffic makes every step a fifth longer for a while: no clock of ours mends that."""
    pace = Pace()
    first = steps(pace, 300, bent)[-1]
    said = steps(pace, 600, lambda clock: 1.2 * bent(clock))
    assert max(said) == FULL, "the base is timed again"
    assert abs(said[-1] - first) <= 2 * NEAR * first, "and the same clock is right for it"
    back = steps(pace, 3000, bent)
    assert back[-1] < 1000 and bent(back[-1]) <= 1 + PROMISED, "the network is as it was: so is the target"


def test_a_faster_network_shows_only_at_the_full_clock() -> None:
    """The step could be half as long, but not at the clock that is kept: the base is timed again after many steps."""
    pace = Pace()
    kept = steps(pace, 300, lambda clock: max(1.0, 700 / clock))[-1]
    assert kept < 720
    now = steps(pace, 4000, lambda clock: max(0.5, 700 / clock))[-1]
    assert max(0.5, 700 / now) <= (1 + PROMISED) * 0.5


def test_a_later_target_lowers_the_clock_at_once() -> None:
    pace = Pace()
    said = steps(pace, 100, lambda clock: FULL / clock)
    assert said[-1] == FULL
    for _ in range(100):
        pace.add(said[-1], FULL / said[-1])
        said.append(pace.clock(FULL, 210, CLOCKS, lambda: 1000, 1.5))
    assert 940 <= said[-1] <= 970


def test_scatter_does_not_promise_slack_that_is_not_there() -> None:
    """Steps are half as long again, on average: what cannot be told is not risked."""
    said = steps(Pace(), 3 * MOST, bent, 0.5)
    assert bent(said[-1]) <= 1.05
