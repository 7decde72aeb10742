"""replicated4: an abort tells who deviates nothing, exhaustively: every message of every party is changed, for every
value of what that party lacks, and who stops, where, and with which words, is always the same. So is what it can work
out of the numbers by which the parties compare: those that it got add up to 0 if nobody found anything, and never do.

    x_3 of party 1 is wrong by e ──> parties 1 and 2 disagree about x y by e y_0 ──> do they, if it is 0?
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from mpcpipe.errors import IntegrityError
from mpcpipe.protocol.replicated4 import Replicated4
from mpcpipe.protocol.replicated4.roles import others
from mpcpipe.protocol.rounds import Operation
from mpcpipe.random.mac import MODULUS, packed, unpacked
from mpcpipe.ring.bilinear import MUL
from tests.simulate import Tamper, parties, share, together

K = 3
"""Bits of the ring: truncation wants so many."""

Program = Callable[[Replicated4, torch.Tensor, torch.Tensor], Operation[Any]]
Message = tuple[str, int, int]
"""Label, receiver, number of the part."""


async def _product(p: Replicated4, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return await p.product(MUL, x, y)


async def _quotient(p: Replicated4, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return await p.product(MUL, x, y, 1)


async def _selected(p: Replicated4, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (await p.select(await p.nonnegative(y), x))[0]


PROGRAMS: dict[str, Program] = {"product": _product, "quotient": _quotient, "selected": _selected}


@dataclass(frozen=True)
class Seen:
    """By whom the run was ended after how many rounds, with which words; and of what the deviating party was sent in
    each round of numbers whether it adds up to 0.
    """

    stopped: tuple[tuple[int, int, str], ...]
    agree: tuple[tuple[str, bool], ...]


LACKING = (0, 1, -2, -4)
"""Even ones and odd ones, and one that is 0 times anything even."""


def _run(
    program: Program,
    corrupt: int,
    lacking: int,
    messages: list[Message],
    changed: Message | None,
    change: Callable[[torch.Tensor], None],
) -> Seen:
    """x is shared, y is there already, two elements each. lacking: the component of y that `corrupt` has not."""
    ps = parties(Replicated4, K, 2)
    components = [torch.tensor([(3 * i + 1) % 4, i], dtype=torch.int32) for i in range(4)]
    components[corrupt] = torch.full((2,), lacking, dtype=torch.int32)

    async def whole(p: Replicated4) -> None:
        given = torch.tensor([1, -2], dtype=torch.int32) if p.party == corrupt else None
        x = await p.at("x").share(given, corrupt, (2,))
        y = torch.stack([components[(p.party + step) % 4] for step in (1, 2, 3)])
        z = await program(p.at("z"), x, y)
        await p.at("z").reveal(z, corrupt, "test")

    running = {p.party: whole(p) for p in ps}
    inbox: dict[int, Any] = dict.fromkeys(running)
    agree: list[tuple[str, bool]] = []
    for number in itertools.count():
        stopped, steps = [], {}
        for party, operation in running.items():
            try:
                steps[party] = operation.send(inbox[party])
            except IntegrityError as error:
                stopped.append((number, party, str(error)))
            except StopIteration:
                pass
        if stopped or not steps:
            for operation in running.values():
                operation.close()
            return Seen(tuple(found for found in stopped if found[1] != corrupt), tuple(agree))
        inbox = {party: {} for party in steps}
        for party, step in steps.items():
            for peer, given in step.send.items():
                copies = [part.clone() for part in given]
                for part, copied in enumerate(copies):
                    if party == corrupt and copied.numel():
                        messages.append((step.label, peer, part))
                        if messages[-1] == changed:
                            change(copied)
                inbox[peer][party] = copies
        label = next(iter(steps.values())).label
        if label.endswith(("/check", "/agreed")) and "/parts/" not in label:
            said = [unpacked(inbox[corrupt][peer][0]) for peer in others(corrupt)]
            agree.append((label, sum(sum(numbers) for numbers in said) % MODULUS == 0))
    raise AssertionError


def _flip(value: torch.Tensor) -> None:
    value.view(torch.uint8)[0] ^= 1


def _by_half(value: torch.Tensor) -> None:
    """By the highest bit of the ring, which only odd numbers keep."""
    value.view(torch.uint8)[0] ^= 1 << (K - 1)


@pytest.mark.parametrize(("name", "corrupt"), [(name, corrupt) for name in PROGRAMS for corrupt in range(4)])
def test_whether_where_and_how_a_run_ends_depends_on_no_secret(name: str, corrupt: int) -> None:
    program, messages = PROGRAMS[name], list[Message]()
    right = _run(program, corrupt, 0, messages, None, _flip)
    assert not right.stopped
    assert right.agree == (("z#1.reveal/check", True), ("z#1.reveal/agreed", True))
    for message in messages:
        label, receiver, part = message
        for change in (_flip, _by_half) if "reveal" not in label else (_flip,):
            first, *rest = (_run(program, corrupt, lacking, [], message, change) for lacking in LACKING)
            assert all(seen == first for seen in rest), f"a change of {message} tells party {corrupt} something"
            if change is _by_half and label.endswith("reduce/halves") and part == 1:
                assert not first.stopped  # one carry, and that is the third bit of its word: nobody reads it
                continue
            if label.endswith("/agreed"):  # of this alone only one hears
                assert [party for _, party, _ in first.stopped] == [receiver]
                continue
            assert {party for _, party, _ in first.stopped} == set(others(corrupt)), message
            in_checks = label.endswith("reveal/check")  # what who deviates was sent then is as it should be
            assert [agreed for _, agreed in first.agree] == [in_checks, False], message


def _doubled(ps: list[Any], tamper: Tamper) -> list[Any]:
    """x, then twice the same: select, check. What party 0 sends is in `tamper`'s hands."""
    x = share([p.at("x") for p in ps], torch.tensor([3, -1, 2], dtype=torch.int32))

    async def once(p: Replicated4, scope: str) -> Any:
        y, _ = await p.at(scope).select(await p.at(f"{scope}/sign").nonnegative(x[p.party]), x[p.party])
        return await p.at(f"{scope}/open").reveal(y, None, "test")

    for scope in ("one", "two"):
        opened = together(ps, lambda p: once(p, scope), tamper).results  # noqa: B023
    return opened


