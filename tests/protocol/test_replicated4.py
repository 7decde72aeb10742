"""replicated4 when a party deviates: one bit flipped in any message ends in an abort, never in a wrong result."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from mpcpipe.errors import IntegrityError
from mpcpipe.protocol.replicated4 import Replicated4
from mpcpipe.protocol.replicated4.evidence import Journal
from mpcpipe.protocol.rounds import Operation
from mpcpipe.ring.bilinear import MUL
from tests.simulate import parties, share, together

Message = tuple[str, int, int, int]
"""Label, sender, receiver, number of the part."""

OPENING = "opened#1.reveal"
X = torch.tensor([5, -3, 100, 0, -77])
Y = torch.tensor([2, 9, -4, 1, 3])


async def _shared(p: Replicated4, owner: int = 0) -> torch.Tensor:
    return await p.share(X if p.party == owner else None, owner, (5,))


async def _truncated(p: Replicated4) -> torch.Tensor:
    x = await _shared(p)
    return await p.truncate(x, 3)


async def _product(p: Replicated4, truncate: int) -> torch.Tensor:
    x = await _shared(p)
    return await p.product(MUL, x, await p.share(Y if p.party == 1 else None, 1, (5,)), truncate)


async def _sign(p: Replicated4) -> torch.Tensor:
    return await p.to_ring(await p.nonnegative(await _shared(p)))


async def _selected(p: Replicated4) -> torch.Tensor:
    x = await _shared(p)
    y, selector = await p.select(await p.nonnegative(x), x)
    return y + await p.select_again(selector, x)


PROGRAMS: dict[str, tuple[Callable[[Replicated4], Operation[Any]], set[int]]] = {
    "share, owner 0": (lambda p: _shared(p, 0), {0}),
    "share, owner 2": (lambda p: _shared(p, 2), {0}),
    "product": (lambda p: _product(p, 0), {0}),
    "product and truncation": (lambda p: _product(p, 5), {0, 1}),
    "truncation": (_truncated, {0, 1}),
    "comparison and bit to ring": (_sign, {0}),
    "selection": (_selected, {0}),
}


def _right(name: str) -> torch.Tensor:
    """The result, rounded down."""
    if name.startswith("product"):
        return X * Y >> (5 if "truncation" in name else 0)
    positive = (X >= 0).to(torch.int64)
    return {"truncation": X >> 3, "comparison and bit to ring": positive, "selection": 2 * X * positive}.get(name, X)


def _run(name: str, to: int | None, seen: list[Message], flipped: Message | None = None) -> list[Any]:
    """What each party learns; `seen` gets all messages. `flipped`: the one whose first bit is flipped on its way."""

    def tamper(label: str, sender: int, receiver: int, part: int, value: torch.Tensor) -> None:
        seen.append((label, sender, receiver, part))
        if seen[-1] == flipped:
            value.view(torch.uint8)[0] ^= 1

    async def program(p: Replicated4) -> Any:
        return await p.at("opened").reveal(await PROGRAMS[name][0](p.at("step 7")), to, "test")

    return together(parties(Replicated4, 64, 8), program, tamper).results


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_flipped_bit_in_any_message_of_any_sender_ends_in_an_abort_that_says_where(name: str) -> None:
    """No message is left out, and nothing is opened once one is wrong. Programs without one are right."""
    messages: list[Message] = []
    for value in _run(name, None, messages):
        assert set((value - _right(name)).tolist()) <= PROGRAMS[name][1]
    assert {sender for _, sender, _, _ in messages} == {0, 1, 2, 3}
    assert len(set(messages)) == len(messages)
    for message in messages:
        seen: list[Message] = []
        with pytest.raises(IntegrityError, match=r"at 'opened#1\.reveal"):
            _run(name, None, seen, message)
        assert message[0] == OPENING or OPENING not in {label for label, *_ in seen}, f"opened after {message}"


@pytest.mark.parametrize("to", range(4))
def test_a_flipped_bit_is_noticed_when_one_party_learns_the_result(to: int) -> None:
    """Also by those who learn nothing; the others do not open then."""
    messages: list[Message] = []
    opened = _run("product", to, messages)
    assert [value is not None for value in opened] == [party == to for party in range(4)]
    for message in messages:
        with pytest.raises(IntegrityError):
            _run("product", to, [], message)


def test_a_check_finds_it_at_the_end_of_a_step_and_names_the_last_good_place() -> None:
    ps = parties(Replicated4)
    x = share([p.at("step 1") for p in ps], X)
    together([p.at("end of step 1") for p in ps], lambda p: p.check())

    def flip(label: str, sender: int, receiver: int, part: int, value: torch.Tensor) -> None:
        if (sender, part) == (2, 0):
            value[0] ^= 1 << 62

    y = together([p.at("step 2") for p in ps], lambda p: p.product(MUL, x[p.party], x[p.party]), flip).results
    assert len(y) == 4
    said = r"'end of step 2#1\.check'.*sent each other after 'end of step 1#1\.check' does not agree"
    with pytest.raises(IntegrityError, match=said):
        together([p.at("end of step 2") for p in ps], lambda p: p.check())


def test_a_check_does_not_show_a_deviating_party_what_its_deviation_has_made_of_a_secret() -> None:
    """Party 0 sends party 1 a wrong share of x. So parties 1 and 2 or 3 disagree about x y by a multiple of y's part
    that party 0 lacks; and the tag of what one of them would have sent it, under a key that it has, says by how much.
    """
    ps = parties(Replicated4)
    y = share(ps, Y)
    tags: dict[int, list[int]] = {party: [] for party in range(4)}
    for p in ps:

        def noted(lane: int, sums: Mapping[Any, int], own: Journal = p.journal, to: int = p.party) -> None:
            tags[to] += sums.values()
            Journal.record(own, lane, sums)

        p.journal.record = noted  # type: ignore[method-assign]

    def flip(label: str, sender: int, receiver: int, part: int, value: torch.Tensor) -> None:
        if (sender, receiver) == (0, 1) and "share" in label:
            value[0] += 1

    async def product(p: Replicated4) -> Any:
        x = await _shared(p)
        await p.product(MUL, x, y[p.party], 5)
        await p.check()

    shown: list[bytes] = []

    def seen(label: str, sender: int, receiver: int, part: int, value: torch.Tensor) -> None:
        flip(label, sender, receiver, part, value)
        if receiver == 0 and label.endswith("/check"):
            shown.append(bytes(value.numpy()))

    with pytest.raises(IntegrityError):
        together([p.at("one") for p in ps], product, seen)
    known = {tag.to_bytes(16, "big") for party in (1, 2, 3) for tag in tags[party]}
    assert shown and len(known) > 10
    assert not any(said[at : at + 16] in known for said in shown for at in range(0, len(said), 16))


@pytest.mark.parametrize("to", range(4))
def test_what_two_witnesses_know_in_parts_has_to_add_up(to: int) -> None:
    """A carry that is left out is noticed, too."""
    ps = parties(Replicated4)
    x = share(ps, X)

    def flip(label: str, sender: int, receiver: int, part: int, value: torch.Tensor) -> None:
        if (receiver, part) == (to, 1) and label.endswith("/halves"):
            value[0] ^= 2

    scoped = [p.at("t") for p in ps]
    together(scoped, lambda p: p.product(MUL, x[p.party], x[p.party], 5), flip)
    with pytest.raises(IntegrityError, match="does not agree"):
        together(scoped, lambda p: p.check())


def test_every_bit_of_a_tensor_counts() -> None:
    """Not only the first element's lowest bit: each bit of each byte of one message."""
    ps = parties(Replicated4, 32)
    x = share(ps, X.to(torch.int32))
    for position, bit in itertools.product((0, 3, 5, 11), range(8)):

        def flip(label: str, sender: int, receiver: int, part: int, value: torch.Tensor) -> None:
            if (sender, receiver, part) == (0, 1, 0):
                value.view(torch.uint8)[position] ^= 1 << bit  # noqa: B023

        scoped = [p.at(f"{position}.{bit}").lane(8 * position + bit + 1) for p in ps]
        z = together(scoped, lambda p: p.product(MUL, x[p.party], x[p.party]), flip).results
        assert len(z) == 4
        with pytest.raises(IntegrityError, match=r"party \d noticed"):
            together(scoped, lambda p: p.check())


