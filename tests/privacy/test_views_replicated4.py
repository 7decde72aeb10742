"""replicated4: no view depends on a secret, exact and exhaustive; every mask is needed.

Operations whose randomness is more than some 20 bits are enumerated in their parts: masks of different rounds are
different streams. Everything a party receives is a value minus a mask that it does not know, over Z_2 as over Z_2^k.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch

from mpcpipe.protocol.base import Bits
from mpcpipe.protocol.replicated4 import Replicated4, cost
from mpcpipe.protocol.replicated4.roles import others
from mpcpipe.ring import ops
from mpcpipe.ring.bilinear import MUL
from mpcpipe.ring.ring import Ring
from tests.privacy.enumerate import EnumerateTape, Key, Lanes, Operate, Setting, views
from tests.simulate import lockstep


class Untagged(EnumerateTape):
    """Keys of tags are no masks: they take no lanes, and what is made with them only digests of are compared."""

    def elements(self, holders: tuple[int, ...], label: str, numel: int, ring: Ring) -> torch.Tensor:
        if "/tag" in label:
            return torch.zeros(numel, dtype=ring.dtype)
        return super().elements(holders, label, numel, ring)

    def planes(self, holders: tuple[int, ...], label: str, count: int, n: int) -> torch.Tensor:
        if "/tag" in label:
            return torch.zeros((1, 2), dtype=torch.int64)
        return super().planes(holders, label, count, n)


def _is_no_check(label: str, part: torch.Tensor) -> bool:
    return not label.endswith(("/check", "/agreed")) and not (label.endswith("reveal") and part.dtype == torch.uint8)


SETTING = Setting(
    Replicated4,
    4,
    4,
    lambda summands, i: summands[[(i + step) % 4 for step in (1, 2, 3)]],
    lambda chunk: mock.patch.object(cost, "halves", lambda n: (n, 0) if chunk == 0 else (0, n)),
    Untagged,
    _is_no_check,
)


@dataclass(frozen=True)
class Case:
    """An operation, how many secrets it takes, the ring, and the bits of randomness that it uses."""

    operate: Operate
    secrets: int
    k: int
    lane_bits: int
    values: tuple[int, ...] | None = None  # the secrets that the operation allows; default: the whole ring


def _bits(x: torch.Tensor) -> Bits:
    """The lowest bits of a shared secret's summands: XOR shares of a secret bit."""
    return Bits(torch.cat([ops.bit_planes(component, 1) for component in x]), tuple(x.shape[1:]))


def _times_one(p: Replicated4, x: list[torch.Tensor]) -> Any:
    return p.product(MUL, x[0], p.public(torch.ones_like(x[0][0])))


async def _into_halves(p: Replicated4, x: list[torch.Tensor]) -> Any:
    y = x[1] if len(x) == 2 else p.public(torch.ones_like(x[0][0]))
    return await p._into_halves(await p.multiply(MUL, x[0], y), "halves")


def _and(p: Replicated4, x: list[torch.Tensor]) -> Any:
    first, second = (_bits(secret).data.unsqueeze(1) for secret in x)
    return p._and(first, second, second[:, :0], "and")


async def _select_again(p: Replicated4, x: list[torch.Tensor]) -> Any:
    _, selector = await p.select(_bits(x[0]), x[1])
    return await p.select_again(selector, x[1])


CASES = {
    "product": Case(lambda p, x: p.product(MUL, x[0], x[1]), 2, 1, 12),
    "product with a public value": Case(_times_one, 1, 2, 18),
    "product into halves": Case(_into_halves, 2, 1, 10),
    "into halves": Case(_into_halves, 1, 2, 14),
    "truncate": Case(lambda p, x: p.truncate(x[0], 1), 1, 3, 21, values=(0, 1, -2)),
    "nonnegative, 2 bits": Case(lambda p, x: p.nonnegative(x[0]), 1, 2, 14),
    "nonnegative, 3 bits": Case(lambda p, x: p.nonnegative(x[0]), 1, 3, 21, values=(0, 3, -3)),
    "level of the tree": Case(_and, 2, 1, 12),
    "bit to ring": Case(lambda p, x: p.to_ring(_bits(x[0])), 1, 2, 18),
    "select": Case(lambda p, x: p.select(_bits(x[0]), x[1]), 2, 1, 14),
    "select again": Case(_select_again, 2, 1, 20),
}


def _secrets(case: Case) -> list[tuple[int, ...]]:
    values = case.values or tuple(range(1 << case.k))
    return list(itertools.product(values, repeat=case.secrets))


