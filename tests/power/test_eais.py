"""EAIS against a search over everything; lookahead against an exhaustive minimum."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcpipe.services.power.policies.eais import Eais, EaisLlm, largest_batch, straight_line
from mpcpipe.services.power.policies.lookahead import Lookahead
from mpcpipe.services.power.setting import Limits, Observation, Setting
from tests.power.serving_world import FAST, SLOW, Line, scene


def seen(rate: float, queue: int, age: float, setting: Setting | None = None) -> Observation:
    return Observation(
        time_s=1.0, setting=setting or Setting(FAST, 1107, 1), rate_per_s=rate, queue=queue, oldest_wait_s=age
    )


def test_the_variant_for_a_language_model_keeps_nine_tenths_of_the_objective() -> None:
    """The same choice as for an objective that is so much shorter."""
    variant, plain = EaisLlm(scene()), Eais(scene())
    now = seen(200.0, 3, 0.01)
    assert variant.decide(now, Limits(slo_s=0.1)) == plain.decide(now, Limits(slo_s=0.09))
    assert variant.decide(now, Limits(slo_s=0.1)) != plain.decide(now, Limits(slo_s=0.1))


def test_the_line_of_a_line_is_itself() -> None:
    times = np.array([Line().exec_s(Setting(SLOW, 1107, batch)) for batch in (1, 4, 16)])
    slope, offset = straight_line((1, 4, 16), times)
    assert (slope, offset) == (pytest.approx(2e-3), pytest.approx(2e-3))


def test_the_largest_batch_by_hand() -> None:
    # 500 a second, SLO 0.12 s: at most int(500 * 0.1 + 10) = 60, then down by 4 until 1.2 (b - 10) / 500 + 2b ms + 2 ms
    # < 120 ms: b < 32.3; from 60 in steps of 4 that is 32.
    assert largest_batch((2e-3, 2e-3), 500.0, 10, 0.0, 0.12) == 32
    # Nothing is in time: 1.
    assert largest_batch((2e-3, 2e-3), 500.0, 10, 0.2, 0.12) == 1


@settings(max_examples=60, deadline=None)
@given(rate=st.floats(20, 900), queue=st.integers(0, 30), age=st.floats(0, 0.05), slo=st.floats(0.03, 0.3))
def test_eais_is_the_cheapest_of_each_clocks_largest(rate: float, queue: int, age: float, slo: float) -> None:
    policy = Eais(scene())
    found = policy.decide(seen(rate, queue, age), Limits(slo_s=slo))
    choices = []
    for clock, (slope, offset) in zip(policy.clocks, policy.lines, strict=True):
        top = int(rate * (slo / 1.2 - age) + queue)
        fits = [b for b in range(top, -1, -4) if 1.2 * (age + (b - queue) / rate) + slope * b + offset < slo]
        batch = min(max(fits[0] if fits else 1, 1), 64)
        # The energy of a request, straight between the sizes of the table.
        low = max(b for b in (1, 2, 4, 8, 16, 32, 64) if b <= batch)
        high = min(b for b in (1, 2, 4, 8, 16, 32, 64) if b >= batch)
        energies = [Line().power_w(Setting(clock)) * Line().exec_s(Setting(clock, 1107, b)) / b for b in (low, high)]
        part = (batch - low) / (high - low) if high > low else 0.0
        choices.append((energies[0] + part * (energies[1] - energies[0]), clock, batch))
    best = min(choices)
    assert best[0] == pytest.approx(policy.energy_j[policy.clocks.index(found.sm_clock_mhz or 0), found.batch - 1])
    if abs(choices[0][0] - choices[1][0]) > 1e-9:
        assert (found.sm_clock_mhz, found.batch) == best[1:]


@settings(max_examples=60, deadline=None)
@given(rate=st.floats(20, 400), queue=st.integers(0, 6), slo=st.floats(0.1, 0.3))
def test_lookahead_is_the_cheapest_cycle_in_time(rate: float, queue: int, slo: float) -> None:
    policy = Lookahead(scene())
    found = policy.decide(seen(rate, queue, 0.0, Setting(FAST, None, 1)), Limits(slo_s=slo))

    def cost(clock: int, batch: int) -> float:
        run, cycle = Line().exec_s(Setting(clock, 1107, batch)), batch / rate
        if max(0.0, (batch - queue) / rate) + run > 0.95 * slo or run > 0.9 * cycle:
            return float("inf")
        return (run * Line().power_w(Setting(clock)) + (cycle - run) * 10.0) / batch

    costs = {pair: cost(*pair) for pair in itertools.product((SLOW, FAST), policy.batches.tolist())}
    best = min(costs.values())
    if best < float("inf"):
        assert costs[found.sm_clock_mhz or 0, found.batch] == pytest.approx(best)
    else:
        assert found.sm_clock_mhz == FAST


def test_lookahead_keeps_clocks_that_are_nearly_as_good() -> None:
    policy = Lookahead(scene())
    policy.table.power_w[0, 0, :] = policy.table.power_w[0, 1, :] * 0.495  # 1 % less energy at 600 MHz, net of time
    policy.waiting_w[:] = 0.0
    kept = policy.decide(seen(100.0, 0, 0.0, Setting(FAST, 1107, 1)), Limits(slo_s=0.2))
    assert kept.sm_clock_mhz == FAST
    left = policy.decide(seen(100.0, 0, 0.0, Setting(SLOW, 1107, 1)), Limits(slo_s=0.2))
    assert left.sm_clock_mhz == SLOW


def test_a_batch_of_lookahead_starts_before_its_oldest_request_is_late() -> None:
    policy = Lookahead(scene())
    observation = seen(100.0, 3, 0.02)
    fill = policy.fill(observation, Limits(slo_s=0.2), Setting(FAST, 1107, 9))
    # The oldest came at 0.98 s; 95 % of 200 ms, less the 10 ms that the batch runs.
    assert fill.until_s == pytest.approx(0.98 + 0.19 - 0.010)
