"""Clocks for actions: plans against what each alternative takes by hand, and the service that follows them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mpcpipe.plan.schedule import build
from mpcpipe.services.base import RunFacts, StepFacts
from mpcpipe.services.power.cards import CARDS
from mpcpipe.services.power.clockplan import Curve, fastest_s, step_energy_j
from mpcpipe.services.power.phases import MOST_PARTS, PhasePlan, Running, plan_phases
from mpcpipe.services.power.policies.perseus import Perseus
from mpcpipe.services.power.service import PowerService
from mpcpipe.services.power.simulated import Simulated
from mpcpipe.services.power.stepgraph import Part, longest_s

CARD = CARDS["a100-40gb"]
CURVE = Curve(CARD, 1215, CARD.sm_clocks_mhz)
CHANGE_S = 0.035


def fork(long_s: float, short_s: float) -> list[Part]:
    """Two workers: one computes long, the other short; both have to be done before the last part."""
    return [
        Part("a 0F0", 0, long_s, 0.0, ()),
        Part("b 0F1", 1, short_s, 0.0, ()),
        Part("a 0U", 0, 0.5, 0.0, (0, 1)),
    ]


ONE = {0: 1410, 1: 1410}


def test_slack_goes_to_the_action_that_has_it() -> None:
    """On GPUs of their own: the long branch keeps its clock, the short one gets slower and nothing is late."""
    parts = fork(4.0, 2.0)
    slack_s = 0.005 * fastest_s(parts) + 3 * CHANGE_S
    step_s = fastest_s(parts) + slack_s
    plan = plan_phases(parts, CURVE, [0, 1], ONE, slack_s, CHANGE_S, step_s)
    assert plan is not None and plan.seconds <= step_s
    assert plan.clocks_mhz["a 0F0"] >= 1350 > 1100 > plan.clocks_mhz["b 0F1"]
    assert plan.joules < step_energy_j(parts, CURVE, ONE, [0, 1], step_s)


def test_no_action_is_faster_than_the_clock_that_is_known_to_be_on_time() -> None:
    parts = fork(4.0, 2.0)
    plan = plan_phases(parts, CURVE, [0, 1], {0: 900, 1: 900}, 0.2, CHANGE_S, 8.0)
    assert plan is not None and max(plan.clocks_mhz.values()) <= 900
    assert plan.seconds <= 1410 / 900 * 4.5 + 0.2


def test_a_gpu_rests_where_nothing_runs() -> None:
    """One worker, half of the step nothing to do: by hand, what runs at its clock, and idle power at the lowest."""
    parts = [Part("a 0F0", 0, 2.0, 3.0, ())]
    plan = plan_phases(parts, CURVE, [0], ONE, 1.0, CHANGE_S, 10.0)
    one_j = step_energy_j(parts, CURVE, {0: 1410}, [0], 10.0)
    assert plan is not None
    clock = plan.clocks_mhz["a 0F0"]
    work_s = 2.0 * CURVE.slower(clock) + CHANGE_S * (1 - 210 / clock)
    by_hand = work_s * CURVE.busy_w(clock) + 3.0 * CURVE.idle_w(clock) + (7.0 - work_s) * CURVE.idle_w(210)
    assert plan.seconds == pytest.approx(work_s + 3.0)
    assert plan.joules == pytest.approx(by_hand)
    assert plan.joules < one_j


def test_short_actions_and_large_graphs_have_no_clocks_of_their_own() -> None:
    assert plan_phases([Part("a 0F0", 0, 0.05, 0.02, ())], CURVE, [0], ONE, 1.0, CHANGE_S, 1.0) is None
    assert plan_phases(fork(0.2, 0.2), CURVE, [0, 1], ONE, 9.0, 0.06, 9.0) is None, "ten changes take 0.6 s"
    many = [Part(f"a {k}", 0, 1.0, 0.0, (k - 1,) if k else ()) for k in range(MOST_PARTS + 1)]
    assert plan_phases(many, CURVE, [0], ONE, 1e3, CHANGE_S, 1e3) is None
    mixed = [Part("a 0F0", 0, 0.01, 0.0, ()), Part("a 0F1", 0, 2.0, 0.0, (0,))]
    plan = plan_phases(mixed, CURVE, [0], ONE, 2.0, CHANGE_S, 5.0)
    assert plan is not None and plan.clocks_mhz["a 0F0"] == 1410 > plan.clocks_mhz["a 0F1"]


def test_what_changes_cost_does_not_fit_into_a_step_without_slack() -> None:
    parts = [Part(f"a {k}", 0, 0.5, 0.0, (k - 1,) if k else ()) for k in range(3)]
    assert plan_phases(parts, CURVE, [0], ONE, 0.0, CHANGE_S, fastest_s(parts)) is None


def test_a_gpu_has_the_highest_clock_of_what_runs() -> None:
    plan = PhasePlan({"a 0F0": 900, "b 1F0": 1200}, 210, 1.0, 1.0)
    running = Running()
    assert running.clock_mhz(plan) == 210
    running.begins("a", "0F0")
    assert running.clock_mhz(plan) == 900
    running.begins("b", "1F0")
    assert running.clock_mhz(plan) == 1200
    running.ends("b")
    running.begins("b", "1W9")
    assert running.clock_mhz(plan) == 1200, "what the plan does not know is not slowed down"
    running.ends("a")
    running.ends("b")
    assert running.clock_mhz(plan) == 210


class Step:
    """A worker that computes for two seconds, then waits for ten, in a time of its own; `slow`: at which clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.device = Simulated(CARD, now=lambda: self.now_s)
        options = {"policy": "perseus", "device": "", "cap_w": 0, "deadline_s": 0}
        self.said: list[str] = []
        self.service = PowerService(options, self.said.append, self.device, lambda: self.now_s)
        self.seen: list[tuple[str, int]] = []

    def ticks(self, what: str, seconds: float) -> None:
        """As the thread does: what woke it, then readings."""
        self.service.follow()
        end_s = self.now_s + seconds
        while self.now_s < end_s - 1e-9:
            self.now_s = min(end_s, self.now_s + 0.1)
            self.service.tick()
        self.device.advance()
        self.seen.append((what, self.device.sm_clock_mhz))

    def run(self, step: int) -> float:
        """Its seconds."""
        began = self.now_s
        self.device.work(1.0)
        self.service.action("0.0", "0F0", True)
        at_s = self.now_s
        done = 0.0
        while done < 2.0 - 1e-9:  # computing goes as the clock in force does
            self.now_s += 0.01
            self.device.advance()
            done += 0.01 / CURVE.slower(self.device.sm_clock_mhz)
            if self.now_s - at_s > 0.1:
                at_s = self.now_s
                self.service.tick()
        self.seen.append(("computes", self.device.sm_clock_mhz))
        self.service.action("0.0", "0F0", False)
        self.device.work(0.0)
        self.ticks("rests", 10.0)
        own = [Done("0.0", "0F0", began, self.now_s - 10.0)]
        self.service.step(StepFacts(step, 1, began, self.now_s, self.now_s - 10.0 - began, 0.0, own))
        return self.now_s - began


