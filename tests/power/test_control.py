"""The service's mind, in a time of its own: perseus on graphs, caps on a simulated card, policies that err."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mpcpipe.errors import PowerError
from mpcpipe.plan.schedule import build
from mpcpipe.runtime.record import Span
from mpcpipe.services.base import StepFacts
from mpcpipe.services.power.cap import memory_clock_for
from mpcpipe.services.power.cards import CARDS
from mpcpipe.services.power.clockplan import Curve, clocks_of_actions, clocks_of_gpus, fastest_s, step_energy_j
from mpcpipe.services.power.control import DWELL_S, MOST_MISTAKES, Control
from mpcpipe.services.power.guard import Guard
from mpcpipe.services.power.policies.base import Policy, Scene
from mpcpipe.services.power.policies.perseus import Perseus
from mpcpipe.services.power.setting import Limits, Observation, Setting
from mpcpipe.services.power.simulated import Simulated, card_power_w
from mpcpipe.services.power.stepgraph import Part, longest_s, step_graph
from mpcpipe.services.power.stepmodel import StepModel
from mpcpipe.services.registry import policy_named

CARD = CARDS["a100-40gb"]
SCHEDULE = build("1f1b", (1, 1), 2)


def spans(compute_s: float, wait_s: float, second_s: float | None = None) -> list[Span]:
    """A step of SCHEDULE: each action computes, then waits; the second stage may compute shorter."""
    out: list[Span] = []
    free = {"0.0": 0.0, "1.0": 0.0}
    done: dict[str, float] = {}
    order = ["0F0", "0F1", "1F0", "1B0", "1F1", "0B0", "1B1", "0B1", "0U", "1U"]
    needs = {"1F0": ["0F0"], "1F1": ["0F1"], "1B0": ["1F0"], "1B1": ["1F1"], "0B0": ["1B0"], "0B1": ["1B1"]}
    for action in order:
        worker = f"{action[0]}.0"
        begin = free[worker]
        ready = max([begin, *(done[need] for need in needs.get(action, []))])
        own_s = second_s if second_s is not None and action[0] == "1" else compute_s
        end = ready + own_s + wait_s
        out.append(Span(worker, action, begin, end, wait_s, ready - begin))
        free[worker] = done[action] = end
    return out


def test_the_graph_has_the_steps_own_length() -> None:
    found = spans(0.1, 0.03)
    parts = step_graph(SCHEDULE, found)
    assert longest_s(parts, lambda worker: 1.0) == pytest.approx(max(span.end_s for span in found))
    doubled = step_graph(SCHEDULE, spans(0.2, 0.03))
    assert longest_s(parts, lambda worker: 2.0) == pytest.approx(fastest_s(doubled))


def test_an_incomplete_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="1F0 needs 0F0"):
        step_graph(SCHEDULE, [span for span in spans(0.1, 0.0) if span.action != "0F0"])


def curve() -> Curve:
    return Curve(CARD, 1215, CARD.sm_clocks_mhz)


def test_slack_is_used_stage_by_stage() -> None:
    """The second stage has a third of the work: its GPU may be slow. The first one's path is critical."""
    parts = step_graph(SCHEDULE, spans(0.3, 0.0, second_s=0.1))
    clocks = clocks_of_gpus(parts, curve(), [0, 1], fastest_s(parts))
    assert longest_s(parts, lambda worker: curve().slower(clocks[worker])) <= fastest_s(parts) + 1e-9
    whole = {0: 1410, 1: 1410}
    assert step_energy_j(parts, curve(), clocks, [0, 1]) <= step_energy_j(parts, curve(), whole, [0, 1])


def test_no_slack_no_change() -> None:
    """One worker, one thing after another: everything is critical."""
    parts = [Part(f"p{k}", 0, 0.1, 0.05, (k - 1,) if k else ()) for k in range(5)]
    assert clocks_of_gpus(parts, curve(), [0], fastest_s(parts)) == {0: 1410}
    later = clocks_of_gpus(parts, curve(), [0], 2 * fastest_s(parts))
    assert later[0] < 1410


