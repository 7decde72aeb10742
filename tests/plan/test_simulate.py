"""The simulator against cases whose answer is a formula."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcpipe.plan.actions import Action
from mpcpipe.plan.net import Net
from mpcpipe.plan.schedule import SCHEDULES, build
from mpcpipe.plan.simulate import Simulation, bound, simulate
from mpcpipe.plan.trace import Timed, TimedTrace

IDEAL = Net()


def only_compute(seconds: dict[str, float]) -> object:
    return lambda action: (Timed(seconds.get(action.kind, 0.0)),)


def check_sums(result: Simulation) -> None:
    for worker in result.workers:
        assert worker.compute_s + worker.wait_s + worker.idle_s == pytest.approx(result.makespan_s)
        assert min(worker.compute_s, worker.wait_s) >= 0 and worker.idle_s > -1e-9


def test_one_worker_is_a_sum() -> None:
    """Forward: 2 s, then 1 MB over 1 MB/s and 3 s latency, then 1 s. Backward: 4 s. Update: 0.5 s."""

    def trace(action: Action) -> TimedTrace:
        return {
            "F": (Timed(2.0, 10**6, 10**6), Timed(1.0)),
            "B": (Timed(4.0),),
            "U": (Timed(0.5),),
        }[action.kind]

    result = simulate(build("sequential", (1,), 3), trace, Net(6.0, 1e6), 1)
    assert result.makespan_s == pytest.approx(3 * (2 + 1 + 3 + 1 + 4) + 0.5)
    (worker,) = result.workers
    assert (worker.compute_s, worker.wait_s, worker.idle_s) == pytest.approx((3 * 7 + 0.5, 3 * 4, 0))


@pytest.mark.parametrize(
    ("pieces", "latency", "makespan"),
    # a piece computes for c, sends for c, computes for c; c = 6 s over the number of pieces
    [(1, 0.0, 18.0), (2, 0.0, 12.0), (3, 0.0, 12.0), (2, 5.0, 17.0), (6, 1.0, 12.0)],
)
def test_one_piece_computes_while_another_is_on_the_line(pieces: int, latency: float, makespan: float) -> None:
    """All start to compute in turn; the line has one after the other; the second part waits for its own round only."""
    c = 6.0 / pieces

    def trace(action: Action) -> TimedTrace:
        if action.kind != "F":
            return ()
        return (Timed(c, int(c * 1e6), int(c * 1e6), pieces), Timed(c, pieces=pieces))

    result = simulate(build("sequential", (1,), 1), trace, Net(2 * latency, 1e6), 1)
    assert result.makespan_s == pytest.approx(makespan)
    check_sums(result)
    assert result.workers[0].compute_s == pytest.approx(12.0)


def test_pieces_come_together_before_a_layer_that_has_none() -> None:
    def trace(action: Action) -> TimedTrace:
        return (Timed(1.0, 10**6, 10**6, 3), Timed(5.0), Timed(1.0, pieces=2)) if action.kind == "F" else ()

    result = simulate(build("sequential", (1,), 1), trace, Net(0.0, 1e6), 1)
    assert result.makespan_s == pytest.approx(1 + 3 + 5 + 2)


def test_updates_next_to_each_other_share_their_rounds() -> None:
    def trace(action: Action) -> TimedTrace:
        return (Timed(1.0, 8, 8), Timed(1.0)) if action.kind == "U" else ()

    assert simulate(build("sequential", (1, 1), 1), trace, Net(20.0), 1).makespan_s == pytest.approx(14.0)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (2, 8), (3, 5), (4, 16)])
def test_balanced_stages_on_enough_cores(name: str, stages: int, microbatches: int) -> None:
    """Both take (M + S - 1) (F + B): the bubble is (S - 1) / (M + S - 1)."""
    trace = only_compute({"F": 1.0, "B": 2.0})
    result = simulate(build(name, (1,) * stages, microbatches), trace, IDEAL, stages)  # type: ignore[arg-type]
    assert result.makespan_s == pytest.approx(3 * (microbatches + stages - 1))
    check_sums(result)


def test_zero_bubble_is_shorter_by_the_weight_gradients() -> None:
    """Its bubble is (S - 1) (F + I - W), here 0 but for one second: (S - 1) (1 + 1 - 1)."""
    trace = only_compute({"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0})
    plain = simulate(build("1f1b", (1, 1, 1), 6), trace, IDEAL, 3)  # type: ignore[arg-type]
    split = simulate(build("zero-bubble", (1, 1, 1), 6), trace, IDEAL, 3)  # type: ignore[arg-type]
    assert plain.makespan_s == pytest.approx(3 * 6 + 2 * 3)
    assert split.makespan_s == pytest.approx(3 * 6 + 2 * 1)


def test_two_balanced_stages_double_the_speed_in_the_long_run() -> None:
    trace = only_compute({"F": 1.0, "B": 2.0})
    sequential = simulate(build("sequential", (1, 1), 64), trace, IDEAL, 2)  # type: ignore[arg-type]
    pipelined = simulate(build("1f1b", (1, 1), 64), trace, IDEAL, 2)  # type: ignore[arg-type]
    assert sequential.makespan_s / pipelined.makespan_s == pytest.approx(2 * 64 / 65)


def test_async_has_no_bubble_in_the_middle() -> None:
    trace = only_compute({"F": 1.0, "B": 2.0})
    result = simulate(build("async", (1, 1, 1), 2, steps=20), trace, IDEAL, 3)  # type: ignore[arg-type]
    assert result.step_s == pytest.approx(2 * 3.0)


def test_one_core_is_shared() -> None:
    """Two workers that only compute gain nothing from each other on one core, nor on two thirds of one."""
    trace = only_compute({"F": 1.0, "B": 2.0})
    for cores in (1.0, 2 / 3):
        result = simulate(build("1f1b", (1, 1), 8), trace, IDEAL, cores)  # type: ignore[arg-type]
        assert result.makespan_s == pytest.approx(2 * 8 * 3 / cores)


def test_computing_hides_behind_latency() -> None:
    """One stage of two slots: each waits 9 s in every action, and computes 1 s: one computes while the other waits."""

    def trace(action: Action) -> TimedTrace:
        return (Timed(1.0, 1, 1),) if action.kind in "FB" else ()

    schedule, net = build("gpipe", (2,), 2), Net(18.0)
    # sharing the core, both compute 2 s and then wait 9 s: F, then B
    assert simulate(schedule, trace, net, 1, turns=False).makespan_s == pytest.approx(2 * (2 + 9))
    # taking turns, the first goes on after 1 s and is never delayed; the second is a second behind
    assert simulate(schedule, trace, net, 1).makespan_s == pytest.approx(2 * (1 + 9) + 1)


def test_taking_turns_sets_equals_apart() -> None:
    """Computing and sending take 1 s each. Sharing the core, both are late once; then the line sets them apart."""

    def trace(action: Action) -> TimedTrace:
        return (Timed(1.0, 1000, 1000),) * 4 if action.kind == "F" else ()

    schedule, net = build("gpipe", (2,), 2), Net(0.0, 1000)
    assert simulate(schedule, trace, net, 1, turns=False).makespan_s == pytest.approx(2 + 4 * (1 + 1))
    assert simulate(schedule, trace, net, 1).makespan_s == pytest.approx(1 + 4 * (1 + 1))


def test_a_small_message_waits_behind_a_large_one() -> None:
    """One worker has the line from t = 1 to 10; the other sends 1 s worth at t = 2, and has it through at t = 11."""

    def trace(action: Action) -> TimedTrace:
        if action.kind != "F":
            return ()
        return (Timed(1.0, 9000, 9000),) if action.microbatch % 2 == 0 else (Timed(2.0, 1000, 1000), Timed(1.0))

    # worker 1 sends at t = 2, when the line is taken until t = 10; shared evenly its message would have left at t = 4
    assert simulate(build("gpipe", (2,), 2), trace, Net(0.0, 1000), 2).workers[1].wait_s == pytest.approx(10 + 1 - 2)


def test_the_line_is_shared() -> None:
    """Two slots that only send: the line is the limit, whoever sends."""

    def trace(action: Action) -> TimedTrace:
        return (Timed(0.0, 1000, 1000),) if action.kind == "F" else ()

    assert simulate(build("gpipe", (2,), 8), trace, Net(0.0, 1000), 4).makespan_s == pytest.approx(8.0)


def test_what_bounds_it() -> None:
    def trace(action: Action) -> TimedTrace:
        return (Timed(1.0, 3000, 3000),) if action.kind == "F" else (Timed(1.0),) if action.kind == "B" else ()

    schedule = build("1f1b", (1, 1), 4)
    limits = bound(schedule, trace, Net(0.2, 1000), 2)
    assert limits.compute_s == pytest.approx(16 / 2)
    assert limits.bytes_s == pytest.approx(24)
    assert limits.latency_s == pytest.approx(0.8)
    assert limits.sequential_s == pytest.approx(16 + 24 + 0.8)
    assert limits.busiest_s == pytest.approx(20.4)
    assert (limits.bound_s, limits.limited_by) == (pytest.approx(24), "bandwidth")
    assert bound(schedule, trace, Net(0.2, math.inf), 0.5).limited_by == "compute"


seconds = st.floats(0, 3, allow_nan=False)
segments = st.lists(st.tuples(seconds, st.integers(0, 3000)), min_size=0, max_size=3)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(sorted(SCHEDULES)),
    st.integers(1, 4),
    st.integers(1, 5),
    st.fixed_dictionaries({kind: segments for kind in "FIWU"}),
    st.floats(0.3, 4),
    st.floats(0, 2),
    st.booleans(),
)
def test_no_schedule_beats_its_bound(
    name: str,
    stages: int,
    microbatches: int,
    costs: dict[str, list[tuple[float, int]]],
    cores: float,
    rtt_s: float,
    turns: bool,
) -> None:
    def trace(action: Action) -> TimedTrace:
        kinds = "IW" if action.kind == "B" else action.kind
        return tuple(Timed(s * (1 + action.stage), n, n) for kind in kinds for s, n in costs[kind])

    net = Net(rtt_s, 1000.0)
    schedule = build(name, (1,) * stages, microbatches)
    result = simulate(schedule, trace, net, cores, turns)
    limits = bound(schedule, trace, net, cores)
    assert result.makespan_s >= limits.bound_s * (1 - 1e-9)
    assert result.makespan_s <= limits.sequential_s * (1 + 1e-9) + 1e-9
    check_sums(result)
