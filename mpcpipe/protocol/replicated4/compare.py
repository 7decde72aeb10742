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
from mpcpipe.protocol.replicated4.joint import Joint, Known
from mpcpipe.protocol.replicated4.kinds import Planes
from mpcpipe.protocol.replicated4.roles import PAIRS, others
from mpcpipe.ring import ops

PLANES = Planes()


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
        bits = self.joined(await self.reshare(f"{label}/bits", self.halves("bits", own, PLANES)), own)
        propagate = bits[:, :low]
        crossing = self.crossing("and", lambda i, j: propagate[i] & propagate[j], tuple(own[:low].shape), PLANES)
        generate = torch.zeros_like(propagate)
        for pieces in await self.reshare(f"{label}/and", crossing):
            self.collect(generate, pieces, PLANES)

        async def ands(p: torch.Tensor, g: torch.Tensor, q: torch.Tensor, level: int) -> torch.Tensor:
            twice = torch.cat((p, p[:, p.shape[1] - q.shape[1] :]), dim=1)
            return await self._and(twice, torch.cat((g, q), dim=1), f"{label}/level{level}")

        return Bits(bits[:, low] ^ await carry(generate, propagate, ands), tuple(x.shape[1:]))

    async def _and(self, x: torch.Tensor, y: torch.Tensor, label: str) -> torch.Tensor:
        """AND of shares of planes (3, planes, words): the bilinear product over Z_2, resharing included. 1 round.

        Over Z_2 each square is counted three times, which is once.
        """
        values = []
        for pair in PAIRS:
            value = None
            if self.party in pair:
                i, j = (self.index(component) for component in others(*pair))
                value = (x[i] ^ x[j]) & (y[i] ^ y[j])
            values.append(Known("", pair, value, tuple(x.shape[1:]), PLANES))
        out = torch.zeros_like(x)
        for pieces in await self.reshare(label, values):
            self.collect(out, pieces, PLANES)
        return out