def _views(case: Case, chunk: int, secrets: tuple[int, ...], removed: Key | None = None) -> list[torch.Tensor]:
    return views(
        case.operate, secrets, k=case.k, lane_bits=case.lane_bits, chunk=chunk, removed=removed, setting=SETTING
    )[0]


@pytest.mark.parametrize(("name", "chunk"), [(name, chunk) for name in CASES for chunk in (0, 1)])
def test_no_view_depends_on_a_secret(name: str, chunk: int) -> None:
    case = CASES[name]
    first, *rest = _secrets(case)
    expected = _views(case, chunk, first)
    for secrets in rest:
        for party, (got, want) in enumerate(zip(_views(case, chunk, secrets), expected, strict=True)):
            assert torch.equal(got, want), f"party {party} can tell {secrets} from {first}"


def _draws(name: str) -> list[Key]:
    case = CASES[name]
    _, lanes = views(case.operate, _secrets(case)[0], k=case.k, lane_bits=case.lane_bits, chunk=0, setting=SETTING)
    return [key for key in lanes.taken if key[0]]


# Where a factor is public, some summands are known to more than two, and their masks hide nothing.
SPARED = ("product with a public value", "into halves", "truncate", "nonnegative, 3 bits", "select again")
REMOVALS = [(name, key) for name in CASES if name not in SPARED for key in _draws(name)]
# Two million lanes: one mask of each kind of message.
REMOVALS += [("truncate", ((0, 2, 3), f"#1.truncate/{name}")) for name in ("shift/shifted23", "shift/bit23")]
REMOVALS += [("truncate", ((1, 2, 3), "#1.truncate/wrap/wrap13"))]
REMOVALS += [("nonnegative, 3 bits", ((0, 2, 3), "#1.nonnegative/bits/bits23"))]


@pytest.mark.parametrize(("name", "removed"), REMOVALS)
def test_without_any_one_mask_somebody_learns_something(name: str, removed: Key) -> None:
    """The test of the test, and a proof that no mask is superfluous."""
    case = CASES[name]
    first, *rest = _secrets(case)
    expected = _views(case, 0, first, removed)
    for secrets in rest:
        got = _views(case, 0, secrets, removed)
        if any(not torch.equal(a, b) for a, b in zip(got, expected, strict=True)):
            return
    pytest.fail(f"without {removed} nothing changes: the mask hides nothing, or the test sees nothing")


@pytest.mark.parametrize("owner", [0, 1, 2, 3])
def test_sharing_hides_the_input(owner: int) -> None:
    """What the three others hold is the same for every input, and is not with a mask missing."""

    def held(secret: int, removed: Key | None = None) -> list[torch.Tensor]:
        lanes, ring = Lanes(6, removed), Ring(3)
        ps = [Replicated4(party=i, ring=ring, tape=Untagged(lanes), compare_bits=2) for i in range(4)]
        value = torch.full((lanes.count,), secret, dtype=ring.dtype)
        outcome = lockstep([p.share(value if p.party == owner else None, owner, (lanes.count,)) for p in ps])
        parts = [result.to(torch.int64) & 7 for result in outcome.results]
        return [(part[0] * 64 + part[1] * 8 + part[2]).sort().values for part in parts]

    expected = held(0)
    for secret in (1, 3, -4):
        got = held(secret)
        assert all(torch.equal(got[party], expected[party]) for party in others(owner))
    for lacking in ((owner + 1) % 4, (owner + 2) % 4):
        removed = (others(lacking), "#1.share")
        seen = [held(secret, removed)[lacking] for secret in (0, 1)]
        assert not torch.equal(*seen), f"party {lacking} learns nothing without {removed}"


def test_a_reveal_tells_the_value_and_nothing_else() -> None:
    """Products that are equal give equal views, whatever their factors, once they are opened to party 1."""

    async def opened(p: Replicated4, x: list[torch.Tensor]) -> Any:
        return await p.reveal(await p.product(MUL, x[0], x[1]), 1, "the product")

    case = Case(opened, 2, 1, 12)
    for chunk in (0, 1):
        seen = {secrets: _views(case, chunk, secrets) for secrets in _secrets(case)}
        for (a, one), (b, two) in itertools.combinations(seen.items(), 2):
            assert torch.equal(one[1], two[1]) == (a[0] * a[1] == b[0] * b[1])
            assert all(torch.equal(one[party], two[party]) for party in (0, 2, 3))
