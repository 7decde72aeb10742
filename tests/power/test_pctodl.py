"""PctoDL's curve and controller by hand; its refinement; the controller that looks ahead; the oracle above all."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mpcpipe.services.power.partitioning import best_clocks
from mpcpipe.services.power.policies.oracle import Warm
from mpcpipe.services.power.policies.pctodl import PctoDL, PowerCurve
from mpcpipe.services.power.policies.refinement import Belief, believe, expected_improvement, normal_cdf
from mpcpipe.services.power.saturated import Outcome, Phase, replay
from mpcpipe.services.power.setting import Limits, Observation, Setting, Slice
from mpcpipe.services.power.sharing import Shared
from mpcpipe.services.registry import build
from tests.power.worlds import quiet

CURVE = PowerCurve(200.0, 1200.0, 80.0, 280.0, 1.3)


class Power:
    """80 W at 210 MHz, 280 W at 1950 MHz, and x^1.3 between them."""

    def power_w(self, setting: Setting) -> float:
        return 80.0 + 200.0 * (((setting.sm_clock_mhz or 0) - 210) / 1740) ** 1.3


def test_the_curve_finds_the_exponent_and_inverts_itself() -> None:
    curve = PowerCurve.of(Power(), Setting(), tuple(range(210, 1951, 15)))  # type: ignore[arg-type]
    assert curve.gamma == pytest.approx(1.3)
    for clock in (210, 500, 1111, 1950):
        power = Power().power_w(Setting(clock))
        assert curve.clock_at(power) == pytest.approx(clock, abs=1e-6)
    assert curve.clock_at(1e4) == 1950
    assert curve.clock_at(0.0) == 210


def test_its_slope_is_the_derivative() -> None:
    def power(f: float) -> float:
        return 80.0 + 200.0 * ((f - 200.0) / 1000.0) ** 1.3

    assert CURVE.slope(700.0) == pytest.approx((power(700.5) - power(699.5)), rel=1e-5)


@pytest.fixture
def policy() -> PctoDL:
    found = build("pctodl", quiet().scene(0))
    assert isinstance(found, PctoDL)
    return found


@pytest.mark.parametrize("power_w", [150.0, 185.0, 221.0, 260.0])
def test_far_from_the_cap_the_step_is_newtons(policy: PctoDL, power_w: float) -> None:
    error = 200.0 - power_w
    wanted = 700.0 + max(-300.0, min(300.0, 0.8 * error / CURVE.slope(700.0)))
    assert policy.stepped(power_w, 200.0, 700.0, CURVE) == policy.scene.nearest_sm(wanted)


def test_near_the_cap_it_goes_one_step_and_never_up_above_it(policy: PctoDL) -> None:
    assert policy.stepped(196.0, 200.0, 705.0, CURVE) == 720
    assert policy.stepped(204.0, 200.0, 705.0, CURVE) == 690
    assert policy.stepped(400.0, 200.0, 210.0, CURVE) == 210


def test_a_new_cap_is_met_by_the_curve_at_once_and_keeps_the_shares(policy: PctoDL) -> None:
    start = policy.scene.start
    first = policy.decide(Observation(0.0, start), Limits(cap_w=230.0))
    second = policy.decide(Observation(3.0, first, power_w=228.0), Limits(cap_w=150.0))
    predicted = policy.scene.known().power_w(second)
    assert predicted == pytest.approx(150.0, rel=0.05)
    assert (second.sm_clock_mhz, second.memory_clock_mhz) != (first.sm_clock_mhz, first.memory_clock_mhz)


def test_between_two_decisions_a_cap_that_is_exceeded_lowers_the_clock(policy: PctoDL) -> None:
    start = policy.scene.start
    first = policy.react(Observation(0.1, start, power_w=300.0), Limits(cap_w=180.0))
    assert first is not None and policy.scene.known().power_w(first) <= 180.0, "a new cap does not wait"
    at = Observation(0.9, first, power_mean_w=180.5)
    assert policy.react(at, Limits(cap_w=180.0)) is None, "near enough until the next decision"
    assert policy.react(replace(at, power_mean_w=None), Limits(cap_w=180.0)) is None
    lower = policy.react(replace(at, power_mean_w=189.0), Limits(cap_w=180.0))
    assert lower is not None and policy.curve is not None
    by_hand = (first.sm_clock_mhz or 0) - (189.0 - 0.97 * 180.0) / policy.curve.slope(first.sm_clock_mhz or 0)
    assert lower == replace(first, sm_clock_mhz=policy.scene.nearest_sm(by_hand))
    waits = PctoDL(policy.scene, at_once=False)
    assert waits.react(Observation(0.1, start, power_w=300.0), Limits(cap_w=180.0)) is None


def test_shares_that_are_given_stay_and_have_the_best_batches() -> None:
    """Against all pairs of batches: no other one does more under the cap."""
    scene = quiet().scene(0)
    given = PctoDL(scene, shares=[70, 30])
    room = given.room(Limits(cap_w=150.0))
    planned = given.plan(Limits(cap_w=150.0))
    assert [worker.percent for worker in planned.workers] == [70, 30]
    pairs = [(Slice(70, a), Slice(30, b)) for a in room.batches for b in room.batches]
    rates = [found[0] for found in (best_clocks(room, pair) for pair in pairs) if found]
    assert room.predictor.throughput_per_s(planned) == pytest.approx(max(rates))


@pytest.mark.parametrize("name", ["pctodl", "receding-horizon"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_cap_is_exceeded_for_a_second(name: str, seed: int) -> None:
    followed = run(name, Phase(230.0, 21.0), Phase(130.0, 21.0), Phase(180.0, 21.0), seed=seed)
    assert all(phase.longest_over_s < 1.0 for phase in followed.phases), followed.phases


def test_expected_improvement_is_the_mean_of_what_is_gained() -> None:
    belief = Belief(np.array([1.0, 0.2]), np.array([0.5, 2.0]))
    z = np.linspace(-8, 8, 200001)
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    for i in range(2):
        gain = np.maximum(0.0, belief.mean[i] + belief.deviation[i] * z - 0.7)
        assert expected_improvement(belief, 0.7)[i] == pytest.approx(
            float(np.sum(gain * density) * (z[1] - z[0])), rel=1e-4
        )
    assert normal_cdf(np.array([0.0, 1.959964]))[1] == pytest.approx(0.975, abs=1e-6)


def test_beliefs_follow_what_was_seen_and_are_unsure_far_away() -> None:
    inputs, scale = np.array([[0.0], [1.0], [2.0]]), np.array([1.0])
    belief = believe(inputs, np.array([1.0, 3.0, 2.0]), np.array([[1.0], [50.0]]), scale)
    assert belief.mean[0] == pytest.approx(3.0, abs=0.02)
    assert belief.mean[1] == pytest.approx(2.0, abs=1e-6)  # the mean of all
    assert belief.deviation[0] < 0.1 < belief.deviation[1]


def run(name: str, *phases: Phase, seed: int = 0, wrong: float = 0.0) -> Outcome:
    """On the quiet world. wrong: by how much a policy believes that neighbours slow a worker down; 0 for the truth."""
    world = quiet()
    at = world.scene(seed)
    truth = world.truth(seed)
    if wrong:
        believed = replace(world.predictor.sharing, slowdown=wrong, launch_ms=0.0)
        at = replace(at, predictor=Shared(world.card, world.learned.alone, believed))
    told = at if name == "oracle" else replace(at, truth=None)
    return replay(build(name, told), at, truth, phases)


def test_the_oracle_is_above_every_policy_that_keeps_the_cap() -> None:
    for cap_w in (130.0, 200.0):
        world = quiet()
        warm = Warm(world.truth(0), world.card)
        best = warm.throughput_per_s(run("oracle", Phase(cap_w, 30.0)).last)
        for name in ("static", "power-limit", "knee", "dvfs", "batch-dvfs", "batch-dvfs-variant", "morak", "pctodl",
                     "receding-horizon"):  # fmt: skip
            last = run(name, Phase(cap_w, 60.0)).last
            if last.sm_clock_mhz is not None and warm.power_w(last) <= cap_w:
                assert warm.throughput_per_s(last) <= best * 1.0001, (name, cap_w, last)


def test_pctodl_does_more_than_what_it_is_compared_with_and_keeps_the_cap() -> None:
    ours = run("pctodl", Phase(150.0, 120.0))
    for name in ("batch-dvfs", "batch-dvfs-variant", "morak", "dvfs"):
        assert ours.throughput_per_s > run(name, Phase(150.0, 120.0)).throughput_per_s
    assert ours.phases[0].mean_power_w <= 150.0


def test_looking_ahead_settles_and_breaks_caps_less_than_stepping_does() -> None:
    steps = Phase(230.0, 60.0), Phase(130.0, 60.0), Phase(180.0, 60.0)
    ahead, stepping = run("receding-horizon", *steps), run("pctodl", *steps)
    assert sum(p.overshoot_ws for p in ahead.phases) < sum(p.overshoot_ws for p in stepping.phases)
    assert ahead.changes < stepping.changes / 2
    assert all(p.over_s <= 4.0 for p in ahead.phases)
    assert ahead.throughput_per_s > 0.95 * stepping.throughput_per_s


def test_refinement_finds_a_better_plan_where_the_model_of_sharing_is_wrong() -> None:
    # Who believes that neighbours slow a worker down to a half leaves the GPU to one worker, with a batch for that.
    wrong = run("pctodl", Phase(150.0, 240.0), wrong=1.0)
    refined = run("pctodl-refined", Phase(150.0, 240.0), wrong=1.0)
    assert refined.throughput_per_s > 1.1 * wrong.throughput_per_s
    assert refined.phases[0].mean_power_w <= 1.01 * 150.0
