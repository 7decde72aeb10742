"""The text form of actions and schedules, and what the validator says of broken ones."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpcpipe.errors import PlanError
from mpcpipe.plan.actions import Action, Schedule, dumps, loads, table
from mpcpipe.plan.check import validate
from mpcpipe.plan.schedule import build

GOOD = """
# two stages
schedule mine: slots 1 1, micro-batches 2, steps 1
0.0 | 0F0 0F1 0B0 0I1 0W1 0U
1.0 | 1F0 1B0 1F1 1B1 1U
"""


@given(st.integers(0, 99), st.sampled_from("FBIW"), st.integers(0, 999))
def test_text_of_an_action(stage: int, kind: str, microbatch: int) -> None:
    text = f"{stage}{kind}{microbatch}"
    assert Action.parse(text) == Action(stage, kind, microbatch)
    assert str(Action.parse(text)) == text


def test_text_of_an_update() -> None:
    assert Action.parse("2U") == Action(2, "U", None)
    assert str(Action(2, "U")) == "2U"


@pytest.mark.parametrize("text", ["", "U", "F0", "2F", "2U0", "2X0", "2f0", "-1F0", "2F0 "])
def test_what_is_no_action(text: str) -> None:
    with pytest.raises(PlanError, match="is no action; write 2F0"):
        Action.parse(text)


def test_a_schedule_from_its_text() -> None:
    schedule = loads(GOOD)
    assert (schedule.name, schedule.slots, schedule.microbatches, schedule.steps) == ("mine", (1, 1), 2, 1)
    assert validate(schedule).live == (2, 1)
    assert loads(dumps(schedule)) == schedule
    assert table(schedule, (1, 2)).splitlines()[1] == "1.0 | 1F0 1B0 1F1 <-- here 1B1 1U"


def test_lags_are_part_of_the_text() -> None:
    schedule = build("async", (1, 1, 1), 2, steps=3)
    assert "lags 2 1 0" in dumps(schedule)
    assert loads(dumps(schedule)) == schedule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("0.0 | 0F0", "line 1 .* must begin with a line such as"),
        ("schedule a: slots 1, micro-batches 1, steps 1\n0 | 0F0", "line 2 .* 'stage.slot | actions'"),
        ("schedule a: slots 1, micro-batches 1, steps 1\n\n0.0 | 0F0 0B", "line 3 .* '0B' is no action"),
    ],
)
def test_a_text_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        loads(text)


@pytest.mark.parametrize(
    ("line", "instead", "message", "marked"),
    [
        (0, "0F0 0F1 0B0 0U", "worker 0.0, at 0U .*weight gradients of micro-batch 1", "0U <-- here"),
        (0, "0F0 0F1 0B0 0I1 0U 0W1", "worker 0.0, at 0U .*micro-batch 1", "0U <-- here"),
        (0, "0F0 0F1 0B0 0B1", "worker 0.0, at its end: 0 updates", "(end) <-- here"),
        (0, "0F0 0B0 0F1", "worker 0.0, at its end: 0I1 .* is missing", "(end) <-- here"),
        (0, "0B0 0F0 0F1 0B1 0U", "worker 0.0, at 0B0 .*0F0 .* must come first", "0B0 <-- here"),
        (0, "0F0 0W0 0F1 0B1 0I0 0U", "worker 0.0, at 0W0 .*0I0 .* must come first", "0W0 <-- here"),
        (0, "0F0 0F0 0F1 0B0 0B1 0U", "worker 0.0, at 0F0 .*done before", "0F0 <-- here"),
        (0, "0F0 0F1 0B0 0B1 0W1 0U", "worker 0.0, at 0W1 .*done before", "0W1 <-- here"),
        (0, "0F0 0F1 0F2 0B0 0B1 0U", "worker 0.0, at 0F2 .*only 2 micro-batches", "0F2 <-- here"),
        (0, "0F0 0F1 0B0 0B1 0U 0U", "worker 0.0, at 0U .*more than 1 times", "0U <-- here"),
        (1, "1F0 1F1 0F1 1B0 1B1 1U", "worker 1.0, at 0F1 .*stage 0 is not this worker's", "0F1 <-- here"),
        (1, "1F1 1B1 1F0 1B0 1U", "deadlock: it waits for", "<-- here"),
    ],
)
def test_broken_schedules(line: int, instead: str, message: str, marked: str) -> None:
    schedule = loads(GOOD)
    actions = tuple(Action.parse(word) for word in instead.split())
    workers = list(schedule.workers)
    workers[line] = replace(workers[line], actions=actions)
    if "deadlock" in message:  # stage 0 waits for the gradient of 0 before it sends 1
        first = "0F0 0B0 0F1 0B1 0U"
        workers[0] = replace(workers[0], actions=tuple(Action.parse(word) for word in first.split()))
        message = r"worker 0\.0, at 0B0 \(action 1\): deadlock: it waits for 1I0 of worker 1\.0"
    with pytest.raises(PlanError, match=re.compile(message)) as caught:
        validate(replace(schedule, workers=tuple(workers)))
    assert marked in str(caught.value)


def _with(schedule: Schedule, index: int, **changes: object) -> Schedule:
    workers = list(schedule.workers)
    workers[index] = replace(workers[index], **changes)  # type: ignore[arg-type]
    return replace(schedule, workers=tuple(workers))


def test_slots_and_workers() -> None:
    schedule = build("1f1b", (1, 2), 4)
    validate(schedule)
    with pytest.raises(PlanError, match="no worker for stage 1, slot 1"):
        validate(replace(schedule, workers=schedule.workers[:-1]))
    with pytest.raises(PlanError, match="2 workers for stage 1, slot 0"):
        validate(replace(schedule, workers=(*schedule.workers, schedule.workers[1])))
    with pytest.raises(PlanError, match="worker for stage 1, slot 2; there are 2 stages"):
        validate(_with(schedule, 2, slot=2))
    swapped = _with(_with(schedule, 1, actions=schedule.workers[2].actions), 2, actions=schedule.workers[1].actions)
    with pytest.raises(PlanError, match=r"worker 1\.0, at 1F1 .* micro-batch 1 is for slot 1 of 2"):
        validate(swapped)
    late = _with(schedule, 2, actions=(*schedule.workers[2].actions, Action(1, "U")))
    with pytest.raises(PlanError, match=r"worker 1\.1, at 1U .*updated by its slot 0"):
        validate(late)


def test_memory() -> None:
    schedule = build("gpipe", (1, 1), 4)
    assert validate(schedule).live == (4, 4)
    with pytest.raises(PlanError, match=r"worker 0\.0, at 0F2 \(action 2\): 3 micro-batches kept at once"):
        validate(schedule, max_live=2)
    assert validate(build("1f1b", (1, 1), 4), max_live=2).live == (2, 1)


def test_weights_that_an_exact_schedule_must_wait_for() -> None:
    """Two steps in one list: the second step's forward needs the first step's update."""
    text = "schedule two: slots 1, micro-batches 1, steps 2\n0.0 | 0F0 0F1 0B0 0U 0B1 0U"
    with pytest.raises(PlanError, match=r"at 0F1 .*deadlock: it waits for update 1 of stage 0 of worker 0\.0"):
        validate(loads(text))
    assert validate(loads(text.replace("steps 2", "steps 2, lags 1"))).live == (2,)