def test_actions_with_clocks_of_their_own_cost_no_time() -> None:
    parts = step_graph(SCHEDULE, spans(0.3, 0.05, second_s=0.2))
    clocks = clocks_of_actions(parts, curve(), fastest_s(parts))
    ends = [replace(part, compute_s=part.compute_s * curve().slower(clocks[part.name])) for part in parts]
    assert fastest_s(ends) <= 1.005 * fastest_s(parts)
    assert min(clocks.values()) < 1410 and max(clocks.values()) == 1410


# the policy in the control


def control(policy: Policy, limits: Limits, said: list[str], device: Simulated) -> Control:
    return Control(policy, limits, device.capabilities(), SCHEDULE, said.append, curve().busy_w)


def scene() -> Scene:
    return Scene(CARD, CARD.sm_clocks_mhz, CARD.memory_clocks_mhz, (1,), Setting())


def facts(step: int, now_s: float, own: Sequence[Span]) -> StepFacts:
    length = max(span.end_s for span in own)
    compute = sum(span.end_s - span.begin_s - span.wait_s - span.idle_s for span in own) / 2
    return StepFacts(step, 1, now_s - length, now_s, compute, 0.0, own)


class Bench:
    """A control, a guard and a simulated card in a time of their own, with steps like `spans`."""

    def __init__(self, policy: Policy, limits: Limits = Limits(), seed: int = 0) -> None:  # noqa: B008
        self.now_s = 0.0
        self.said: list[str] = []
        self.device = Simulated(CARD, seed, now=lambda: self.now_s)
        self.guard = Guard(self.device, self.said.append, now=lambda: self.now_s)
        self.control = control(policy, limits, self.said, self.device)
        self.above_s = 0.0
        self.longest_above_s = 0.0
        self._above_since_s: float | None = None

    def run(self, seconds: float, busy: float = 1.0, steps: Sequence[Span] | None = None) -> None:
        """Ticks of 0.1 s; the truth is looked at every 10 ms. Computing of the steps gets as slow as the clock is."""
        self.device.work(busy)
        end_s, step = self.now_s + seconds, 0
        while self.now_s < end_s:
            for _ in range(10):
                self.now_s += 0.01
                self.device.advance()
                self._compare()
            if steps is not None:
                step += 1
                slower = curve().slower(self.device.sm_clock_mhz)
                own = spans(0.05 * slower, 0.2) if steps is WAITING else list(steps)
                if steps in LINES:
                    compute_s = steps[0].end_s * slower
                    free_s = LINE_S - max(span.end_s for span in spans(compute_s, 0.0))
                    own = spans(compute_s, max(0.0, free_s / 6))
                self.control.step(facts(step, self.now_s, own))
            sample = self.guard.read()
            wanted = self.control.tick(self.now_s, sample)
            if wanted != self.guard.setting:
                self.guard.apply(wanted)

    def _compare(self) -> None:
        cap_w = self.control.limits.cap_w
        if cap_w is None or self.device.power_w <= cap_w:
            self._above_since_s = None
            return
        self._above_since_s = self.now_s - 0.01 if self._above_since_s is None else self._above_since_s
        self.above_s += 0.01
        self.longest_above_s = max(self.longest_above_s, self.now_s - self._above_since_s)


WAITING: list[Span] = []
"""Steps that mostly wait: made anew for the clock in force."""


LINE_S = 2.0
LINES: list[list[Span]] = [[Span("", "", 0.0, compute_s, 0.0, 0.0)] for compute_s in (0.03, 0.25)]
"""Steps that the line decides: an action computes for so long at full clocks, and waits for what is left of 2 s."""


@pytest.mark.parametrize("steps", LINES)
def test_slack_that_the_graph_does_not_see_is_found_by_trying(steps: list[Span]) -> None:
    """Down to the cheapest clock, or to the one from which on computing would decide, and then no further."""
    compute_s = steps[0].end_s
    bench = Bench(Perseus(scene()))
    bench.run(200.0, busy=0.1, steps=steps)
    found = bench.device.sm_clock_mhz
    longest = max(span.end_s for span in spans(compute_s, 0.0)) * curve().slower(found)
    assert longest <= 1.01 * LINE_S
    parts = step_graph(SCHEDULE, spans(compute_s, 0.01))
    joules = {clock: step_energy_j(parts, curve(), {0: clock}, [0, 0], LINE_S) for clock in CARD.sm_clocks_mhz}
    cheapest = min(joules, key=lambda clock: joules[clock])
    needed = 1410 * max(span.end_s for span in spans(compute_s, 0.0)) / LINE_S
    assert abs(found - max(cheapest, needed)) < 0.12 * found


