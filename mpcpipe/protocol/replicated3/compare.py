"""replicated3: comparing with zero by a carry tree over packed bits.

x = A + B with A = x_0 + x_1 (known to role 0) and B = x_2 (known to roles 1 and 2), both cut to m = compare_bits bits.
The sign bit is A_{m-1} ^ B_{m-1} ^ carry of the lower m-1 bits. Bits are sliced: plane j holds bit j of every element,
so a level of the tree is a few word operations on whole planes, and sends exactly the planes that it has.

Source: the tree is `protocol.carry`; the first product by two messages instead of three, from who knows what, is
docs/protocols.md, "Sign".
"""

from __future__ import annotations

from abc import ABC

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.base import Bits, Share
from mpcpipe.protocol.carry import carry
from mpcpipe.protocol.replicated3.fused import Fused, library_of
from mpcpipe.protocol.replicated3.roles import Chunks, Roles
from mpcpipe.protocol.rounds import Round
from mpcpipe.ring import ops


class Compare(Roles, ABC):
    """nonnegative. Bits are (2, words): party p's XOR shares (b_p, b_{p+1}), chunk after chunk."""

    async def nonnegative(self, x: Share) -> Bits:
        """1 where x >= 0.

        Security: role 2 sees A masked by a stream; the parts of the first product and of every level are masked by
        streams that their receiver does not know.
        Cost: 2 + ceil(log2(m-1)) rounds; about (m/3 + 2m/3 + 2m) bits a party and element: 11 bytes for m = 32.
        """
        label = self.label("nonnegative")
        flat = x.reshape(2, -1)
        if (library := library_of(self, x)) is not None:
            return Bits(await Fused(self, library, label, flat.shape[1]).nonnegative(flat), tuple(x.shape[1:]))
        chunks = self.chunks(flat.shape[1])
        generate, propagate, sign = await self._first_level(flat, chunks, label)

        async def ands(p: torch.Tensor, g: torch.Tensor, q: torch.Tensor, level: int) -> torch.Tensor:
            return await self._and(p, g, q, chunks, f"{label}/level{level}")

        return Bits(sign ^ await carry(generate, propagate, ands), tuple(x.shape[1:]))

    async def _first_level(
        self, flat: torch.Tensor, chunks: Chunks, label: str
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Shares of A & B and A ^ B of the lower m-1 planes (2, m-1, words), and of the flipped top plane of A ^ B.

        role 0: t0 = A ^ t1 ──> role 2         role 1: t1 & B ^ s1 ──> role 2         role 2: t0 & B ^ s0 ──> role 1
        """
        m = self.compare_bits
        low = m - 1
        c0, c1, c2 = chunks.slices
        _, w1, w2 = (section.stop - section.start for section in chunks.words)
        n0, n1, n2 = (chunks.numel(role) for role in range(3))
        a = ops.bit_planes(flat[0, c0] + flat[1, c0], m)
        b1 = ops.bit_planes(flat[1, c1], m)
        b2 = ops.bit_planes(flat[0, c2], m)
        for b in (b1, b2):
            torch.bitwise_not(b[low], out=b[low])  # the sign bit flipped: 1 means x >= 0

        t1_of0 = self.planes("01", 0, f"{label}/t", m, n0)
        t1_of1 = self.planes("01", 1, f"{label}/t", m, n1)
        s1_of0 = self.planes("01", 0, f"{label}/s", low, n0)
        s1_of1 = self.planes("01", 1, f"{label}/s", low, n1)
        s0_of0 = self.planes("02", 0, f"{label}/s", low, n0)
        s0_of2 = self.planes("02", 2, f"{label}/s", low, n2)

        t0_of0 = a.bitwise_xor_(t1_of0)
        g1 = (t1_of1[:low] & b1[:low]).bitwise_xor_(s1_of1)
        received = await Round(
            f"{label}/1",
            {self.prev: [t0_of0.view(-1)], self.next: [g1.view(-1)]},
            {self.next: [Part(torch.int64, m * w2)], self.prev: [Part(torch.int64, low * w2)]},
        )
        t0_of2 = received[self.next][0].view(m, w2)
        g2 = (t0_of2[:low] & b2[:low]).bitwise_xor_(s0_of2)
        seen_g1 = received[self.prev][0].view(low, w2)
        received = await Round(f"{label}/2", {self.prev: [g2.view(-1)]}, {self.next: [Part(torch.int64, low * w1)]})
        s2_of1 = received[self.next][0].view(low, w1) ^ g1
        s2_of2 = seen_g1.bitwise_xor_(g2)

        total, order = chunks.total_words, chunks.order
        generate, propagate = (flat.new_empty((2, planes, total), dtype=torch.int64) for planes in (low, m))
        for whole, parts in (
            (generate[0], (s0_of0, s1_of1, s2_of2)),
            (generate[1], (s1_of0, s2_of1, s0_of2)),
            (propagate[0], (t0_of0, t1_of1, b2)),
            (propagate[1], (t1_of0, b1, t0_of2)),
        ):
            torch.cat([parts[role] for role in order], dim=1, out=whole)
        return generate, propagate[:, :low], propagate[:, low]

    async def _and(self, p: torch.Tensor, g: torch.Tensor, q: torch.Tensor, chunks: Chunks, label: str) -> torch.Tensor:
        """p & g, then the last planes of p & q (see `protocol.carry`): the bilinear product over Z_2, resharing
        included.
        """
        planes, bits = p.shape[1] + q.shape[1], 64 * chunks.total_words
        masks = (self.tape.planes(holders, label, planes, bits) for holders in (self.with_next(), self.with_prev()))
        z = ops.and_level(p, g, q, *masks)
        received = await Round(label, {self.prev: [z.view(-1)]}, {self.next: [Part(torch.int64, z.numel())]})
        return torch.stack((z, received[self.next][0].view(planes, -1)))