def _says(label: str) -> str:
    return label.partition("#")[2]


@pytest.mark.parametrize("part", ["select/halves", "select/both", "nonnegative/and", "reveal/check", "reveal/agreed"])
def test_what_was_right_before_is_wrong_now(part: str) -> None:
    """Every message of party 0 in one round is the one that it sent the first time."""
    before: dict[tuple[str, int, int], torch.Tensor] = {}

    def replayed(label: str, sender: int, receiver: int, number: int, value: torch.Tensor) -> None:
        if sender == 0 and _says(label).endswith(part):
            if label.startswith("one"):
                before[_says(label), receiver, number] = value.clone()
            else:
                value.copy_(before[_says(label), receiver, number])

    with pytest.raises(IntegrityError, match=r"noticed at 'two/open"):
        _doubled(parties(Replicated4, 16, 8), replayed)
    assert before


def test_two_messages_of_one_size_are_not_exchanged() -> None:
    first: dict[int, torch.Tensor] = {}

    def exchanged(label: str, sender: int, receiver: int, number: int, value: torch.Tensor) -> None:
        if sender == 0 and label.startswith("two") and label.endswith("/halves"):
            if number == 0:
                first[receiver] = value
            else:
                value[:], first[receiver][:] = first[receiver].clone(), value.clone()

    with pytest.raises(IntegrityError, match=r"noticed at 'two/open"):
        _doubled(parties(Replicated4, 16, 8), exchanged)
    assert first


@pytest.mark.parametrize("rounds", [("check",), ("agreed",), ("check", "agreed")])
def test_who_speaks_last_cannot_make_the_numbers_add_up(rounds: tuple[str, ...]) -> None:
    """Party 0 deviates, hears what the others say in the check, and answers with what is missing to 0."""
    heard: dict[str, int] = {}

    def cancelled(label: str, sender: int, receiver: int, number: int, value: torch.Tensor) -> None:
        if label.startswith("one"):
            return
        if sender == 0 and label.endswith("/halves"):
            value[0] ^= 1
        if label.rpartition("/")[2] in rounds and "/parts/" not in label:
            if receiver == 0:  # lockstep hands its messages over first
                heard[label] = heard.get(label, 0) + unpacked(value)[0]
            elif sender == 0:
                value.copy_(packed([-heard[label] % MODULUS]))

    with pytest.raises(IntegrityError, match=r"noticed at 'two/open"):
        _doubled(parties(Replicated4, 16, 8), cancelled)
    assert heard
