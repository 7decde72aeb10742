"""additive2: no view depends on a secret, exact and exhaustive; the dealer sees nothing; every mask is needed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from mpcpipe.protocol.additive2 import Additive2
from mpcpipe.protocol.base import Bits
from mpcpipe.ring import ops
from mpcpipe.ring.bilinear import MUL
from mpcpipe.ring.ring import Ring
from tests.privacy.enumerate import EnumerateTape, Key, Lanes, Operate, _columns, _histogram
from tests.simulate import Outcome, lockstep

DEALER = 2


class Noting(EnumerateTape):
    """An enumeration's tape that also keeps whose streams it was asked for."""

    def __init__(self, lanes: Lanes) -> None:
        super().__init__(lanes)
        self.holders: set[tuple[int, ...]] = set()

    def elements(self, holders: tuple[int, ...], label: str, numel: int, ring: Ring) -> torch.Tensor:
        self.holders.add(holders)
        return super().elements(holders, label, numel, ring)

    def planes(self, holders: tuple[int, ...], label: str, count: int, n: int) -> torch.Tensor:
        self.holders.add(holders)
        return super().planes(holders, label, count, n)


@dataclass(frozen=True)
class Case:
    """An operation, how many secrets it takes, the ring, and the bits of randomness that it uses."""

    operate: Operate
    secrets: int
    k: int
    lane_bits: int
    compare_bits: int = 2
    values: tuple[int, ...] | None = None  # the secrets that the operation allows; default: the whole ring


def _bits(p: Additive2, x: torch.Tensor) -> Bits:
    """The lowest bits of a shared secret's summands: XOR shares of a secret bit."""
    return Bits(ops.bit_planes(x.reshape(-1), 1), tuple(x.shape[1:]))


async def _select_again(p: Additive2, x: list[torch.Tensor]) -> Any:
    _, selector = await p.select(_bits(p, x[0]), x[1])
    return await p.select_again(selector, x[1])


def _level(p: Additive2, x: list[torch.Tensor]) -> Any:
    """A level of the tree that needs the propagate bit: one plane, used in two products."""
    first, second, third = (_bits(p, secret).data for secret in x)
    return p._ands(first, second, third, x[0].numel(), "level")


async def _kept(p: Additive2, x: list[torch.Tensor]) -> Any:
    """The same mask in two products."""
    first = p.keep(x[0])
    return await p.multiply(MUL, first, x[1]), await p.multiply(MUL, x[1], first)


CASES = {
    "product": Case(lambda p, x: p.multiply(MUL, x[0], x[1]), 2, 2, 14),
    "products of a kept factor": Case(_kept, 2, 2, 20, values=(0, 1)),
    "truncate": Case(lambda p, x: p.truncate(x[0], 1), 1, 3, 9, values=(0, 1, -1, -2)),
    "truncate by 2": Case(lambda p, x: p.truncate(x[0], 2), 1, 4, 12, values=(0, 1, -1, 3, -4)),
    "nonnegative, 2 bits": Case(lambda p, x: p.nonnegative(x[0]), 1, 2, 5),
    "nonnegative, 3 bits": Case(lambda p, x: p.nonnegative(x[0]), 1, 3, 14, 3),
    "level of the tree": Case(_level, 3, 2, 14, values=(0, 1)),
    "bit to ring": Case(lambda p, x: p.to_ring(_bits(p, x[0])), 1, 2, 6),
    "select": Case(lambda p, x: p.select(_bits(p, x[0]), x[1]), 2, 2, 14),
    "select again": Case(_select_again, 2, 2, 20, values=(0, 1)),
}


def views(
    operate: Operate,
    secrets: tuple[int, ...],
    k: int,
    lane_bits: int,
    compare_bits: int = 2,
    removed: Key | None = None,
) -> tuple[list[torch.Tensor], Lanes, Outcome, list[Noting]]:
    """The histograms of both parties' views of `operate` on uniformly shared secrets, and what led to them."""
    lanes, ring = Lanes(lane_bits, removed), Ring(k)
    held: list[list[torch.Tensor]] = [[], [], []]
    for index, secret in enumerate(secrets):
        x0 = lanes.digit(((), f"secret {index}"), k)
        for party, summand in enumerate((x0, secret - x0)):
            held[party].append(ring.wrap(summand.to(ring.dtype)).unsqueeze(0))
        held[DEALER].append(torch.empty((1, lanes.count), dtype=ring.dtype, device="meta"))
    tapes = [Noting(lanes) for _ in range(3)]
    parties = [Additive2(party=i, ring=ring, tape=tapes[i], compare_bits=compare_bits) for i in range(3)]
    outcome = lockstep([operate(p, held[p.party]) for p in parties])
    mask = (1 << k) - 1
    histograms = []
    for i in (0, 1):
        columns = [(component.to(torch.int64) & mask, k) for share in held[i] for component in share]
        columns += tapes[i].drawn
        for _, _, part in outcome.seen[i]:
            columns += _columns(part, lanes.count, ring)
        histograms.append(_histogram(columns))
    return histograms, lanes, outcome, tapes


