"""replicated4: comparing with zero by a carry tree over packed bits.

x = A + B with A = x_0 + x_1 (known to parties 2 and 3) and B = x_2 + x_3 (known to 0 and 1), cut to m = compare_bits
bits and sliced: plane j holds bit j of every element. The sign bit is A_{m-1} ^ B_{m-1} ^ carry of the lower m-1 bits.
Components 0 and 1 of the shared bits are A's, components 2 and 3 are B's, so A ^ B costs nothing more.

Source: the tree is `protocol.carry`.
"""

from __future__ import annotations

from abc import ABC

import torch

from mpcpipe.protocol.base import Bits, Share
from mpcpipe.protocol.carry import carry
from mpcpipe.protocol.replicated4.joint import Joint, Values
from mpcpipe.protocol.replicated4.kinds import Planes
from mpcpipe.protocol.replicated4.terms import Value
from mpcpipe.ring import ops


class Compare(Joint, ABC):
    """nonnegative. Bits are (3, words): party p's XOR shares b_{p+1}, b_{p+2}, b_{p+3}."""

    async def nonnegative(self, x: Share) -> Bits:
        """1 where x >= 0.

        Security: what is received is masked by streams of the three others.
        Cost: 2 + ceil(log2(m-1)) rounds; about (m/2 + m + 3m) bits a party and element: 16 bytes for m = 32.
        """
        label, m = self.label("nonnegative"), self.compare_bits
        low = m - 1
        first, second = self.own_half(x.reshape(3, -1))
        own = ops.bit_planes(first + second, m)
        if self.party < 2:
            torch.bitwise_not(own[low], out=own[low])  # the sign bit flipped: 1 means x >= 0
        kind = Planes(own.shape[1])
        shared = self.halves("bits", Value("copy", (own.view(-1),)))
        (bits,) = await self.reshare(f"{label}/bits", Values(kind, own.numel(), shared))
        bits = bits.view(3, m, -1)
        propagate = bits[:, :low]
        rows = [propagate[i].reshape(-1) for i in range(3)]
        crossing = self.crossing("and", lambda i, j: Value("and", (rows[i], rows[j])))
        (generate,) = await self.reshare(f"{label}/and", Values(kind, low * kind.words, crossing))

        async def ands(p: torch.Tensor, g: torch.Tensor, q: torch.Tensor, level: int) -> torch.Tensor:
            return await self._and(p, g, q, f"{label}/level{level}")

        top = await carry(generate.view(3, low, -1), propagate, ands)
        return Bits(bits[:, low] ^ top, tuple(x.shape[1:]))

    async def _and(self, p: torch.Tensor, g: torch.Tensor, q: torch.Tensor, label: str) -> torch.Tensor:
        """p & g, then the last planes of p & q (see `protocol.carry`): the bilinear product over Z_2, resharing
        included. 1 round.

        Over Z_2 each square is counted three times, which is once.
        """
        z = ops.and_summands(p, g, q)
        planes, words = z.shape[1:]
        summands = self.summands(z.view(3, -1))
        (out,) = await self.reshare(label, Values(Planes(words), planes * words, summands))
        return out.view(3, planes, words)
