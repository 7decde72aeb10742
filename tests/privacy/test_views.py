"""No party's view depends on a secret: exact and exhaustive, for every interactive operation; and it does if a mask is
missing.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from mpcpipe.protocol.base import Bits
from mpcpipe.protocol.replicated3 import Replicated3
from mpcpipe.ring import ops
from mpcpipe.ring.bilinear import MUL
from mpcpipe.ring.ring import Ring
from tests.privacy.enumerate import EnumerateTape, Key, Lanes, Operate, views
from tests.simulate import lockstep


@dataclass(frozen=True)
class Case:
    """An operation, how many secrets it takes, the ring, and the bits of randomness that it uses."""

    operate: Operate
    secrets: int
    k: int
    lane_bits: int
    compare_bits: int = 2
    values: tuple[int, ...] | None = None  # the secrets that the operation allows; default: the whole ring


def _bits(p: Replicated3, x: torch.Tensor) -> Bits:
    """The lowest bits of two shared secrets' summands, as shared bits: uniform XOR shares of a secret bit."""
    planes = torch.cat([ops.bit_planes(component.reshape(-1), 1) for component in x])
    return Bits(planes, tuple(x.shape[1:]))


async def _truncated_product(p: Replicated3, x: list[torch.Tensor]) -> Any:
    z = await p.multiply(MUL, x[0], p.public(torch.ones(x[0].shape[1:], dtype=p.ring.dtype)))
    return await p.reduce_many(z, 1)


def _few_truncated(p: Replicated3, x: list[torch.Tensor]) -> Any:
    """2 x, as summands that neither of the others knows: party p's is x_p + x_{p+1}."""
    return p.reduce_few(p.ring.wrap(x[0][:1] + x[0][1:]), 1)


async def _select_again(p: Replicated3, x: list[torch.Tensor]) -> Any:
    _, selector = await p.select(_bits(p, x[0]), x[1])
    return await p.select_again(selector, x[1])


CASES = {
    "product": Case(lambda p, x: p.product(MUL, x[0], x[1]), 2, 2, 14),
    "product and truncation": Case(_truncated_product, 1, 3, 18, values=(0, 1, -1, -2)),
    "product and truncation of few": Case(_few_truncated, 1, 3, 18, values=(0, -1, 3, -4)),
    "truncate": Case(lambda p, x: p.truncate(x[0], 1), 1, 3, 18, values=(0, 1, -1, -2)),
    "nonnegative, 2 bits": Case(lambda p, x: p.nonnegative(x[0]), 1, 2, 8),
    "nonnegative, 3 bits": Case(lambda p, x: p.nonnegative(x[0]), 1, 3, 16, 3),
    "bit to ring": Case(lambda p, x: p.to_ring(_bits(p, x[0])), 1, 2, 10),
    "select": Case(lambda p, x: p.select(_bits(p, x[0]), x[1]), 2, 2, 16),
    "select again": Case(_select_again, 2, 2, 22, values=(0, 1)),  # the largest: 4 million lanes
}


def _secrets(case: Case) -> list[tuple[int, ...]]:
    half = 1 << (case.k - 1)
    values = case.values or tuple(range(-half, half))
    return list(itertools.product(values, repeat=case.secrets))


def _all_views(case: Case, chunk: int, secrets: tuple[int, ...], removed: Key | None = None) -> list[torch.Tensor]:
    return views(
        case.operate,
        secrets,
        k=case.k,
        lane_bits=case.lane_bits,
        chunk=chunk,
        compare_bits=case.compare_bits,
        removed=removed,
    )[0]


@pytest.mark.parametrize(
    ("name", "chunk"), [(name, chunk) for name in CASES for chunk in (0, 1, 2) if name != "select again" or chunk == 1]
)
def test_no_view_depends_on_a_secret(name: str, chunk: int) -> None:
    case = CASES[name]
    first, *others = _secrets(case)
    expected = _all_views(case, chunk, first)
    for secrets in others:
        for party, (got, want) in enumerate(zip(_all_views(case, chunk, secrets), expected, strict=True)):
            assert torch.equal(got, want), f"party {party} can tell {secrets} from {first}"


FOR_ROUNDING = "truncate/u/01"  # makes a truncation's rounding random; hides nothing


def _draws(name: str, chunk: int) -> list[Key]:
    case = CASES[name]
    _, lanes = views(
        case.operate, _secrets(case)[0], k=case.k, lane_bits=case.lane_bits, chunk=chunk, compare_bits=case.compare_bits
    )
    return [key for key in lanes.taken if key[0] and FOR_ROUNDING not in key[1]]


REMOVALS = [(name, key) for name in CASES if name != "select again" for key in _draws(name, 1)]


@pytest.mark.parametrize(("name", "removed"), REMOVALS)
def test_without_any_one_mask_somebody_learns_something(name: str, removed: Key) -> None:
    """The test of the test, and a proof that no mask is superfluous."""
    case = CASES[name]
    first, *others = _secrets(case)
    expected = _all_views(case, 1, first, removed)
    for secrets in others:
        got = _all_views(case, 1, secrets, removed)
        if any(not torch.equal(a, b) for a, b in zip(got, expected, strict=True)):
            return
    pytest.fail(f"without {removed} nothing changes: the mask hides nothing, or the test sees nothing")


@pytest.mark.parametrize("owner", [0, 1, 2])
def test_sharing_hides_the_input(owner: int) -> None:
    """What the two other parties hold and receive is the same for every input; one secret a lane, one stream."""

    def histogram(secret: int) -> list[torch.Tensor]:
        lanes, ring = Lanes(6), Ring(3)
        tapes = [EnumerateTape(lanes) for _ in range(3)]
        ps = [Replicated3(party=i, ring=ring, tape=tapes[i], compare_bits=2) for i in range(3)]
        value = torch.full((lanes.count,), secret, dtype=ring.dtype)
        outcome = lockstep([p.share(value if p.party == owner else None, owner, (lanes.count,)) for p in ps])
        return [(result.to(torch.int64) + 4)[0] * 8 + result[1] + 4 for result in outcome.results]

    expected = histogram(0)
    for secret in (1, 3, -4):
        got = histogram(secret)
        for party in {0, 1, 2} - {owner}:
            assert torch.equal(got[party].sort().values, expected[party].sort().values)
        assert not torch.equal(got[owner].sort().values, expected[owner].sort().values) or secret == 0


def test_a_reveal_tells_the_value_and_nothing_else() -> None:
    """Products that are equal give equal views, whatever their factors, once they are opened to party 1."""

    async def opened(p: Replicated3, x: list[torch.Tensor]) -> Any:
        return await p.reveal(await p.product(MUL, x[0], x[1]), 1, "the product")

    for chunk in (0, 1, 2):
        seen = {s: views(opened, s, k=2, lane_bits=14, chunk=chunk)[0] for s in itertools.product(range(4), repeat=2)}
        for (a, one), (b, two) in itertools.combinations(seen.items(), 2):
            same_product = (a[0] * a[1] - b[0] * b[1]) % 4 == 0
            assert torch.equal(one[1], two[1]) == same_product
            assert torch.equal(one[0], two[0])
            assert torch.equal(one[2], two[2])