def _views(case: Case, secrets: tuple[int, ...], removed: Key | None = None) -> list[torch.Tensor]:
    return views(case.operate, secrets, case.k, case.lane_bits, case.compare_bits, removed)[0]


def _secrets(case: Case) -> list[tuple[int, ...]]:
    half = 1 << (case.k - 1)
    return list(itertools.product(case.values or range(-half, half), repeat=case.secrets))


@pytest.mark.parametrize("name", CASES)
def test_no_view_depends_on_a_secret(name: str) -> None:
    case = CASES[name]
    first, *others = _secrets(case)
    expected = _views(case, first)
    for secrets in others:
        for party, (got, want) in enumerate(zip(_views(case, secrets), expected, strict=True)):
            assert torch.equal(got, want), f"party {party} can tell {secrets} from {first}"


@pytest.mark.parametrize("name", CASES)
def test_the_dealer_sees_its_own_streams_and_nothing_else(name: str) -> None:
    """No message reaches it, and it asks for no stream of the two parties' own; every bit of the lanes is used."""
    case = CASES[name]
    _, lanes, outcome, tapes = views(case.operate, _secrets(case)[0], case.k, case.lane_bits, case.compare_bits)
    assert outcome.seen[DEALER] == []
    assert tapes[DEALER].holders == {(0, DEALER), (1, DEALER)}
    assert all((1 - party, DEALER) not in tapes[party].holders for party in (0, 1))
    assert lanes.used == case.lane_bits


FOR_ROUNDING = "truncate/u"  # makes a truncation's rounding random; hides nothing


def _draws(case: Case) -> list[Key]:
    lanes = views(case.operate, _secrets(case)[0], case.k, case.lane_bits, case.compare_bits)[1]
    return [key for key in lanes.taken if key[0] and FOR_ROUNDING not in key[1]]


REMOVALS = [(name, key) for name in CASES if CASES[name].lane_bits < 20 for key in _draws(CASES[name])]


@pytest.mark.parametrize(("name", "removed"), REMOVALS)
def test_without_any_one_mask_somebody_learns_something(name: str, removed: Key) -> None:
    """The test of the test, and a proof that no mask is superfluous."""
    case = CASES[name]
    first, *others = _secrets(case)
    expected = _views(case, first, removed)
    for secrets in others:
        got = _views(case, secrets, removed)
        if any(not torch.equal(a, b) for a, b in zip(got, expected, strict=True)):
            return
    pytest.fail(f"without {removed} nothing changes: the mask hides nothing, or the test sees nothing")


@pytest.mark.parametrize("owner", [0, 1])
def test_sharing_hides_the_input(owner: int) -> None:
    """The other party gets a stream, whatever the input is, and the dealer nothing; no message is sent."""

    def outcome(secret: int) -> tuple[list[Any], Outcome]:
        lanes, ring = Lanes(3), Ring(3)
        ps = [Additive2(party=i, ring=ring, tape=EnumerateTape(lanes), compare_bits=2) for i in range(3)]
        value = torch.full((lanes.count,), secret, dtype=ring.dtype)
        done = lockstep([p.share(value if p.party == owner else None, owner, (lanes.count,)) for p in ps])
        return done.results, done

    expected, _ = outcome(0)
    for secret in (1, 3, -4):
        results, done = outcome(secret)
        assert torch.equal(results[1 - owner], expected[1 - owner])
        assert torch.equal(results[1 - owner][0].sort().values, torch.arange(-4, 4, dtype=torch.int32))
        assert results[DEALER].is_meta and sum(done.sent_bytes) == 0


def test_a_reveal_tells_the_value_and_nothing_else() -> None:
    """Products that are equal give equal views, whatever their factors, once they are opened to party 1."""

    async def opened(p: Additive2, x: list[torch.Tensor]) -> Any:
        return await p.reveal(await p.product(MUL, x[0], x[1]), 1, "the product")

    seen = {s: views(opened, s, 2, 14)[0] for s in itertools.product(range(4), repeat=2)}
    for (a, one), (b, two) in itertools.combinations(seen.items(), 2):
        same_product = (a[0] * a[1] - b[0] * b[1]) % 4 == 0
        assert torch.equal(one[1], two[1]) == same_product
        assert torch.equal(one[0], two[0])
