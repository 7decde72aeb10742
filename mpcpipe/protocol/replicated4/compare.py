"""replicated4: comparing with zero by a carry tree over packed bits.

x = A + B with A = x_0 + x_1 (known to parties 2 and 3) and B = x_2 + x_3 (known to 0 and 1), cut to m = compare_bits
bits and sliced: plane j holds bit j of every element. The sign bit is A_{m-1} ^ B_{m-1} ^ carry of the lower m-1 bits.
Components 0 and 1 of the shared bits are A's, components 2 and 3 are B's, so A ^ B costs nothing more.

The tree does not begin with bits, but with blocks of three or four. With a and b the bits of A and B in one block,

    carry out of the block      g = sum over i of  a_i b_i (a_{i+1} ^ b_{i+1}) ... (a_top ^ b_top)
    a carry goes through        p = (a_0 ^ b_0) ... (a_top ^ b_top)

are sums of products of a monomial in a and a monomial in b. Who knows A shares a's monomials with its bits, who knows B
b's; then g and p are four cross products each, however many monomials there are, and one round.

Source: the tree is `protocol.carry`; its first levels in one are docs/protocols.md, "replicated4".
"""

from __future__ import annotations

from abc import ABC

import torch

from mpcpipe.protocol.base import Bits, Share
from mpcpipe.protocol.carry import carry
from mpcpipe.protocol.replicated4 import plans
from mpcpipe.protocol.replicated4.cost import block_width
from mpcpipe.protocol.replicated4.joint import Joint, Values
from mpcpipe.protocol.replicated4.kinds import Planes
from mpcpipe.ring import ops
from mpcpipe.ring.shapes import bit_blocks


class Compare(Joint, ABC):
    """nonnegative. Bits are (3, words): party p's XOR shares b_{p+1}, b_{p+2}, b_{p+3}."""

    async def nonnegative(self, x: Share) -> Bits:
        """1 where x >= 0.

        Security: what is received is masked by streams of the three others.
        Cost: 2 + ceil(log2 of the blocks) rounds, 6 (5 for few elements) for m = 32, and 10 bytes a party and element.
        """
        label, m = self.label("nonnegative"), self.compare_bits
        low = m - 1
        first, second = self.own_half(x.reshape(3, -1))
        own = ops.bit_planes(first + second, m)
        if self.party < 2:
            torch.bitwise_not(own[low], out=own[low])  # the sign bit flipped: 1 means x >= 0
        width = block_width(first.numel())
        known = ops.monomials(own, low, width)
        kind = Planes(own.shape[1])
        shared = plans.halves(self.party, "bits")
        (bits,) = await self.reshare(f"{label}/bits", Values(kind, known.numel(), shared, (known.view(-1),)))
        bits = bits.view(3, *known.shape)
        blocks = bit_blocks(low, width)
        whole = torch.tensor([(1 << planes) - 1 for planes in blocks]).cumsum(0) - 1  # a's or b's part of p
        begun = bits.new_zeros((3, 2 * len(blocks) - 1, kind.words))
        begun[:, len(blocks) :] = bits[:, whole[1:]]
        crossing = plans.crossing(self.party, "and", "copy")
        made = tuple(
            ops.block_products(bits[self.index(i)], bits[self.index(j)], low, width).view(-1)
            for i, j in plans.own_crossing(self.party)
        )
        flat = begun.view(3, -1)
        (products,) = await self.reshare(f"{label}/and", Values(kind, flat.shape[1], crossing, made, flat))
        products = products.view(begun.shape)

        async def ands(p: torch.Tensor, g: torch.Tensor, q: torch.Tensor, level: int) -> torch.Tensor:
            return await self._and(p, g, q, f"{label}/level{level}")

        # the lowest block's p is never read: what stands in its place is the highest block's g
        top = await carry(products[:, : len(blocks)], products[:, len(blocks) - 1 :], ands)
        return Bits(bits[:, -1] ^ top, tuple(x.shape[1:]))

    async def _and(self, p: torch.Tensor, g: torch.Tensor, q: torch.Tensor, label: str) -> torch.Tensor:
        """p & g, then the last planes of p & q (see `protocol.carry`): the bilinear product over Z_2, resharing
        included. 1 round.

        Over Z_2 each square is counted three times, which is once.
        """
        z = ops.and_summands(p, g, q)
        planes, words = z.shape[1:]
        values = Values(Planes(words), planes * words, plans.summands(self.party, signed=False), (z.view(3, -1),))
        (out,) = await self.reshare(label, values)
        return out.view(3, planes, words)
