"""replicated3 in native passes: the same results and the same messages, bit for bit, as in plain torch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mpcpipe.protocol.replicated3 import Replicated3
from mpcpipe.protocol.replicated3.fused import library_of
from mpcpipe.random.tape import PrgTape
from mpcpipe.ring import native
from mpcpipe.ring.bilinear import MUL
from mpcpipe.ring.native import NativeLibrary
from mpcpipe.ring.ring import Ring
from tests.simulate import Outcome, lockstep

LIBRARY = native.load()
pytestmark = pytest.mark.skipif(
    LIBRARY is None or not LIBRARY.has_aes, reason=f"no library that draws: {native.status()['reason']}"
)
SIZES = ((), (1,), (2,), (5, 13), (3, 64), (1, 1000), (1600,), (4, 0))


class InTorch(PrgTape):
    """The same streams, which nobody draws inside of a pass."""

    @property
    def library(self) -> NativeLibrary | None:
        return None


def party(number: int, kind: type[PrgTape], bits: int, compare_bits: int, audit: bool = True) -> Replicated3:
    holders = [(number,), *(tuple(sorted((number, other))) for other in range(3) if other != number)]
    keys = {group: hashlib.sha256(f"key of {group}".encode()).digest() for group in holders}
    return Replicated3(party=number, ring=Ring(bits), tape=kind(keys, audit=audit), compare_bits=compare_bits)


async def _reduce(p: Replicated3, x: torch.Tensor, y: torch.Tensor) -> Any:
    return await p.product(MUL, x, y)


async def _product(p: Replicated3, x: torch.Tensor, y: torch.Tensor) -> Any:
    z = await p.multiply(MUL, x, y)
    ways = (p.reduce_many, p.reduce_few)
    return tuple([await reduce(z, bits) for reduce in ways for bits in (5, 16, p.ring.bits - 2)])


async def _truncate(p: Replicated3, x: torch.Tensor, y: torch.Tensor) -> Any:
    return await p.truncate(x, 7), await p.truncate(y.transpose(1, -1), 16), await p.truncate(y, p.ring.bits - 2)


async def _compare(p: Replicated3, x: torch.Tensor, y: torch.Tensor) -> Any:
    return (await p.nonnegative(x)).data, (await p.nonnegative(y[:, ::2] if y.dim() > 1 else y)).data


async def _to_ring(p: Replicated3, x: torch.Tensor, y: torch.Tensor) -> Any:
    return await p.to_ring(await p.nonnegative(x))


async def _select(p: Replicated3, x: torch.Tensor, y: torch.Tensor) -> Any:
    first, selector = await p.select(await p.nonnegative(x), y)
    return first, await p.select_again(selector, x), await p.select_again(selector, y)


OPERATIONS = (_reduce, _product, _truncate, _compare, _to_ring, _select)
Operation = Callable[[Replicated3, torch.Tensor, torch.Tensor], Any]


def outcome(kind: type[PrgTape], operation: Operation, shape: tuple[int, ...], bits: int, compare_bits: int) -> Outcome:
    generator = torch.Generator().manual_seed(len(shape))
    ring = Ring(bits)
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    parts = [torch.empty((3, *shape), dtype=ring.dtype).random_(low, high, generator=generator) for _ in range(2)]
    ps = [party(number, kind, bits, compare_bits) for number in range(3)]
    shares = [[part[[p.party, (p.party + 1) % 3]] for part in parts] for p in ps]
    return lockstep([operation(p.at("there"), *share) for p, share in zip(ps, shares, strict=True)])


@pytest.mark.parametrize("isa", ["portable", LIBRARY.isa] if LIBRARY is not None else [])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
@pytest.mark.parametrize(("bits", "compare_bits"), [(64, 32), (64, 64), (64, 2), (64, 3), (32, 32), (32, 20)])
def test_a_pass_is_what_torch_computes(operation: Operation, bits: int, compare_bits: int, isa: str) -> None:
    assert LIBRARY is not None
    shapes = SIZES[1:] if operation in (_truncate,) else SIZES
    before = LIBRARY.isa
    for shape in shapes:
        slow = outcome(InTorch, operation, shape, bits, compare_bits)
        LIBRARY.set_isa(isa)
        try:
            fast = outcome(PrgTape, operation, shape, bits, compare_bits)
        finally:
            LIBRARY.set_isa(before)
        assert fast.rounds == slow.rounds and fast.sent_bytes == slow.sent_bytes
        for seen, expected in zip(fast.seen, slow.seen, strict=True):
            assert [(label, sender) for label, sender, _ in seen] == [(label, sender) for label, sender, _ in expected]
            assert all(torch.equal(a[2], b[2]) for a, b in zip(seen, expected, strict=True))
        for got, want in zip(fast.results, slow.results, strict=True):
            got, want = (r if isinstance(r, tuple) else (r,) for r in (got, want))
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_a_label_is_used_up_by_a_pass() -> None:
    p = party(0, PrgTape, 64, 32)
    x = torch.zeros((2, 3), dtype=torch.int64)
    first, second = p.at("here").truncate(x, 4), p.at("here").truncate(x, 4)
    first.send(None)
    with pytest.raises(ValueError, match="drawn by the holders"):
        second.send(None)
    first.close()


def test_rings_in_which_not_all_bits_count_go_the_slow_way() -> None:
    x = torch.zeros(3, dtype=torch.int64)
    assert library_of(party(0, PrgTape, 64, 32), x) is not None
    assert library_of(party(0, PrgTape, 63, 32), x) is None
    assert library_of(party(0, PrgTape, 64, 32), x.to("meta")) is None
