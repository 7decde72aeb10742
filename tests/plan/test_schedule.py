"""Schedules: the staircase, drawn; all of them right for random pipelines, within their memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcpipe.errors import PlanError
from mpcpipe.plan.actions import Action, Schedule, leaves, loads, needs
from mpcpipe.plan.check import validate
from mpcpipe.plan.schedule import SCHEDULES, ahead, build

EXACT = [name for name in SCHEDULES if name != "async"]


def drawn(schedule: Schedule) -> list[str]:
    """The schedule in unit time, a row a worker: what it does in each tick, '.' for a wait. Stage numbers left out."""
    rows: list[list[str]] = [[] for _ in schedule.workers]
    at = [0] * len(rows)
    done: list[Action] = []
    while any(at[i] < len(w.actions) for i, w in enumerate(schedule.workers)):
        tick = []
        for i, worker in enumerate(schedule.workers):
            action = worker.actions[at[i]] if at[i] < len(worker.actions) else None
            if action is None:
                continue
            times = done.count(action) + 1
            if all(done.count(need.action) >= need.times for need in needs(schedule, action, times)):
                rows[i].append(str(action)[1:])
                at[i] += 1
                tick += leaves(action)
            else:
                rows[i].append(".")
        done += tick
    return [" ".join(cell.ljust(2) for cell in row).strip() for row in rows]


def test_gpipe() -> None:
    assert drawn(build("gpipe", (1, 1, 1), 4)) == [
        "F0 F1 F2 F3 .  .  .  .  B0 B1 B2 B3 U",
        ".  F0 F1 F2 F3 .  .  B0 B1 B2 B3 U",
        ".  .  F0 F1 F2 F3 B0 B1 B2 B3 U",
    ]


def test_one_forward_one_backward() -> None:
    assert drawn(build("1f1b", (1, 1, 1), 4)) == [
        "F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3 U",
        ".  F0 F1 .  B0 F2 B1 F3 B2 .  B3 U",
        ".  .  F0 B0 F1 B1 F2 B2 F3 B3 U",
    ]


def test_zero_bubble() -> None:
    assert drawn(build("zero-bubble", (1, 1, 1), 4)) == [
        "F0 F1 F2 .  .  I0 W0 F3 I1 W1 I2 W2 I3 W3 U",
        ".  F0 F1 .  I0 F2 I1 W0 F3 I2 W1 I3 W2 W3 U",
        ".  .  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3 U",
    ]


def test_sequential() -> None:
    (worker,) = build("sequential", (1, 1), 2).workers
    assert " ".join(map(str, worker.actions)) == "0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1 0U 1U"


def test_slots_take_micro_batches_in_turn() -> None:
    workers = {w.name: " ".join(map(str, w.actions)) for w in build("gpipe", (1, 2), 3).workers}
    assert workers == {
        "0.0": "0F0 0F1 0F2 0B0 0B1 0B2 0U",
        "1.0": "1F0 1F2 1B0 1B2 1U",
        "1.1": "1F1 1B1",
    }


def test_interleaved_workers_own_stages_that_are_not_neighbours() -> None:
    schedule = build("interleaved", (1, 1, 1, 1), 4)
    assert [w.stages for w in schedule.workers] == [(0, 2), (1, 3)]
    assert drawn(schedule)[0].startswith("F0 F1 F0 F1")


def test_async_goes_on_without_a_flush() -> None:
    schedule = build("async", (1, 1, 1), 1, steps=4)
    assert drawn(schedule) == [
        "F0 F1 F2 .  .  B0 U  F3 B1 U  .  B2 U  .  B3 U",
        ".  F0 F1 .  B0 U  F2 B1 U  F3 B2 U  .  B3 U",
        ".  .  F0 B0 U  F1 B1 U  F2 B2 U  F3 B3 U",
    ]
    assert [schedule.version(0, m) for m in range(4)] == [0, 0, 0, 1]
    assert [schedule.version(1, m) for m in range(4)] == [0, 0, 1, 2]
    assert [schedule.version(2, m) for m in range(4)] == [0, 1, 2, 3]
    assert schedule.staleness == 2


def test_async_single_stage_is_exact() -> None:
    assert build("async", (2,), 3, steps=2).exact


pipelines = st.lists(st.integers(1, 3), min_size=1, max_size=5).flatmap(
    lambda slots: st.tuples(st.just(tuple(slots)), st.integers(max(slots), 9))
)


@settings(max_examples=60, deadline=None)
@given(pipelines, st.sampled_from(EXACT))
def test_every_schedule_is_right(pipeline: tuple[tuple[int, ...], int], name: str) -> None:
    slots, microbatches = pipeline
    if name == "sequential":
        slots = (1,) * len(slots)
    if name == "interleaved":
        slots = (min(slots),) * len(slots)
    schedule = build(name, slots, microbatches)
    live = validate(schedule).live
    assert schedule.exact
    assert loads(str(schedule)) == schedule
    for worker, kept in zip(schedule.workers, live, strict=True):
        (stage, *_), count = worker.stages, len(range(worker.slot, microbatches, slots[worker.stages[0]]))
        most = {
            "sequential": len(slots),
            "gpipe": count,
            "1f1b": min(count, ahead(slots, stage) + 1),
            "interleaved": len(worker.stages) * min(count, len(slots) * slots[0]),
            "zero-bubble": min(count, max(ahead(slots, 0), ahead(slots, stage)) + 1),
        }[name]
        assert kept <= most, (worker.name, kept, most)


@settings(max_examples=60, deadline=None)
@given(pipelines, st.integers(1, 5))
def test_async_is_right_and_not_too_stale(pipeline: tuple[tuple[int, ...], int], steps: int) -> None:
    schedule = build("async", *pipeline, steps=steps)
    validate(schedule)
    assert schedule.staleness <= schedule.stages - 1
    assert loads(str(schedule)) == schedule
    for stage in range(schedule.stages):
        for m in range(schedule.microbatches * steps):
            step, version = m // schedule.microbatches, schedule.version(stage, m)
            assert step - (schedule.stages - 1) <= version <= step


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(PlanError, match="did you mean 'gpipe'"):
        build("gpip", (1,), 1)


@pytest.mark.parametrize(
    ("name", "slots", "microbatches", "message"),
    [
        ("gpipe", (1, 3), 2, "stage 1 has 3 slots for 2 micro-batches"),
        ("gpipe", (), 2, "at least one stage"),
        ("gpipe", (1, 0), 2, "stage 1 has 0 slots"),
        ("gpipe", (1,), 0, "at least one micro-batch"),
        ("sequential", (1, 2), 2, "one worker"),
        ("interleaved", (1, 2), 2, "same number of slots"),
    ],
)
def test_pipelines_that_make_no_sense(name: str, slots: tuple[int, ...], microbatches: int, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        build(name, slots, microbatches)
