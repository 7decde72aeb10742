"""additive2: from packed bits to ring elements, and values selected by bits.

The dealer knows the XOR mask of a bit, delta, and deals it as ring elements. The bit is shown masked, as
c = bit ^ delta, so bit = c + (1 - 2c) delta: linear in delta. A product with x needs delta x, one dealt product away:

    bit x = c x + (1 - 2c) (delta (x - a) + delta a),    x - a is opened, delta a is dealt
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.additive2.roles import Roles
from mpcpipe.protocol.base import Bits, Share
from mpcpipe.ring import ops
from mpcpipe.ring.bilinear import Shape


@dataclass(frozen=True)
class Selector:
    """c (words,), the bit as it was shown, and a party's summand of delta (n,); at the dealer both are delta's."""

    c: torch.Tensor
    delta: torch.Tensor
    shape: Shape


def _signed(value: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """(1 - 2c) value, for c in {0, 1}. In place."""
    return value.bitwise_xor_(-c).add_(c)


class Convert(Roles, ABC):
    """to_ring, select, select_again."""

    def _unpacked(self, plane: torch.Tensor, n: int) -> torch.Tensor:
        return ops.unpack_bits(plane, n, self.ring.dtype)

    def _dealt_bit(self, label: str, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """At the dealer: delta packed, and party 1's summand of it."""
        first, second = self.mask_planes(f"{label}/bit", 1, n)
        delta = first[0].bitwise_xor_(second[0])
        self.needs.count("bits", n, n * self.ring.nbytes)
        return delta, self.ring.wrap(self._unpacked(delta, n).sub_(self.own(f"{label}/delta", n)))

    def _dealt_product(self, label: str, delta: torch.Tensor, n: int) -> torch.Tensor:
        """At the dealer: party 1's summand of delta a."""
        a = self.mask(f"{label}/a", n)
        self.needs.count("selections", n, n * self.ring.nbytes)
        return self.ring.wrap(a.bitwise_and_(-self._unpacked(delta, n)).sub_(self.own(f"{label}/product", n)))

    def _masked_bit(self, label: str, bits: Bits) -> torch.Tensor:
        return bits.data[0] ^ self.mask_planes(f"{label}/bit", 1, bits.numel)[0][0]

    def _delta(self, label: str, n: int, dealt: list[torch.Tensor]) -> torch.Tensor:
        return dealt[0] if self.party else self.own(f"{label}/delta", n)

    async def to_ring(self, bits: Bits) -> Share:
        """Bits as elements: c + (1 - 2c) delta.

        Security: a bit is shown masked by the other's stream with the dealer.
        Cost: 1 round, 1 bit a party and element, and k from the dealer.
        """
        label, n = self.label("to_ring"), bits.numel
        if self.deals:
            await self.deal(label, self._dealt_bit(label, n)[1])
            return self.blank(1, *bits.shape)
        own = self._masked_bit(label, bits)
        (seen,), dealt = await self.exchange(label, [own], [Part(self.ring.dtype, n)])
        c = self._unpacked(seen.bitwise_xor_(own), n)
        y = _signed(self._delta(label, n, dealt), c)
        return self.ring.wrap(y if self.party else y.add_(c)).reshape(1, *bits.shape)

    async def select(self, bits: Bits, x: Share) -> tuple[Share, Selector]:
        """x where the bit is 1.

        Security: as `to_ring`; x is shown masked by the other's stream with the dealer.
        Cost: 1 round, k + 1 bits a party and element, and 2k from the dealer. A selector costs 1 and k less the next
        time.
        """
        _fits(bits.shape, x)
        label, n, dtype = self.label("select"), bits.numel, self.ring.dtype
        if self.deals:
            delta, of_bit = self._dealt_bit(label, n)
            await self.deal(label, of_bit, self._dealt_product(label, delta, n))
            return self.blank(*x.shape), Selector(delta, delta, bits.shape)
        own = self._masked_bit(label, bits)
        d = self._masked(label, x)
        (seen, d_other), dealt = await self.exchange(label, [own, d], [Part(dtype, n), Part(dtype, n)])
        selector = Selector(seen.bitwise_xor_(own), self._delta(label, n, dealt), bits.shape)
        return self._selected(label, selector, x, d_other.add_(d), dealt[1:]), selector

    async def select_again(self, selector: Selector, x: Share) -> Share:
        """x where the selector's bit is 1. Security: as `select`. Cost: 1 round, k bits a party and element, and k from
        the dealer.
        """
        _fits(selector.shape, x)
        label, n = self.label("select"), x.numel()
        if self.deals:
            await self.deal(label, self._dealt_product(label, selector.delta, n))
            return self.blank(*x.shape)
        d = self._masked(label, x)
        (d_other,), dealt = await self.exchange(label, [d], [Part(self.ring.dtype, n)])
        return self._selected(label, selector, x, d_other.add_(d), dealt)

    def _masked(self, label: str, x: Share) -> torch.Tensor:
        flat = x.reshape(-1)
        return self.ring.wrap(flat - self.mask(f"{label}/a", flat.numel()))

    def _selected(self, label: str, selector: Selector, x: Share, d: torch.Tensor, dealt: list[torch.Tensor]) -> Share:
        n = x.numel()
        product = dealt[0] if self.party else self.own(f"{label}/product", n)
        c = self._unpacked(selector.c, n)
        y = _signed(product.addcmul_(selector.delta, d), c)
        return self.ring.wrap(y.add_(x.reshape(-1).bitwise_and(-c))).reshape(x.shape)


def _fits(shape: Shape, x: Share) -> None:
    if tuple(x.shape[1:]) != tuple(shape):
        raise ValueError(f"bits of shape {tuple(shape)} cannot select from a value of shape {tuple(x.shape[1:])}")