def test_workers_at_different_places_are_no_deviation() -> None:
    """Lane 2 has got further at parties 0 and 1 than at 2 and 3. What lane 1 opens does not depend on that."""
    ps = parties(Replicated4)
    x = share(ps, X)
    start = [p.evidence() for p in ps]
    one, two = ([p.lane(number) for p in ps] for number in (1, 2))
    for p in [*one, *two]:
        p.learn(start[p.party])
    y = together([p.at("one") for p in one], lambda p: p.product(MUL, x[p.party], x[p.party])).results
    for party in (0, 1):
        two[party].journal.record(2, {(3, 0, 1): 12345})
    assert together([p.at("opened") for p in one], lambda p: p.reveal(y[p.party], None, "t")).results[0].equal(X * X)


def test_a_deviation_travels_with_what_is_handed_over() -> None:
    """A wrong message in lane 2 concerns lane 1 once it goes on with lane 2's values, and not before."""
    ps = parties(Replicated4)
    x = share(ps, X)
    start = [p.evidence() for p in ps]
    one, two = ([p.lane(number) for p in ps] for number in (1, 2))
    for p in [*one, *two]:
        p.learn(start[p.party])

    def flip(label: str, sender: int, receiver: int, part: int, value: torch.Tensor) -> None:
        if sender == 3:
            value[0] += 1

    y = together([p.at("two") for p in two], lambda p: p.product(MUL, x[p.party], x[p.party]), flip).results
    assert len(y) == 4
    together([p.at("early") for p in one], lambda p: p.check())
    for p in one:
        p.learn(two[p.party].evidence())
    with pytest.raises(IntegrityError, match="does not agree"):
        together([p.at("late") for p in one], lambda p: p.check())


def test_evidence_is_a_snapshot_and_the_longer_one_counts() -> None:
    journal, route = Journal(), (0, 1, 2)
    journal.record(1, {route: 5})
    early = journal.evidence(1)
    journal.record(1, {route: 7, (3, 1, 2): 1})
    late = journal.evidence(1)
    assert (early[1].count, early[1].sums) == (1, {route: 5})
    journal.record(2, {route: 100})
    for evidence in (late, early):
        journal.learn(2, evidence)
    assert journal.totals(2) == {route: 112, (3, 1, 2): 1}
    assert journal.totals(1) == {route: 12, (3, 1, 2): 1}
    journal.record(1, {route: (1 << 128) - 12})
    assert journal.totals(1)[route] == 0
