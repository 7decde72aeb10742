"""Plans there and back, for the right job only; the picture of a plan."""

from __future__ import annotations

import json

import pytest

from mpcpipe.errors import PlanError
from mpcpipe.plan.machine import Node
from mpcpipe.plan.net import Net
from mpcpipe.plan.partition import Wish, choose
from mpcpipe.plan.plan import Plan, make_plan, timeline
from mpcpipe.plan.trace import Timed

JOB = "ab" * 32


def nodes_of(rows: int) -> tuple[Node, ...]:
    """Two layers: one waits as long as it computes, the other only computes."""
    waits = {"F": (Timed(0.5 * rows, 1, 1),), "I": (Timed(0.5 * rows, 1, 1),), "W": (), "U": (Timed(1.0),)}
    computes = {"F": (Timed(1.0 * rows),), "I": (Timed(0.5 * rows),), "W": (Timed(0.5 * rows),), "U": (Timed(1.0),)}
    return Node("features"), Node("first", waits), Node("second", computes), Node("loss")


@pytest.fixture
def plan() -> Plan:
    net = Net(1.0)
    wish = Wish((0, 1), (1, 1), 4, "1f1b")
    return make_plan(choose(nodes_of, 2, 4, net, 2, wish), JOB, "here", str(net), 2)


def test_there_and_back(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan
    assert (plan.starts, plan.slots, plan.microbatches) == ((0, 1), (1, 1), 4)
    assert [stage.layers for stage in plan.stages] == [("first",), ("second",)]
    assert plan.stages[0].compute_s == pytest.approx(4 * 1.0 + 1)
    assert plan.stages[0].rounds == 8
    assert plan.bound_s <= plan.predicted_step_s <= plan.sequential_step_s


def test_another_job(plan: Plan) -> None:
    plan.check_job(JOB)
    with pytest.raises(
        PlanError, match="a plan made for another job: it is for abababababababab, and this job is 0000"
    ):
        plan.check_job("0" * 64)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 2, "schedule": 3}', "null"])
def test_what_is_no_plan(text: str) -> None:
    with pytest.raises(PlanError, match="this is no plan of mpcpipe"):
        Plan.from_json(text)


def test_another_format(plan: Plan) -> None:
    plain = json.loads(plan.to_json())
    plain["format"] = 99
    with pytest.raises(PlanError, match="the plan has format 99"):
        Plan.from_json(json.dumps(plain))


def test_a_plan_whose_schedule_was_spoilt(plan: Plan) -> None:
    with pytest.raises(PlanError, match="<-- here"):
        Plan.from_json(plan.to_json().replace("1F0 ", "").replace("1B3 ", "1B3 1F0 "))


def test_timeline(plan: Plan) -> None:
    """In units of half a second: 0F computes 1, waits 1; 0B the same; 1F and 1B take 2 each; updates 2."""
    end_s = plan.predicted_step_s
    assert end_s * 2 == pytest.approx(22)
    assert timeline(plan, 22).splitlines() == [
        "0.0 │F.F.  B.F.B.F.B.  B.UU│",
        "1.0 │  FFBBFFBBFFBBFFBBUU  │",
        "    └──────────────────11 s┘",
    ]
    assert len({len(row) for row in timeline(plan, 60).splitlines()}) == 1
