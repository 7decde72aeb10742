"""replicated4: from packed bits to ring elements, and values selected by bits.

A bit b_0 ^ b_1 ^ b_2 ^ b_3 is a ^ c with a = b_0 ^ b_1 known to parties 2 and 3 and c = b_2 ^ b_3 known to 0 and 1.
Both are shared as elements, in one round: s_0 + s_1 = a, s_2 + s_3 = c. Then

    the bit      a + c - 2 a c                                        two halves, four cross products
    bit times x  with W = a (x_0 + x_1), V = c (x_2 + x_3), each known to two parties, shared in the same round:
                 W + V + a (x_2 + x_3 - 2 V) + c (x_0 + x_1 - 2 W)    two halves, four cross products

for the shares of x - 2 W and x - 2 V are there already. The pair that knows s_i and s_j knows both products.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass

import torch

from mpcpipe.protocol.base import Bits, Share
from mpcpipe.protocol.replicated4 import plans
from mpcpipe.protocol.replicated4.joint import Joint, Values
from mpcpipe.protocol.replicated4.kinds import Elements
from mpcpipe.ring import ops
from mpcpipe.ring.bilinear import Shape


@dataclass(frozen=True)
class Selector:
    """A bit's halves as elements: the one that this party knows (n,), and shares (3, n) of both."""

    own: torch.Tensor
    shares: torch.Tensor
    shape: Shape


class Convert(Joint, ABC):
    """to_ring, select, select_again."""

    def _own_bit(self, bits: Bits) -> torch.Tensor:
        first, second = self.own_half(bits.data)
        return ops.unpack_bits(first ^ second, bits.numel, self.ring.dtype)

    async def to_ring(self, bits: Bits) -> Share:
        """Bits as elements.

        Security: what is received is masked by streams of the three others.
        Cost: 2 rounds, 3k/2 bits a party and element.
        """
        label, kind = self.label("to_ring"), Elements(self.ring)
        own = self._own_bit(bits)
        n = own.numel()
        (out,) = await self.reshare(f"{label}/bits", Values(kind, n, plans.halves(self.party, "bit"), (own,)))
        crossing = plans.crossing(self.party, "both", "product", second=1)
        (out,) = await self.reshare(f"{label}/both", Values(kind, n, crossing, (out, out * -2), out, keep=True))
        return self.ring.wrap(out).reshape(3, *bits.shape)

    async def select(self, bits: Bits, x: Share) -> tuple[Share, Selector]:
        """x where the bit is 1. Security: as `to_ring`.

        Cost: 2 rounds, 2k bits a party and element. A selector costs k/2 less the next time.
        """
        return await self._select(self._own_bit(bits), None, x, bits.shape)

    async def select_again(self, selector: Selector, x: Share) -> Share:
        """x where the selector's bit is 1. Security: as `to_ring`. Cost: 2 rounds, 3k/2 bits a party and element."""
        return (await self._select(selector.own, selector.shares, x, selector.shape))[0]

    async def _select(
        self, own: torch.Tensor, shares: torch.Tensor | None, x: Share, shape: Shape
    ) -> tuple[Share, Selector]:
        if tuple(x.shape[1:]) != tuple(shape):
            raise ValueError(f"bits of shape {tuple(shape)} cannot select from a value of shape {tuple(x.shape[1:])}")
        label, kind, flat, n = self.label("select"), Elements(self.ring), x.reshape(3, -1), own.numel()
        groups = [Values(kind, n, plans.halves(self.party, "chosen", "chosen"), (flat, own))]
        if shares is None:
            groups.append(Values(kind, n, plans.halves(self.party, "bit", number=1), (own,)))
        out, *made = await self.reshare(f"{label}/halves", *groups)
        s = made[0] if shares is None else shares
        crossing = plans.crossing(self.party, "both", "cross")
        (out,) = await self.reshare(f"{label}/both", Values(kind, n, crossing, (s, flat, out), out, keep=True))
        return self.ring.wrap(out).reshape(3, *shape), Selector(own, s, shape)
