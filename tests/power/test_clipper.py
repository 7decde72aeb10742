"""Additive increase, multiplicative decrease: the sequences, step by step."""

from __future__ import annotations

import pytest

from mpcpipe.errors import PowerError
from mpcpipe.services.power.policies.clipper import Clipper, ClipperVariant
from mpcpipe.services.power.policies.slo_clock import SloClock
from mpcpipe.services.power.setting import Limits, Observation, Setting
from tests.power.serving_world import FAST, SLOW, scene

LIMITS = Limits(slo_s=0.1)


def seen(latency_s: float | None, **more: float) -> Observation:
    return Observation(time_s=0.0, setting=Setting(FAST, 1107, 1), latency_s=latency_s, **more)  # type: ignore[arg-type]


def sizes(policy: Clipper, latencies: list[float | None]) -> list[int]:
    return [policy.decide(seen(latency), LIMITS).batch for latency in latencies]


def test_clipper_adds_one_and_gives_up_a_tenth() -> None:
    in_time = [None] + [0.05] * 19
    assert sizes(Clipper(scene()), in_time) == list(range(1, 21))
    policy = Clipper(scene())
    sizes(policy, in_time)
    # 20 -> 18 -> 16.2 -> 14.4 -> 15, cut to whole requests.
    assert sizes(policy, [0.11, 0.2, 0.3, 0.1]) == [18, 16, 14, 15]
    assert policy.decide(seen(0.05), LIMITS).sm_clock_mhz is None  # the driver's


def test_clipper_does_not_wait_and_its_variant_does() -> None:
    observation = seen(None)
    assert Clipper(scene()).fill(observation, LIMITS, Setting()).until_s == observation.time_s
    assert ClipperVariant(scene()).fill(observation, LIMITS, Setting()).until_s is None


def test_the_variant_halves_backs_off_by_two_and_never_falls_below_one() -> None:
    policy = ClipperVariant(scene())
    assert sizes(policy, [None, 0.05, 0.05, 0.05, 0.095, 0.0951, 0.1, 0.05, 0.05]) == [1, 2, 3, 4, 5, 3, 1, 2, 3]
    assert sizes(policy, [0.11, 0.11, 0.11, 0.096]) == [1, 1, 1, 1]


def test_no_batch_beyond_the_largest() -> None:
    assert sizes(Clipper(scene(batches=(1, 2, 4))), [None] + [0.01] * 6)[-1] == 4


def test_a_policy_for_requests_needs_an_objective() -> None:
    with pytest.raises(PowerError, match="clipper needs a latency objective"):
        Clipper(scene()).decide(seen(None), Limits())


def test_the_lowest_clock_in_time_and_the_highest_after_a_violation() -> None:
    # exec(16) is 17 ms at 1200 MHz, 34 ms at 600 MHz. At 400 requests a second 16 take 40 ms, 8 of them 20 ms.
    policy = SloClock(scene(), batch=16, hold=2)
    calm = {"rate_per_s": 400.0, "queue": 0, "oldest_wait_s": 0.0}
    assert policy.decide(seen(None, **calm), Limits(slo_s=0.080)).sm_clock_mhz == SLOW  # 40 + 34 <= 80
    assert policy.decide(seen(0.05, **calm), Limits(slo_s=0.070)).sm_clock_mhz == FAST  # 40 + 34 > 70
    late = policy.decide(seen(0.081, **calm), Limits(slo_s=0.080))
    assert late.sm_clock_mhz == FAST
    assert policy.decide(seen(0.05, **calm), Limits(slo_s=0.080)).sm_clock_mhz == FAST  # held
    assert policy.decide(seen(0.05, **calm), Limits(slo_s=0.080)).sm_clock_mhz == SLOW


def test_its_batch_leaves_half_of_the_objective() -> None:
    # 400 a second: 0.5 * 100 ms are 20 requests, the next size below is 16.
    policy = SloClock(scene())
    assert policy.decide(seen(None, rate_per_s=400.0), LIMITS).batch == 16
