"""Cuts against all cuts, and choices whose answer is plain."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcpipe.errors import PlanError
from mpcpipe.plan.actions import Action, loads
from mpcpipe.plan.machine import DEVICES, Node, device
from mpcpipe.plan.net import Net
from mpcpipe.plan.partition import Wish, choose, cut_evenly, layer_costs
from mpcpipe.plan.stages import Cut, NodesOf, between, check_stages, joined, split
from mpcpipe.plan.trace import Timed

FAST = Net()


def network(*layers: float, sent_bytes: int = 0) -> NodesOf:
    """Layers that compute so many seconds a row, forward, and the same for either gradient; no loss, no update."""

    def at(rows: int) -> tuple[Node, ...]:
        found = [
            Node(str(i), {d: (Timed(rows * s, sent_bytes, sent_bytes),) for d in "FIW"}) for i, s in enumerate(layers)
        ]
        return (Node("features"), *found, Node("loss"))

    return at


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(1, 5), st.integers(1, 3))
def test_no_cut_is_more_even(costs: list[int], workers: int, most: int) -> None:
    """Against all cuts and slots, one by one."""
    best = None
    for count in range(len(costs)):
        for inner in itertools.combinations(range(1, len(costs)), count):
            starts = (0, *inner, len(costs))
            pieces = [sum(costs[a:b]) for a, b in itertools.pairwise(starts)]
            for slots in itertools.product(range(1, most + 1), repeat=len(pieces)):
                if sum(slots) == workers:
                    largest = max(cost / own for cost, own in zip(pieces, slots, strict=True))
                    best = largest if best is None else min(best, largest)
    found = cut_evenly([float(c) for c in costs], workers, most)
    if best is None:
        assert found is None
        return
    assert found is not None
    starts, slots = found
    ends = (*starts[1:], len(costs))
    pieces = [sum(costs[a:b]) for a, b in zip(starts, ends, strict=True)]
    assert sum(slots) == workers and starts[0] == 0 and max(slots) <= most
    assert max(cost / own for cost, own in zip(pieces, slots, strict=True)) == pytest.approx(best)


def test_sharing_the_features_and_the_loss_count_with_the_first_layer_and_the_last() -> None:
    seconds = (10.0, 1.0, 2.0, 3.0, 20.0)

    def at(rows: int) -> tuple[Node, ...]:
        return tuple(Node(str(i), {"F": (Timed(rows * s),)}) for i, s in enumerate(seconds))

    assert layer_costs(at, 8, 2, FAST, 1, loss_alone=False) == pytest.approx([88.0, 16.0, 8 * 23.0])
    assert layer_costs(at, 8, 2, FAST, 1, loss_alone=True) == pytest.approx([88.0, 16.0, 24.0, 160.0])


def test_given_starts_and_slots() -> None:
    costs = [1.0, 1.0, 4.0, 1.0]
    assert cut_evenly(costs, 3, 3, starts=(0, 2)) == ((0, 2), (1, 2))
    assert cut_evenly(costs, 3, 3, slots=(1, 2)) == ((0, 2), (1, 2))
    assert cut_evenly(costs, 2, 3, starts=(0, 1, 2)) is None
    assert cut_evenly(costs, 4, 1, starts=(0,)) is None


def test_two_balanced_layers_on_two_cores() -> None:
    """Two workers halve the step: either as two stages, with a bubble, or as two slots, without."""
    found = choose(network(1.0, 1.0), 2, 8, FAST, 2, Wish(max_workers=2))
    assert found.sequential_s == pytest.approx(48)
    assert found.simulation.step_s == pytest.approx(24)
    assert found.best.schedule.slots == (2,)
    assert "2.00x" in found.why() and "100% of that" in found.why()


def test_stages_that_are_given_stay() -> None:
    found = choose(network(1.0, 1.0, 1.0, 1.0), 4, 16, FAST, 2, Wish((0, 2), (1, 1), schedule="1f1b"))
    assert found.best.cut.starts == (0, 2)
    assert found.best.schedule.name == "1f1b"
    # the largest number of micro-batches has the smallest bubble: one micro-batch of 16 rows, forward and back
    assert found.best.cut.microbatches == 16
    assert found.simulation.step_s == pytest.approx(16 * 6 + 6)


def test_one_core_wants_one_worker() -> None:
    found = choose(network(1.0, 1.0), 2, 8, FAST, 1)
    assert (found.best.schedule.name, len(found.best.schedule.workers)) == ("sequential", 1)


def test_sending_hides_behind_computing() -> None:
    """A layer that only sends and one that only computes: each can hide behind the other."""

    def at(rows: int) -> tuple[Node, ...]:
        sends = Node("sends", {d: (Timed(0.0, 1000 * rows, 1000 * rows),) for d in "FI"})
        computes = Node("computes", {d: (Timed(1.0 * rows),) for d in "FI"})
        return Node("features"), sends, computes, Node("loss")

    found = choose(at, 2, 32, Net(0.0, 1000), 1, Wish(max_workers=4))
    assert found.sequential_s == pytest.approx(128)
    assert found.best.bound.bound_s == pytest.approx(64)
    assert found.simulation.step_s < 1.1 * 64


@pytest.mark.parametrize(("latency_s", "workers"), [(0.2, 1), (2.0, 2)])
def test_a_further_worker_has_to_be_worth_it(latency_s: float, workers: int) -> None:
    """24 s of computing and a latency for each of three rounds, which a second worker hides: 2 % or 20 % of a step."""
    found = choose(network(1.0, sent_bytes=1), 1, 8, Net(2 * latency_s), 1, Wish(max_workers=2, pieces=1))
    assert len(found.best.schedule.workers) == workers
    assert found.sequential_s == pytest.approx(24.0 + 3 * latency_s)


def test_a_custom_schedule() -> None:
    text = "schedule mine: slots 1 1, micro-batches 2, steps 1\n0.0 | 0F0 0F1 0B0 0B1 0U\n1.0 | 1F0 1B0 1F1 1B1 1U"
    found = choose(network(1.0, 1.0, 2.0), 3, 2, FAST, 2, Wish(schedule=loads(text)))
    assert found.best.cut.starts == (0, 2)
    assert found.simulation.step_s == pytest.approx(3 * 6)
    with pytest.raises(PlanError, match="the schedule has 2 stages, which do not fit stages = \\[0, 1, 2\\]"):
        choose(network(1.0, 1.0, 2.0), 3, 2, FAST, 2, Wish((0, 1, 2), schedule=loads(text)))
    with pytest.raises(PlanError, match="the schedule has 2 micro-batches, but microbatches = 4"):
        choose(network(1.0, 1.0), 2, 4, FAST, 2, Wish(microbatches=4, schedule=loads(text)))


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zero-bubble", "interleaved", "async"])
def test_any_schedule_by_name(name: str) -> None:
    found = choose(network(1.0, 1.0, 1.0, 1.0), 4, 16, FAST, 4, Wish(schedule=name, max_workers=4))
    assert found.best.schedule.name == name
    assert found.best.bound.bound_s * (1 - 1e-9) <= found.simulation.step_s <= found.sequential_s


def test_sequential_is_one_worker() -> None:
    found = choose(network(1.0, 1.0), 2, 8, FAST, 2, Wish(schedule="sequential"))
    assert (len(found.best.schedule.workers), found.best.cut.microbatches) == (1, 1)


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (Wish(starts=(0, 5)), "there is no layer 5; the model has layers 0 to 3"),
        (Wish(starts=(0, 4)), "there is no layer 4"),
        (Wish(starts=(1, 2)), "the first stage begins with layer 0"),
        (Wish(starts=()), "the first stage begins with layer 0"),
        (Wish(starts=(0, 3, 2)), "2 comes after 3, but first layers must rise"),
        (Wish(starts=(0, 2, 2)), "2 comes after 2"),
        (Wish(starts=(0, 2), slots=(1,)), "differ in number"),
        (Wish(starts=(0, 2), slots=(1, 4), microbatches=2), "stage 1 has 4 slots for 2 micro-batches"),
        (Wish(slots=(1, 4), microbatches=2), "stage 1 has 4 slots for 2 micro-batches"),
        (Wish(microbatches=9), "a batch of 8 rows cannot be cut into 9 micro-batches"),
        (Wish(schedule="gpip"), "did you mean 'gpipe'"),
        (Wish(slots=(1, 2), schedule="interleaved"), "same number of slots"),
    ],
)
def test_wishes_that_cannot_be_had(wish: Wish, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        choose(network(1.0, 1.0, 1.0, 1.0), 4, 8, FAST, 2, wish)


def test_a_stage_of_the_loss_alone() -> None:
    check_stages((0, 2), 2, loss_alone=True)
    with pytest.raises(PlanError):
        check_stages((0, 2), 2)


def test_what_a_stage_does() -> None:
    """Features first, loss last; the way back in the other order; the update of all layers in the same rounds."""

    def at(rows: int) -> tuple[Node, ...]:
        one = {
            "F": (Timed(1.0, 8, 8), Timed(2.0)),
            "I": (Timed(3.0, 9, 9),),
            "W": (Timed(4.0),),
            "U": (Timed(5.0, 1, 1),),
        }
        two = {"F": (Timed(0.5),), "I": (Timed(0.25, 2, 2), Timed(1.0)), "W": (Timed(8.0),), "U": (Timed(6.0, 2, 2),)}
        return (
            Node("features", {"F": (Timed(0.1, 7, 7),)}),
            Node("a", one),
            Node("b", two),
            Node("loss", {"F": (Timed(9.0),)}),
        )

    cut = Cut(at, (0,), 1, 1)
    assert cut.trace(Action(0, "F", 0)) == (Timed(0.1, 7, 7), Timed(1.0, 8, 8), Timed(2.0 + 0.5 + 9.0))
    assert cut.trace(Action(0, "I", 0)) == (Timed(0.25, 2, 2), Timed(1.0 + 3.0, 9, 9))
    assert cut.trace(Action(0, "B", 0)) == (Timed(0.25, 2, 2), Timed(4.0, 9, 9), Timed(12.0))
    assert cut.trace(Action(0, "U")) == (Timed(11.0, 3, 3),)
    halves = Cut(at, (0, 1), 1, 1)
    assert halves.trace(Action(0, "F", 0)) == (Timed(0.1, 7, 7), Timed(1.0, 8, 8), Timed(2.0))
    assert halves.trace(Action(1, "F", 0)) == (Timed(9.5),)
    assert [node.name for node in halves.layers(1)] == ["b"]
    sums = cut.totals(0)
    assert (sums.compute_s, sums.sent_bytes, sums.rounds) == (pytest.approx(12.6 + 16.25 + 11), 7 + 8 + 2 + 9 + 3, 5)


def test_the_last_micro_batches_are_smaller() -> None:
    assert split(10, 4) == (3, 3, 2, 2)
    cut = Cut(network(1.0), (0,), 10, 4)
    assert [cut.trace(Action(0, "F", m))[0].compute_s for m in (0, 1, 2, 3, 4)] == [3, 3, 2, 2, 3]


def test_computing_without_a_round_between_is_one_piece() -> None:
    assert joined([(Timed(1.0), Timed(2.0)), (Timed(3.0, 1, 1),), ()]) == (Timed(6.0, 1, 1),)


def test_between_two_measurements() -> None:
    plain = network(1.0, sent_bytes=10)
    few, many = plain(4), plain(8)
    at = between(few, 4, many, 8)
    assert at(4) == few and at(8) == many
    assert at(6)[1].traces["F"] == (Timed(6.0, 10, 10),)


def test_devices() -> None:
    assert all(machine.estimated for machine in DEVICES.values())
    assert device("h100").macs_per_s > device("v100").macs_per_s
    with pytest.raises(PlanError, match="did you mean 'h100'"):
        device("h10")
    assert replace(device("h100"), name="x").name == "x"
