"""The key test: pipelined equals sequential, bit for bit, at every party, for every schedule, cut and slots."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from mpcpipe.errors import PlanError
from mpcpipe.nn import grain
from mpcpipe.nn.fixed import Fixed
from mpcpipe.plan.schedule import SCHEDULES, build
from mpcpipe.protocol.additive2 import Additive2
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.replicated3 import Replicated3
from mpcpipe.protocol.replicated4 import Replicated4
from tests.runtime.crews import CLASSES, Rows, train

SHAPE = (1, 6, 6)
LAYERS = 9


def small_net() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(3, 4, 2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, CLASSES)),
    )


@cache
def sequential(microbatches: int) -> list[dict[str, torch.Tensor]]:
    return train(small_net, SHAPE, [0], build("sequential", [1], microbatches))


def assert_equal(got: list[dict[str, torch.Tensor]], wanted: list[dict[str, torch.Tensor]]) -> None:
    for party, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert a.keys() == b.keys()
        for name in b:
            assert torch.equal(a[name], b[name]), f"{name} differs at party {party}"


EXACT = [name for name in SCHEDULES if name != "async"]


@pytest.mark.parametrize("name", EXACT)
def test_every_exact_schedule_gives_the_sequential_bits(name: str) -> None:
    firsts = [0, 3, 6] if name != "interleaved" else [0, 2, 3, 6]
    slots = [1] * len(firsts)
    assert_equal(train(small_net, SHAPE, firsts, build(name, slots, 4)), sequential(4))


@pytest.mark.parametrize("slots", [[2, 1, 1], [1, 2, 3], [2, 2, 2]])
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zero-bubble"])
def test_slots_do_not_change_the_bits(name: str, slots: list[int]) -> None:
    assert_equal(train(small_net, SHAPE, [0, 3, 6], build(name, slots, 4)), sequential(4))


def test_a_dealer_takes_part_in_every_schedule() -> None:
    """The parties that compute have the sequential bits; the dealer, which is far ahead, has no value of anything."""
    *computing, dealer = train(small_net, SHAPE, [0], build("sequential", [1], 4), kind=Additive2)
    assert all(value.is_meta for value in dealer.values())
    for name, firsts, slots in (("zero-bubble", [0, 3, 6], [1, 1, 1]), ("1f1b", [0, 3, 6], [2, 1, 2])):
        assert_equal(train(small_net, SHAPE, firsts, build(name, slots, 4), kind=Additive2)[:2], computing)


@pytest.mark.parametrize(("name", "slots"), [("zero-bubble", [1, 1, 1]), ("1f1b", [2, 1, 2])])
def test_witnesses_agree_in_every_schedule(name: str, slots: list[int]) -> None:
    """Losses are opened, after a check, amid other workers' messages; and the bits are the sequential ones."""
    wanted = train(small_net, SHAPE, [0], build("sequential", [1], 4), steps=2, kind=Replicated4, reveal_loss=True)
    schedule = build(name, slots, 4)
    assert_equal(train(small_net, SHAPE, [0, 3, 6], schedule, steps=2, kind=Replicated4, reveal_loss=True), wanted)


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_cut_any_slots_any_microbatches(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["gpipe", "1f1b", "zero-bubble"]))
    inner = data.draw(st.sets(st.integers(1, LAYERS - 1), max_size=4))
    firsts = [0, *sorted(inner)]
    microbatches = data.draw(st.integers(1, 5))
    slots = [data.draw(st.integers(1, min(2, microbatches))) for _ in firsts]
    assert_equal(train(small_net, SHAPE, firsts, build(name, slots, microbatches)), sequential(microbatches))


def test_async_is_what_its_versions_say_and_not_sequential() -> None:
    """Deterministic (twice the same bits), and stale: not the sequential bits."""
    schedule = build("async", [1, 1, 1], 2, 3)
    once, again = (train(small_net, SHAPE, [0, 3, 6], schedule) for _ in range(2))
    assert_equal(once, again)
    assert not torch.equal(once[0]["0.weight"], sequential(2)[0]["0.weight"])
    one_stage = train(small_net, SHAPE, [0], build("async", [1], 2, 3))
    assert_equal(one_stage, sequential(2))


@pytest.fixture
def fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of any size, so that small networks are cut, too; but for the last layers, which stay whole."""
    monkeypatch.setattr(grain, "LEAST_NUMEL", 16)


@pytest.mark.usefixtures("fine")
@pytest.mark.parametrize("kind", [Replicated3, Additive2, Replicated4])
def test_pieces_that_overlap_have_the_bits_of_those_that_do_not(kind: type[Protocol]) -> None:
    """In other schedules, too."""
    wanted = train(small_net, SHAPE, [0], build("sequential", [1], 2), kind=kind, pieces=2)
    computing = slice(2 if kind is Additive2 else None)
    for name, firsts, slots in (("1f1b", [0], [1]), ("zero-bubble", [0, 3, 6], [2, 1, 2])):
        got = train(small_net, SHAPE, firsts, build(name, slots, 2), kind=kind, pieces=2)
        assert_equal(got[computing], wanted[computing])


def opened(weights: list[dict[str, torch.Tensor]], name: str) -> torch.Tensor:
    """The value in units, from replicated3's first components."""
    return torch.stack([own[name][0] for own in weights]).sum(0)


@pytest.mark.usefixtures("fine")
def test_other_pieces_round_otherwise_and_no_more() -> None:
    whole = train(small_net, SHAPE, [0], build("sequential", [1], 1))
    pieces = train(small_net, SHAPE, [0], build("1f1b", [1], 1), pieces=3)
    error = (opened(pieces, "0.weight") - opened(whole, "0.weight")).abs()
    assert 0 < error.max() < 100 < opened(whole, "0.weight").abs().max()


@pytest.mark.usefixtures("fine")
def test_rows_that_depend_on_each_other_stay_together() -> None:
    """Batch normalization has the mean of all rows, in pieces or not: same running statistics up to the rounding."""

    def net() -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()),
            nn.Linear(27, CLASSES),
        )

    def mean(pieces: int, name: str) -> torch.Tensor:
        schedule = build(name, [1], 1)
        return opened(train(net, SHAPE, [0], schedule, steps=1, pieces=pieces), "1.running_mean")

    whole = mean(1, "sequential")
    assert whole.abs().min() > 100
    assert (mean(2, "1f1b") - whole).abs().max() <= 8


class Breaks(Rows):
    """Party 1 finds, in its second step, that something is wrong."""

    async def features(self, p: Protocol, rows: torch.Tensor) -> Fixed:
        if self.party == 1 and int(rows[0]) >= 10:
            raise PlanError("planted")
        return await super().features(p, rows)


@pytest.mark.parametrize("firsts", [[0, 3, 6], [0]])
def test_a_worker_that_fails_ends_all_with_its_cause(firsts: list[int]) -> None:
    slots = [1] * len(firsts)
    with pytest.raises(PlanError, match="planted"):
        train(small_net, SHAPE, firsts, build("1f1b", slots, 2), feed=Breaks)