@pytest.mark.parametrize("seed", range(5))
def test_a_cap_is_followed_within_a_second(seed: int) -> None:
    policy = Perseus(scene())
    bench = Bench(policy, Limits(cap_w=200.0), seed)
    bench.run(8.0)
    for cap_w in (130.0, 180.0, 100.0):
        bench.control.change_cap(cap_w)
        bench.run(8.0)
        assert bench.longest_above_s < 1.0
        assert bench.device.power_w > 0.8 * min(cap_w, card_power_w(CARD, 1215, 1410, 1.0)), "it is also used"


def test_a_wrong_model_is_corrected_by_the_sensor() -> None:
    """The card draws a third more than the model says, and no power limit can be set."""
    bench = Bench(Perseus(scene()), Limits(cap_w=150.0))
    bench.device._can = replace(bench.device._can, knobs=frozenset({"sm"}))
    bench.guard.can = bench.device._can
    bench.control = Control(
        Perseus(scene()),
        Limits(cap_w=150.0),
        bench.device._can,
        SCHEDULE,
        bench.said.append,
        lambda clock: curve().busy_w(clock) / 1.33,
    )
    bench.run(20.0)
    assert bench.device.power_w <= 150.0
    bench.longest_above_s = 0.0
    bench.run(20.0)
    assert bench.longest_above_s < 1.0


def test_a_cap_lowers_the_memory_clock_where_that_leaves_more_to_the_multiprocessors() -> None:
    """On an RTX 3080 Ti: not where full clocks keep it. 130 W, which no SM clock keeps with the memory's, is kept."""
    card = CARDS["rtx3080ti"]
    curves = {memory: Curve(card, memory, card.sm_clocks_mhz).busy_w for memory in card.memory_clocks_mhz}
    assert curves[9501](card.sm_clocks_mhz[0]) > 130.0
    kept = [clock for clock in card.sm_clocks_mhz if clock <= card.sustained_mhz]
    high_w = curves[9501](kept[-1]) + 1.0
    for cap_w, wanted in ((high_w, 9501), (130.0, 5001), (120.0, 5001)):
        memory = memory_clock_for(cap_w, kept, curves)
        assert memory == wanted, cap_w
        fits = [clock for clock in kept if curves[memory](clock) <= cap_w]
        others = [c for other, busy in curves.items() if other >= 4750 for c in kept if busy(c) <= cap_w]
        assert fits[-1] == max(others), "of all that need not wait for the memory, it has the highest SM clock"
    now_s = 0.0
    device = Simulated(card, 0, now=lambda: now_s)
    can = replace(device.capabilities(), knobs=frozenset({"sm", "memory"}))
    at = Scene(card, card.sm_clocks_mhz, card.memory_clocks_mhz, (1,), Setting())
    found = Control(Perseus(at), Limits(cap_w=130.0), can, SCHEDULE, print, curves[9501], curves)
    device.work(1.0)
    above_s = 0.0
    for cap_w in (130.0, 120.0, 130.0):
        found.change_cap(cap_w)
        for _ in range(100):
            device.apply(found.tick(now_s, device.read()), None)
            now_s += 0.1
            device.advance()
            above_s = above_s + 0.1 if device.power_w > cap_w else 0.0
            assert above_s < 1.0
        assert device.memory_clock_mhz == 5001 and 0.85 * cap_w < device.power_w <= cap_w
    found.change_cap(high_w)
    assert found.tick(now_s, device.read()).memory_clock_mhz is None


@pytest.mark.parametrize("policy", ["pctodl", "receding-horizon", "dvfs"])
def test_policies_for_caps_work_beside_a_training(policy: str) -> None:
    """With a model of the step where they need one, and without having been asked before there is a cap."""
    at = replace(scene(), predictor=StepModel({1215: curve()}))
    bench = Bench(policy_named(policy)(at))
    bench.run(10.0, steps=WAITING)
    assert bench.control.changes == 0 and bench.said == []
    bench.control.change_cap(160.0)
    bench.run(60.0, steps=WAITING, busy=1.0)
    assert bench.said == [] and bench.longest_above_s < 1.0
    assert 130.0 < bench.device.power_w <= 160.0, "the cap is used"


