"""The simulator against cases whose answer is a formula."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcpipe.plan.actions import Action
from mpcpipe.plan.bound import Bounds
from mpcpipe.plan.net import Net
from mpcpipe.plan.schedule import SCHEDULES, build
from mpcpipe.plan.simulate import SLICE_S, Simulation, simulate
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
    """Two workers that only compute gain nothing from each other on one core, nor on half of one."""
    trace = only_compute({"F": 1.0, "B": 2.0})
    for cores in (1.0, 1 / 2):
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
    limits = Bounds(Net(0.2, 1000), 2).of(schedule, trace)
    assert limits.compute_s == pytest.approx(16 / 2)
    assert limits.bytes_s == pytest.approx(24)
    assert limits.latency_s == pytest.approx(0.8)
    assert limits.sequential_s == pytest.approx(16 + 24 + 0.8)
    assert limits.busiest_s == pytest.approx(20.4)
    assert (limits.bound_s, limits.limited_by) == (pytest.approx(24), "bandwidth")
    assert Bounds(Net(0.2, math.inf), 0.5).of(schedule, trace).limited_by == "compute"


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
    st.sampled_from([(0.0, math.inf), (2e-4, math.inf), (0.0, 900.0), (2e-3, 1000.0)]),
)
def test_no_schedule_beats_its_bound(
    name: str,
    stages: int,
    microbatches: int,
    costs: dict[str, list[tuple[float, int]]],
    cores: float,
    rtt_s: float,
    turns: bool,
    line: tuple[float, float],
) -> None:
    def trace(action: Action) -> TimedTrace:
        kinds = "IW" if action.kind == "B" else action.kind
        return tuple(Timed(s * (1 + action.stage), n, n) for kind in kinds for s, n in costs[kind])

    hub_s_per_byte, paced = line
    net = Net(rtt_s, 1000.0, hub_s_per_byte, paced_bytes_per_s=paced)
    schedule = build(name, (1,) * stages, microbatches)
    result = simulate(schedule, trace, net, cores, turns)
    limits = Bounds(net, cores).of(schedule, trace)
    assert result.makespan_s >= limits.bound_s * (1 - 1e-9)
    late_s = SLICE_S / min(1.0, cores) * sum(len(trace(a)) for worker in schedule.workers for a in worker.actions)
    assert result.makespan_s <= limits.sequential_s * (1 + 1e-9) + late_s + 1e-9
    check_sums(result)


def test_a_paced_line_lets_small_messages_pass() -> None:
    """As above, but paced: the small message goes when the chunk on the line is through, the rest of it after that."""

    def trace(action: Action) -> TimedTrace:
        if action.kind != "F":
            return ()
        return (Timed(1.0, 10**6, 10**6),) if action.microbatch % 2 == 0 else (Timed(2.0, 100, 100),)

    schedule, rate = build("gpipe", (2,), 2), 1e5
    plain, paced = Net(0.0, rate), Net(0.0, rate, paced_bytes_per_s=rate)
    assert simulate(schedule, trace, plain, 2).workers[1].wait_s == pytest.approx(11 + 1e-3 - 2)
    chunk_s = (32 << 10) / rate
    result = simulate(schedule, trace, paced, 2)
    assert 0 < result.workers[1].wait_s <= chunk_s + 1e-3
    assert result.makespan_s == pytest.approx(11 + 1e-3)


def test_a_paced_line_serves_large_messages_in_turn() -> None:
    """Two of 1 MB and 3 MB, sent at once: the shorter is through after about twice its own length."""

    def trace(action: Action) -> TimedTrace:
        nbytes = 3 * 10**6 if action.microbatch else 10**6
        return (Timed(0.0, nbytes, nbytes),) if action.kind == "F" else ()

    result = simulate(build("gpipe", (2,), 2), trace, Net(0.0, 1e6, paced_bytes_per_s=1e6), 2)
    assert result.workers[0].wait_s == pytest.approx(2.0, abs=0.07)
    assert result.makespan_s == pytest.approx(4.0)


def test_a_rate_above_the_lines_paces_nothing() -> None:
    assert not Net(0.0, 1e6, paced_bytes_per_s=2e6).is_paced and Net(0.0, 1e6, paced_bytes_per_s=9e5).is_paced
    assert Net(0.0, 1e6, paced_bytes_per_s=9e5).line_bytes_per_s == 9e5


def test_the_line_takes_its_part_of_the_cores() -> None:
    """A byte takes 0.5 us of a core, so a line of 1 MB/s half of one: what computes meanwhile has the other half."""

    def trace(action: Action) -> TimedTrace:
        if action.kind != "F":
            return ()
        return (Timed(0.0, 4 * 10**6, 4 * 10**6),) if action.microbatch == 0 else (Timed(1.0),)

    net, schedule = Net(0.0, 1e6, hub_s_per_byte=3e-7, host_s_per_byte=2e-7), build("gpipe", (2,), 2)
    result = simulate(schedule, trace, net, 1)
    assert (result.workers[1].compute_s, result.makespan_s) == pytest.approx((2.0, 4.0))
    assert Bounds(net, 1).of(schedule, trace).compute_s == pytest.approx(1.0 + 2.0)
    # with a quarter of a core the line itself is slower, and nothing is left while it is busy
    slow = simulate(schedule, trace, net, 0.25)
    assert (slow.workers[1].compute_s, slow.makespan_s) == pytest.approx((8.0 + 4.0, 12.0))


def test_parties_that_share_a_core_are_done_one_after_another() -> None:
    """Three on two cores: two thirds of one each, and the last is half a slice later; four are as late as it seems."""
    trace = only_compute({"F": 1.0})
    schedule = build("sequential", (1,), 1)
    assert simulate(schedule, trace, IDEAL, 2 / 3).makespan_s == pytest.approx(1.5 + 0.5 * SLICE_S)  # type: ignore[arg-type]
    assert simulate(schedule, trace, IDEAL, 1 / 2).makespan_s == pytest.approx(2.0)  # type: ignore[arg-type]
    assert simulate(schedule, trace, IDEAL, 1).makespan_s == pytest.approx(1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(("slots", "pieces", "charged"), [(1, 1, 0), (1, 2, 2), (2, 1, 2)])
def test_going_on_costs_extra_if_something_else_was_computed_since(slots: int, pieces: int, charged: int) -> None:
    """A worker alone with one piece finds its caches as it left them; one of several pieces, or workers, does not."""

    def trace(action: Action) -> TimedTrace:
        return (Timed(2.0 / pieces, 1, 1, pieces), Timed(2.0 / pieces, pieces=pieces)) if action.kind == "F" else ()

    schedule = build("gpipe", (slots,), slots)
    free = simulate(schedule, trace, Net(), 1).makespan_s
    assert simulate(schedule, trace, Net(host_s_per_message=0.25), 1).makespan_s == pytest.approx(free + 0.25 * charged)


def test_pieces_may_beat_the_bound_of_whole_ones() -> None:
    """One worker: computing for 6 s and sending for 6 s, in three pieces, is over after 8 s, which is the bound."""

    def trace(action: Action) -> TimedTrace:
        return (Timed(2.0, 2000, 2000, 3),) if action.kind == "F" else ()

    schedule, net = build("1f1b", (1,), 1), Net(0.0, 1000)
    limits = Bounds(net, 1).of(schedule, trace)
    assert limits.bound_s <= simulate(schedule, trace, net, 1).makespan_s == pytest.approx(8.0)
    assert (limits.in_flight, limits.busiest_s) == (3, pytest.approx(6.0))
