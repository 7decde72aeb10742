"""Every policy with a step of its own, by hand; and all of them on every card."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpcpipe.errors import PowerError
from mpcpipe.services.power.policies.base import Scene
from mpcpipe.services.power.policies.batch_dvfs import BatchDvfs, DvfsOnly, ladder, levels
from mpcpipe.services.power.policies.morak import Morak
from mpcpipe.services.power.saturated import Phase, replay
from mpcpipe.services.power.setting import Limits, Observation, Setting
from mpcpipe.services.power.sharing import check_setting
from mpcpipe.services.registry import POLICIES, build, policy_named
from tests.power.worlds import quiet

CAP = Limits(cap_w=200.0)
UNDER_CAPS = (
    "static", "static-max", "power-limit", "knee", "dvfs", "batch-dvfs", "batch-dvfs-variant", "morak", "pctodl",
    "pctodl-refined", "receding-horizon", "oracle",
)  # fmt: skip


def scene() -> Scene:
    return replace(quiet().scene(0), start=Setting(1080, 9501, 1))


def seen(setting: Setting, power_w: float | None, exec_s: float | None = None) -> Observation:
    return Observation(0.0, setting, power_w=power_w, exec_s=exec_s)


def test_batch_dvfs_searches_the_batch_first_and_then_the_clock() -> None:
    policy = BatchDvfs(scene())
    now, batches = Setting(1080, 9501, 1), []
    for power in (100.0, 100.0, 100.0, 250.0, 250.0, 100.0, 170.0):
        now = policy.decide(seen(now, power), CAP)
        batches.append(now.batch)
    # Halves between 1 and 256 upwards; at 250 W down between 193 and 225, then between 1 and 193; 170 W is in the band.
    assert batches == [129, 193, 225, 209, 201, 205, 205]


def test_batch_dvfs_turns_to_the_clock_at_either_end_of_the_batch() -> None:
    policy = BatchDvfs(scene())
    assert policy.decide(seen(Setting(policy.clocks[4], 9501, 256), 100.0), CAP).sm_clock_mhz == policy.clocks[5]
    assert policy.decide(seen(Setting(policy.clocks[4], 9501, 1), 250.0), CAP).sm_clock_mhz == policy.clocks[3]
    assert policy.decide(seen(Setting(policy.clocks[0], 9501, 1), 250.0), CAP).sm_clock_mhz == policy.clocks[0]


def test_dvfs_goes_a_level_towards_the_cap_and_holds_near_it() -> None:
    policy, now = DvfsOnly(scene()), Setting(1050, 9501, 64)
    assert policy.decide(seen(now, 150.0), CAP).sm_clock_mhz == 1110
    assert policy.decide(seen(now, 201.0), CAP).sm_clock_mhz == 990
    assert policy.decide(seen(now, 195.0), CAP) == now
    assert policy.decide(seen(now, None), CAP) == now


def test_morak_shares_equally_and_steps_by_how_far_the_cap_is() -> None:
    policy = Morak(scene(), slo_s=0.1)
    rungs, clocks = policy.rungs, policy.scene.sm_clocks_mhz
    now = Setting(1080, 9501, rungs[5])
    far = policy.decide(seen(now, 130.0, 0.01), CAP)  # 35 % below: ten rungs
    assert far.batch == rungs[15]
    assert [w.percent for w in far.workers] == [50, 50]
    slow = policy.decide(seen(now, 185.0, 0.2), CAP)  # 7.5 % below and too late: two clocks
    assert slow.sm_clock_mhz == clocks[clocks.index(1080) + 2]
    above = policy.decide(seen(now, 225.0, 0.01), CAP)  # 12.5 % above, in time: five clocks down
    assert above.sm_clock_mhz == clocks[clocks.index(1080) - 5]
    late = policy.decide(seen(now, 225.0, 0.2), CAP)
    assert (late.sm_clock_mhz, late.batch) == (1080, rungs[0])
    assert policy.decide(seen(now, 198.0, 0.01), CAP).sm_clock_mhz == 1080


def test_a_power_limit_is_within_what_the_driver_takes() -> None:
    policy = build("power-limit", scene())
    limits = {cap: policy.decide(seen(Setting(), 1.0), Limits(cap_w=cap)).power_limit_w for cap in (50.0, 200.0, 900.0)}
    assert limits == {50.0: 100.0, 200.0: 200.0, 900.0: 350.0}


def test_the_knee_is_the_clock_below_the_rise_of_the_voltage_and_less_above_a_cap() -> None:
    policy = build("knee", scene())
    assert policy.decide(seen(Setting(1080, 9501, 1), 150.0), Limits()).sm_clock_mhz == 1080
    high = policy.decide(seen(Setting(1950, 9501, 1), 150.0), Limits())
    assert abs((high.sm_clock_mhz or 0) - 1458) <= 7.5
    assert (policy.decide(seen(high, 250.0), CAP).sm_clock_mhz or 0) < (high.sm_clock_mhz or 0)


def test_levels_and_ladders_keep_their_ends() -> None:
    assert levels(tuple(range(100)), 10) == (0, 11, 22, 33, 44, 55, 66, 77, 88, 99)
    assert levels((1, 2, 3)) == (1, 2, 3)
    found = ladder((1, 256))
    assert (found[0], found[-1]) == (1, 256)
    assert 18 <= len(found) <= 24


@pytest.mark.parametrize("card", ["rtx3080ti", "v100s", "dcu"])
@pytest.mark.parametrize("name", UNDER_CAPS)
def test_every_policy_chooses_clocks_that_the_card_has_also_with_one_memory_clock(name: str, card: str) -> None:
    world = quiet(card)
    cap = 0.5 * (world.card.limit_w[0] + world.card.limit_w[1])
    at = world.scene(0)
    policy = build(name, at)
    now = Observation(0.0, at.start)
    for power in (None, 0.5 * cap, 0.9 * cap, 1.3 * cap, 0.99 * cap):
        setting = policy.decide(
            replace(now, power_w=power, power_mean_w=power, throughput_per_s=100.0), Limits(cap_w=cap)
        )
        check_setting(world.card, setting, name)
        now = Observation(now.time_s + 3, setting, sm_clock_mhz=setting.sm_clock_mhz, temperature_c=50.0)


def test_a_policy_that_chooses_a_clock_that_is_not_there_is_named() -> None:
    world = quiet()
    at = world.scene(0)
    policy = build("static", at)
    policy.decide = lambda observation, limits: Setting(1001, 9501)  # type: ignore[method-assign]
    with pytest.raises(PowerError, match="static chose an SM clock of 1001 MHz"):
        replay(policy, at, world.truth(0), [Phase(200.0, 10.0)])


def test_an_unknown_policy_gets_the_nearest_and_the_list() -> None:
    with pytest.raises(PowerError, match=r"no policy 'pctdol'; did you mean 'pctodl'\? Known: .*oracle"):
        policy_named("pctdol")


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_name_in_the_list_leads_to_a_policy_of_that_name(name: str) -> None:
    assert policy_named(name).name == name


def test_policies_that_need_something_say_so() -> None:
    at = replace(scene(), truth=None, predictor=None)
    with pytest.raises(PowerError, match="pctodl works to a power cap, and none is given"):
        build("pctodl", scene()).decide(seen(Setting(), None), Limits())
    with pytest.raises(PowerError, match="needs a model of the network"):
        build("pctodl", at).decide(seen(Setting(), None), CAP)
    with pytest.raises(PowerError, match="looks at the truth"):
        build("oracle", at).decide(seen(Setting(), None), CAP)
