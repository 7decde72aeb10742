"""GREENDLS's parts against what they must be: algebra, a small decision process solved by value iteration, formulas."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from mpcpipe.errors import PowerError
from mpcpipe.services.power.cards import card_named
from mpcpipe.services.power.greendls.actions import Actions
from mpcpipe.services.power.greendls.agent import Agent, Learning, corrected
from mpcpipe.services.power.greendls.network import DuelingNetwork, dueling, follow, targets
from mpcpipe.services.power.greendls.reward import guarded, published_reward, reward, state
from mpcpipe.services.power.greendls.train import Course, Progress, train
from mpcpipe.services.power.greendls.warm import Imagination
from mpcpipe.services.power.greendls.weights import load_policy, save_policy
from mpcpipe.services.power.policies.base import Scene
from mpcpipe.services.power.policies.tables import Table
from mpcpipe.services.power.requests import Rates
from mpcpipe.services.power.serving_plant import ServingPlant
from mpcpipe.services.power.setting import Limits, Observation, Setting
from mpcpipe.services.registry import build
from tests.power.serving_world import FAST, SLOW, Line, scene


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_dueling_is_value_and_advantage_without_its_mean() -> None:
    value, advantage = torch.tensor([[3.0], [-1.0]]), torch.tensor([[1.0, 2.0, 6.0], [0.0, 0.0, 0.0]])
    assert dueling(value, advantage).tolist() == [[1.0, 2.0, 6.0], [-1.0, -1.0, -1.0]]
    # The mean of Q is V, whatever the advantages are.
    torch.testing.assert_close(dueling(value, advantage + 7.5).mean(dim=1, keepdim=True), value)


def test_one_action_a_row_is_the_same_as_all_and_a_selection() -> None:
    network = DuelingNetwork(4, 30, 16, draw())
    states, actions = torch.rand(8, 4, generator=draw(1)), torch.arange(8) * 3
    chosen = network(states)[torch.arange(8), actions]
    torch.testing.assert_close(network.chosen(states, actions), chosen)
    found = torch.autograd.grad(network.chosen(states, actions).sum(), list(network.parameters()))
    wanted = torch.autograd.grad(chosen.sum(), list(network.parameters()))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_double_targets_choose_by_one_network_and_value_by_the_other() -> None:
    online, target = torch.tensor([[1.0, 2.0], [1.0, 2.0]]), torch.tensor([[5.0, 3.0], [5.0, 3.0]])
    rewards, ends = torch.tensor([1.0, 1.0]), torch.tensor([0.0, 1.0])
    assert targets(rewards, online, target, ends, 0.5, double=False).tolist() == [1 + 0.5 * 5, 1.0]
    assert targets(rewards, online, target, ends, 0.5, double=True).tolist() == [1 + 0.5 * 3, 1.0]


def test_following_moves_a_share_of_the_way() -> None:
    slow, fast = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    with torch.no_grad():
        slow.weight.fill_(0.0), slow.bias.fill_(2.0), fast.weight.fill_(1.0), fast.bias.fill_(4.0)
    follow(slow, fast, 0.05)
    assert slow.weight.item() == pytest.approx(0.05) and slow.bias.item() == pytest.approx(2.1)


# Three states, two actions, gamma 0.5; action 1 goes on to the next state, action 0 stays.
REWARDS = np.array([[0.0, 1.0], [2.0, 0.0], [0.5, 3.0]])
NEXT = np.array([[0, 1], [1, 2], [2, 0]])


def value_iteration(gamma: float) -> np.ndarray:
    values = np.zeros((3, 2))
    for _ in range(200):
        values = REWARDS + gamma * values.max(axis=1)[NEXT]
    return values


def test_tabular_targets_reach_value_iteration_single_and_double() -> None:
    wanted = torch.from_numpy(value_iteration(0.5))
    rewards, following = torch.from_numpy(REWARDS).reshape(-1), torch.from_numpy(NEXT).reshape(-1)
    for double in (False, True):
        q = torch.zeros(3, 2, dtype=torch.float64)
        for _ in range(100):
            q = targets(rewards, q[following], q[following], torch.zeros(6), 0.5, double).reshape(3, 2)
        torch.testing.assert_close(q, wanted)


def test_double_targets_do_not_overestimate_what_is_only_noise() -> None:
    # True values are all 0; the two networks' errors are independent. E max of 10 normals is 1.54, of one it is 0.
    noise = torch.randn(2, 4000, 10, generator=draw(5))
    zero = torch.zeros(4000)
    single = targets(zero, noise[0], noise[1], zero, 1.0, double=False).mean()
    double = targets(zero, noise[0], noise[1], zero, 1.0, double=True).mean()
    assert abs(float(single) - 1.5388) < 0.05 and abs(float(double)) < 0.08


@pytest.mark.parametrize("double", [False, True])
def test_the_agent_learns_a_small_decision_process(double: bool) -> None:
    learning = Learning(hidden=24, rate=3e-3, gamma=0.5, batch=32, steps=1500, double=double)
    agent = Agent(2, learning, seed=0)
    places = torch.eye(4)
    for _ in range(20):
        for here in range(3):
            for action in range(2):
                agent.memory.add(
                    places[here], action, float(REWARDS[here, action]), places[int(NEXT[here, action])], 0.0
                )
    for _ in range(900):
        agent.learn()
    with torch.no_grad():
        found = agent.online(places[:3]).numpy()
    assert np.abs(found - value_iteration(0.5)).max() < 0.1


def test_the_memory_forgets_the_oldest() -> None:
    agent = Agent(3, Learning(hidden=4, memory=3, steps=10), seed=0)
    for number in range(5):
        agent.memory.add(torch.full((4,), float(number)), number % 3, float(number), torch.zeros(4), 0.0)
    assert sorted(agent.memory.tensors()["rewards"].tolist()) == [2.0, 3.0, 4.0] and len(agent.memory) == 3


def test_exploration_falls_as_published() -> None:
    agent = Agent(3, Learning.published(), seed=0)
    assert agent.explore == 1.0
    agent.steps = 50_000
    assert agent.explore == pytest.approx(0.5)
    agent.steps = 99_000
    assert agent.explore == 0.05


def wide() -> Scene:
    card = card_named("rtx3080ti")
    clocks, memory = tuple(range(540, 2101, 60)), (405, 810, 5001, 9251, 9501)
    return Scene(card, clocks, memory, (1, 2, 4, 8, 16, 32, 64, 128, 256), Setting(1680, 9251, 1), Line())


def test_there_are_2430_actions_and_each_is_its_own() -> None:
    actions = Actions.of(wide())
    assert len(actions) == 5 * 27 * 18 == 2430
    assert all(actions.action(actions.setting(number)) == number for number in range(0, 2430, 7))
    assert len({actions.setting(number) for number in range(2430)}) == 2430
    assert Actions.from_text(actions.text()) == actions


def test_a_card_with_one_memory_clock_has_one_axis_less() -> None:
    assert len(Actions.of(scene())) == 1 * 2 * 18


def test_what_may_be_explored() -> None:
    actions, rate, slo = Actions.of(wide()), 100.0, 0.2  # 0.9 * 0.2 s are 18 requests
    published = actions.explorable(rate, slo, slow_memory=False)
    ours = actions.explorable(rate, slo, slow_memory=True)
    for number in range(len(actions)):
        setting = actions.setting(number)
        assert ours[number] == (setting.batch <= 18)
        assert published[number] == (setting.batch <= 18 and (setting.memory_clock_mhz or 0) > 5000)
    # A card whose only memory clock is slow must still be explorable, and so must the smallest batch at any rate.
    only = Actions.of(scene())
    assert only.explorable(0.1, slo, slow_memory=False).sum() == 2


def test_in_a_hurry_the_highest_clocks_and_all_that_waits() -> None:
    actions = Actions.of(wide())
    calm = actions.action(Setting(540, 405, 32))
    assert actions.hurry(calm, queue=13, age_s=0.10, exec_s=0.08, within_s=0.184) == calm
    hurried = actions.setting(actions.hurry(calm, queue=13, age_s=0.12, exec_s=0.08, within_s=0.184))
    assert hurried == Setting(2100, 9501, 12)
    assert actions.hurry(calm, queue=0, age_s=0.0, exec_s=0.3, within_s=0.184) == calm


def test_the_state_is_four_shares() -> None:
    seen = Observation(time_s=1.0, setting=Setting(), power_mean_w=70.0, exec_s=0.03, latency_s=0.18, rate_per_s=240.0)
    assert state(seen, 0.2, 350.0) == pytest.approx((0.2, 0.75, 0.15, 0.24))
    late = replace(seen, latency_s=1.0, exec_s=0.5)
    assert state(late, 0.2, 350.0)[1:3] == (1.0, 1.0)
    assert state(Observation(time_s=0.0, setting=Setting(), rate_per_s=50.0), 0.2, 350.0) == (0.1, 0.0, 0.0, 0.05)


def test_the_published_reward() -> None:
    # In time: 150 * 100 ms / 200 mJ. Late: 0.92 * 200 ms - 190 ms.
    assert published_reward(0.100, 0.200, 0.2) == pytest.approx(75.0)
    assert published_reward(0.190, 0.200, 0.2) == pytest.approx(-6.0)
    # Its quirk: for the same energy a longer delay is better.
    assert published_reward(0.150, 0.200, 0.2) > published_reward(0.100, 0.200, 0.2)


def test_our_reward_is_energy_in_time_and_a_fine_when_late() -> None:
    assert reward(0.05, 0.1, 0.4, 0.2) == reward(0.18, 0.1, 0.4, 0.2) == pytest.approx(-0.25)
    assert reward(0.204, 0.1, 0.4, 0.2) == pytest.approx(-0.25 - 1.0 - 0.1)
    assert reward(0.4, 0.1, 0.4, 0.2) == reward(9.0, 0.1, 0.4, 0.2)
    # No saving pays for a violation: all of the reference saved is worth 1.
    assert reward(0.2, 0.0, 0.4, 0.2) < reward(0.1, 0.4, 0.4, 0.2)


@pytest.mark.parametrize(
    ("batch", "queue", "age_s", "wanted"),
    [
        (10, 0, 0.0, 10),  # 1.2 * 10 / 100 = 0.12 s: below 0.92 * 0.2
        (16, 0, 0.0, 13),  # 0.192 s: between 0.184 and 0.2: int(0.85 * 16)
        (20, 0, 0.0, 1),  # 0.24 s: what is there, and no batch is empty
        (20, 7, 0.1, 7),  # 1.2 * (0.1 + 0.13) = 0.276 s: what is there
        (20, 7, 0.03, 17),  # 1.2 * (0.03 + 0.13) = 0.192 s: int(0.85 * 20)
        (1, 0, 0.16, 1),  # 0.204 s, and nothing is there
    ],
)
def test_the_guard(batch: int, queue: int, age_s: float, wanted: int) -> None:
    assert guarded(batch, queue, age_s, rate_per_s=100.0, slo_s=0.2) == wanted


def test_imagined_rewards_by_hand() -> None:
    table = Table.of(Line(), (1107,), (SLOW, FAST), (1, 10))
    imagined = Imagination(table, np.array([[10.0, 10.0]]), 0.5, 10.0, 0.2, 250.0)
    rewards = imagined.rewards(100.0, 0.0)
    # 10 requests at 1200 MHz: a cycle of 100 ms, 11 ms of it at 90 W beyond rest, nothing else: 0.099 J a request.
    # Done after 111 ms; the mean of ten arrivals varies by 31.6 ms, so 184 ms are 2.31 deviations away: 1.05 % late.
    assert rewards[3] == pytest.approx(-0.099 / 0.5 - 0.0105, abs=3e-4)
    # One at a time at 600 MHz: 4 ms of 10 ms at 50 W beyond rest.
    assert rewards[0] == pytest.approx(-0.2 / 0.5, abs=1e-6)
    assert imagined.state(100.0, 3) == pytest.approx((0.4, 0.5, 0.055, 0.1))


def course() -> Course:
    place = scene()
    return Course(place, lambda seed: ServingPlant(place.card, Line(), place.start, seed), Rates((50.0, 150.0)), 0.2)


SHORT = replace(corrected(steps=90), hidden=8, warm=20, batch=16)


def weights(agent: Agent) -> torch.Tensor:
    return torch.cat([value.reshape(-1) for value in agent.online.state_dict().values()])


def test_training_is_the_same_from_the_same_seed_and_goes_on_where_it_was(tmp_path: Path) -> None:
    whole, _ = train(course(), SHORT, 3, round_batches=30)
    again, _ = train(course(), SHORT, 3, round_batches=30)
    assert torch.equal(weights(whole), weights(again))
    other, _ = train(course(), SHORT, 4, round_batches=30)
    assert not torch.equal(weights(whole), weights(other))

    class Stop(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.steps == 60:
            raise Stop

    file = tmp_path / "training.safetensors"
    with pytest.raises(Stop):
        train(course(), SHORT, 3, file, stop, round_batches=30)
    resumed, _ = train(course(), SHORT, 3, file, round_batches=30)
    assert resumed.steps == 90 and torch.equal(weights(resumed), weights(whole))
    with pytest.raises(PowerError, match="checkpoint of another training: its seed is 3, not 4"):
        train(course(), SHORT, 4, file, round_batches=30)


def test_the_published_training_ends_an_episode_with_each_batch_in_time() -> None:
    agent, _ = train(course(), replace(Learning.published(steps=40), hidden=8), 0, round_batches=40)
    kept = agent.memory.tensors()
    in_time = kept["rewards"] >= 0
    assert torch.equal(kept["ends"] == 1.0, in_time) and in_time.any()
    ours, _ = train(course(), replace(SHORT, steps=40), 0, round_batches=40)
    assert not ours.memory.tensors()["ends"].any()


def test_a_policy_file_holds_weights_only_and_acts(tmp_path: Path) -> None:
    agent, actions = train(course(), SHORT, 0, round_batches=90)
    file = tmp_path / "agent.safetensors"
    save_policy(file, agent, actions, {"card": "v100s"})
    with safe_open(file, framework="pt") as kept:
        assert sorted(kept.keys()) == sorted(agent.online.state_dict()) and kept.metadata()["made"]
    network, read, _ = load_policy(file)
    assert read == actions
    torch.testing.assert_close(network.first.weight, agent.online.first.weight, atol=1e-3, rtol=1e-3)
    policy = build("greendls", scene(), weights=file)
    seen = Observation(time_s=0.0, setting=Setting(FAST, 1107, 1), rate_per_s=100.0, queue=1, oldest_wait_s=0.0)
    chosen = policy.decide(seen, Limits(slo_s=0.2))
    assert chosen.sm_clock_mhz in (SLOW, FAST) and chosen.batch <= 18


def test_weights_of_another_card_and_files_that_are_none(tmp_path: Path) -> None:
    agent, actions = train(course(), replace(SHORT, steps=5), 0)
    file = tmp_path / "agent.safetensors"
    save_policy(file, agent, actions, {})
    with pytest.raises(PowerError, match="trained for another card: it may choose a memory clock of 1107 MHz"):
        build("greendls", wide(), weights=file)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no weights")
    with pytest.raises(PowerError, match="cannot be read as an agent"):
        load_policy(broken)
    with pytest.raises(PowerError, match="cannot be read as an agent"):
        load_policy(tmp_path / "missing.safetensors")
    with pytest.raises(PowerError, match="greendls needs a trained agent"):
        build("greendls", scene())


def test_clocks_are_kept_unless_others_promise_clearly_more(tmp_path: Path) -> None:
    agent, actions = train(course(), replace(SHORT, steps=5), 0)
    with torch.no_grad():
        for value in agent.online.parameters():
            value.zero_()
        # All states alike: Q is the advantage's bias. The best action is (1200 MHz, 8); (600 MHz, 4) is 0.04 below.
        best, near = actions.action(Setting(FAST, 1107, 8)), actions.action(Setting(SLOW, 1107, 4))
        agent.online.advantage.bias[best], agent.online.advantage.bias[near] = 1.0, 0.96
    file = tmp_path / "agent.safetensors"
    save_policy(file, agent, actions, {})
    policy = build("greendls", scene(), weights=file)
    seen = Observation(time_s=0.0, setting=Setting(SLOW, 1107, 1), rate_per_s=100.0, queue=1, oldest_wait_s=0.0)
    assert policy.decide(seen, Limits(slo_s=0.2)) == Setting(SLOW, 1107, 4)
    assert policy.decide(replace(seen, setting=Setting(FAST, 1107, 1)), Limits(slo_s=0.2)) == Setting(FAST, 1107, 8)