class Done:
    """A span."""

    def __init__(self, worker: str, action: str, begin_s: float, end_s: float) -> None:
        self.worker, self.action, self.begin_s, self.end_s = worker, action, begin_s, end_s
        self.wait_s = self.idle_s = self.queued_s = 0.0


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Iterator[Step]:
    monkeypatch.setattr("threading.Thread.start", lambda self: None)  # the test is the thread
    monkeypatch.setattr("threading.Thread.join", lambda self, timeout=None: None)
    found = Step()
    yield found
    found.service.close()


def test_the_service_sets_clocks_at_the_boundaries_of_actions(step: Step) -> None:
    """The plan's clock while it computes, the lowest between; then all is given back."""
    step.service.begin(RunFacts(0, "alice", 1, 30, build("sequential", (1,), 1), 0.0))
    control = step.service._control
    assert control is not None and isinstance(control.policy, Perseus)
    full_s = step.run(1)
    plan = PhasePlan({"0.0 0F0": 1410}, 210, 1.0, 12.0)
    control.policy.phases = plan
    step.seen.clear()
    lengths = [step.run(number) for number in range(2, 4)]
    assert [clock for what, clock in step.seen if what == "computes"] == [1410, 1410]
    assert [clock for what, clock in step.seen if what == "rests"] == [210, 210]
    # The change back costs 20 to 200 ms at a seventh of the speed, and the reading that notices it a tenth more.
    assert max(lengths) <= full_s + 0.35
    step.service.end()
    step.now_s += 1.0
    step.device.advance()
    assert step.device.sm_clock_mhz == CARD.sustained_mhz


def test_longest_path_of_the_plan_is_the_graphs_own() -> None:
    parts = fork(4.0, 2.0)
    plan = plan_phases(parts, CURVE, [0, 1], ONE, 15.0, 0.0, 20.0)
    assert plan is not None
    slow = {part.name: CURVE.slower(plan.clocks_mhz[part.name]) for part in parts}
    stretched = [Part(p.name, p.worker, p.compute_s * slow[p.name], p.fixed_s, p.after) for p in parts]
    assert plan.seconds == pytest.approx(longest_s(stretched, lambda worker: 1.0))