def test_the_models_step_waits_for_a_memory_that_is_too_slow() -> None:
    card = CARDS["rtx3080ti"]
    found = StepModel({m: Curve(card, m, card.sm_clocks_mhz) for m in card.memory_clocks_mhz})
    full = found.exec_s(Setting())
    assert found.exec_s(Setting(card.sustained_mhz, 9501)) == full == 1.0
    assert found.exec_s(Setting(card.sustained_mhz, 5001)) == full, "half of its rate is all that is used"
    assert found.throughput_per_s(Setting(card.sustained_mhz, 810)) == pytest.approx(2 * 810 / 9501)
    assert found.power_w(Setting(900, 5001)) < found.power_w(Setting(900, 9501)) < found.power_w(Setting())


def test_a_deadline_that_cannot_be_met_says_the_fastest() -> None:
    bench = Bench(Perseus(scene()), Limits(deadline_s=0.5))
    bench.run(10.0, steps=spans(0.1, 0.1))
    fastest = max(span.end_s for span in spans(0.1, 0.1))
    assert bench.said == [
        f"services.power.deadline_s = 0.5 cannot be met: the fastest step here takes {fastest:.3g} s, at the highest "
        "clocks; steps are done in that time"
    ]


def test_a_deadline_with_room_lowers_the_clock() -> None:
    at_once = Bench(Perseus(scene()))
    at_once.run(10.0, steps=WAITING)
    with_room = Bench(Perseus(scene()), Limits(deadline_s=3.0))
    with_room.run(10.0, steps=WAITING)
    assert with_room.device.sm_clock_mhz < at_once.device.sm_clock_mhz
    assert curve().slower(with_room.device.sm_clock_mhz) * 0.05 * 6 + 0.2 * 6 < 3.0
    assert with_room.control.changes <= 2, "a setting that is right is left alone"


class Chooses(Policy):
    """Whatever it is told to."""

    name = "chooses"
    choice = Setting()
    asked = 0

    def decide(self, observation: Observation, limits: Limits) -> Setting:
        self.asked += 1
        if self.choice.batch == 13:
            raise RuntimeError("planted")
        return self.choice


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (Setting(sm_clock_mhz=1001), "'chooses': A100 .* has no 1001 MHz for the clock of the multiprocessors"),
        (Setting(power_limit_w=10.0), "'chooses': A100 .* takes power limits of"),
        (Setting(batch=13), "'chooses': RuntimeError: planted"),
    ],
)
def test_a_policy_that_errs_is_told_and_then_not_asked(choice: Setting, words: str) -> None:
    policy = Chooses(scene())
    policy.choice = choice
    bench = Bench(policy)
    bench.run(10.0, steps=WAITING)
    assert policy.asked == MOST_MISTAKES
    assert len(bench.said) == 2, "the same mistake is said once, and that it was the last"
    with pytest.raises(PowerError, match=words):
        raise PowerError(bench.said[0])
    assert "is not asked any more" in bench.said[-1]
    assert bench.device.sm_clock_mhz == CARD.sustained_mhz


def test_changes_keep_their_distance() -> None:
    class Flutters(Chooses):
        def decide(self, observation: Observation, limits: Limits) -> Setting:
            self.asked += 1
            return Setting(sm_clock_mhz=900 if self.asked % 2 else 1200)

    policy = Flutters(scene())
    bench = Bench(policy)
    bench.run(20.0, steps=WAITING)
    assert policy.asked > 10
    assert bench.control.changes <= 20.0 / DWELL_S + 1


def test_what_is_no_change_is_not_made() -> None:
    class Creeps(Chooses):
        def decide(self, observation: Observation, limits: Limits) -> Setting:
            self.asked += 1
            return Setting(sm_clock_mhz=1200 if self.asked < 2 else 1215)

    bench = Bench(Creeps(scene()))
    bench.run(20.0, steps=WAITING)
    assert bench.control.changes == 1 and bench.device.sm_clock_mhz == 1200
