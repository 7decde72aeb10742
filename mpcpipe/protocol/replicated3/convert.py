"""replicated3: from packed bits to ring elements, and values selected by bits.

A bit b_0 ^ b_1 ^ b_2 is a ^ c with a = b_0 ^ b_1 known to role 0 and c = b_2 known to roles 1 and 2. So anything linear
in a can be finished by roles 1 and 2, once role 0 has shared it between them; they then exchange their halves.

    role 0: a - t1 (and a X - u1) ──> role 2        role 1: its half - s1 ──> role 2        role 2: its half - s0 ──>
    role 1 holds (s0, s1)                                  both hold s2, the sum of what they exchanged
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.base import Bits, Share
from mpcpipe.protocol.replicated3.fused import Fused, library_of
from mpcpipe.protocol.replicated3.roles import Chunks, Roles
from mpcpipe.protocol.rounds import Round
from mpcpipe.ring import ops
from mpcpipe.ring.bilinear import Shape


@dataclass(frozen=True)
class Selector:
    """Bits, of which role 0's half is shared: role 1 holds t1, role 2 holds t0."""

    bits: Bits
    t1: torch.Tensor
    t0: torch.Tensor


def _signed(value: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """(1 - 2c) value, for c in {0, 1}. In place."""
    return value.bitwise_xor_(-c).add_(c)


class Convert(Roles, ABC):
    """to_ring, select, select_again."""

    def _halves(self, bits: Bits, chunks: Chunks) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """a (as role 0), c (as role 1), c (as role 2), as ring elements 0 and 1."""
        w0, w1, w2 = chunks.words
        data, dtype = bits.data, self.ring.dtype
        return (
            ops.unpack_bits(data[0, w0] ^ data[1, w0], chunks.numel(0), dtype),
            ops.unpack_bits(data[1, w1], chunks.numel(1), dtype),
            ops.unpack_bits(data[0, w2], chunks.numel(2), dtype),
        )

    async def to_ring(self, bits: Bits) -> Share:
        """Bits as elements: a + c - 2ac.

        Security: role 2 sees a masked by a stream; roles 1 and 2 see each other's half masked by a stream of theirs
        with role 0.
        Cost: 2 rounds, k bits a party and element.
        """
        label = self.label("to_ring")
        if (library := library_of(self, bits.data)) is not None:
            fused = Fused(self, library, label, bits.numel)
            return (await fused.select(bits.data, None, None))[0].view(2, *bits.shape)
        chunks = self.chunks(bits.numel)
        a, c1, c2 = self._halves(bits, chunks)
        t1_of1 = self.elements("01", 1, f"{label}/t", chunks.numel(1))
        t0 = self.ring.wrap(a - self.elements("01", 0, f"{label}/t", chunks.numel(0)))
        half1 = _signed(t1_of1, c1).add_(c1)
        return await self._finish(label, chunks, [t0], half1, lambda r: _signed(r[0], c2), bits.shape)

    async def select(self, bits: Bits, x: Share) -> tuple[Share, Selector]:
        """x where the bit is 1. With X = x_0 + x_1: (1 - 2c)(a X + a x_2) + c (X + x_2).

        Security: as `to_ring`. Cost: 2 rounds, 4k/3 bits a party and element. A selector costs k/3 less the next time.
        """
        return await self._select(bits, x, None)

    async def select_again(self, selector: Selector, x: Share) -> Share:
        """x where the selector's bit is 1. Security: as `to_ring`. Cost: 2 rounds, k bits a party and element."""
        return (await self._select(selector.bits, x, selector))[0]

    async def _select(self, bits: Bits, x: Share, held: Selector | None) -> tuple[Share, Selector]:
        label = self.label("select")
        if tuple(x.shape[1:]) != tuple(bits.shape):
            raise ValueError(f"bits of shape {bits.shape} cannot select from a value of shape {tuple(x.shape[1:])}")
        flat = x.reshape(2, -1)
        if (library := library_of(self, x)) is not None:
            before = None if held is None else (held.t1, held.t0)
            fused = Fused(self, library, label, flat.shape[1])
            y, (t1, t0) = await fused.select(bits.data, flat, before)
            return y.view(x.shape), held or Selector(bits, t1, t0)
        chunks = self.chunks(flat.shape[1])
        r0, r1, r2 = chunks.slices
        a, c1, c2 = self._halves(bits, chunks)
        u0 = (flat[0, r0] + flat[1, r0]).bitwise_and_(-a).sub_(self.elements("01", 0, f"{label}/u", chunks.numel(0)))
        shared = [self.ring.wrap(u0)]
        if held is None:
            t1 = self.elements("01", 1, f"{label}/t", chunks.numel(1))
            shared.append(self.ring.wrap(a - self.elements("01", 0, f"{label}/t", chunks.numel(0))))
        else:
            t1 = held.t1
        u1 = self.elements("01", 1, f"{label}/u", chunks.numel(1))
        x1, x2 = flat[0, r1], flat[1, r1]
        half1 = _signed(u1.addcmul_(t1, x2), c1).add_((x1 + x2).bitwise_and_(-c1))
        kept: list[torch.Tensor] = [] if held is None else [held.t0]

        def half2(received: list[torch.Tensor]) -> torch.Tensor:
            x2_of2, x0 = flat[0, r2], flat[1, r2]
            kept.extend(received[1:])
            return _signed(received[0].addcmul_(kept[0], x2_of2), c2).add_(x0.bitwise_and(-c2))

        y = await self._finish(label, chunks, shared, half1, half2, bits.shape)
        return y, held or Selector(bits, t1, kept[0])

    async def _finish(
        self,
        label: str,
        chunks: Chunks,
        shared: list[torch.Tensor],
        half1: torch.Tensor,
        half2: Callable[[list[torch.Tensor]], torch.Tensor],
        shape: Shape,
    ) -> Share:
        """Role 0 hands `shared` to role 2, which makes its half from it; roles 1 and 2 exchange their masked halves."""
        ring = self.ring
        n0, n1, n2 = (chunks.numel(role) for role in range(3))
        s1_of1 = self.elements("01", 1, f"{label}/s", n1)
        half1 = ring.wrap(half1.sub_(s1_of1))
        received = await Round(
            f"{label}/1",
            {self.prev: shared, self.next: [half1]},
            {self.next: [Part(ring.dtype, n2)] * len(shared), self.prev: [Part(ring.dtype, n2)]},
        )
        s0_of2 = self.elements("02", 2, f"{label}/s", n2)
        own2 = ring.wrap(half2(received[self.next]).sub_(s0_of2))
        seen1 = received[self.prev][0]
        received = await Round(f"{label}/2", {self.prev: [own2]}, {self.next: [Part(ring.dtype, n1)]})
        s1_of0, s0_of0 = self.elements("01", 0, f"{label}/s", n0), self.elements("02", 0, f"{label}/s", n0)
        s2_of1, s2_of2 = ring.wrap(received[self.next][0].add_(half1)), ring.wrap(seen1.add_(own2))
        return chunks.joined((s0_of0, s1_of1, s2_of2), (s1_of0, s2_of1, s0_of2)).reshape(2, *shape)
