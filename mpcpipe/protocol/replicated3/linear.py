"""replicated3: products, resharing, and truncation without the big error.

Source: Araki et al., CCS 2016 (products); the wrap of the truncation as one bit product is docs/protocols.md,
"Truncation".
"""

from __future__ import annotations

from abc import ABC

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.base import Partial, Share
from mpcpipe.protocol.replicated3.cost import FEW
from mpcpipe.protocol.replicated3.fused import Fused, library_of
from mpcpipe.protocol.replicated3.roles import Roles
from mpcpipe.protocol.replicated3.truncation import Truncation, opened
from mpcpipe.protocol.rounds import Round
from mpcpipe.ring.bilinear import Bilinear


class Linear(Roles, ABC):
    """multiply, reduce, truncate. A partial is (1, *shape): party p's summand of z = z_0 + z_1 + z_2, not masked."""

    async def multiply(self, op: Bilinear, x: Share, y: Share) -> Partial:
        """z_p = x_p∘(y_p + y_{p+1}) + x_{p+1}∘y_p.

        Security: local. Cost: no round, two local products.
        """
        z = op(x[0], y[0] + y[1])
        return self.ring.wrap(op(x[1], y[0], out=z, accumulate=True)).unsqueeze(0)

    def partial(self, x: Share) -> Partial:
        """x_p is a summand of x."""
        return x[:1]

    async def reduce(self, z: Partial, truncate: int = 0) -> Share:
        """z as a share, divided by 2^truncate.

        Without truncation party p masks z_p with its part of a sharing of zero and sends it to p-1.
        Security: the sum of a zero sharing's parts that a party does not know masks what it receives.
        Cost: 1 round, k bits; with truncation 3 rounds, k + (truncate rounded up to bytes)/3 + 2/3 bits; of up to `FEW`
        elements 2 rounds, k + (truncate rounded up to bytes).
        """
        shape = z.shape[1:]
        if truncate:
            return await (self.reduce_few if z.numel() <= FEW else self.reduce_many)(z, truncate)
        flat = z.reshape(-1)
        label, n = self.label("reduce"), flat.numel()
        if (library := library_of(self, z)) is not None:
            return (await Fused(self, library, label, n).reduce(flat)).view(2, *shape)
        own = flat + self.tape.elements(self.with_next(), label, n, self.ring)
        own = self.ring.wrap(own.sub_(self.tape.elements(self.with_prev(), label, n, self.ring)))
        received = await Round(label, {self.prev: [own]}, {self.next: [Part(self.ring.dtype, n)]})
        return torch.stack((own, received[self.next][0])).reshape(2, *shape)

    async def reduce_many(self, z: Partial, bits: int) -> Share:
        """Role 2 hands z_2 to role 1: role 0 holds u = z_0, role 1 holds v = z_1 + z_2. Then `Truncation`."""
        shape, flat, label = z.shape[1:], z.reshape(-1), self.label("reduce")
        if (library := library_of(self, z)) is not None:
            return (await Fused(self, library, label, flat.numel()).truncate(flat, bits)).view(2, *shape)
        chunks = self.chunks(flat.numel())
        s0, s1, s2 = chunks.slices
        u = self.ring.wrap(flat[s0] - self.elements("02", 0, f"{label}/mask", chunks.numel(0)))
        z2 = self.ring.wrap(self.elements("02", 2, f"{label}/mask", chunks.numel(2)).add_(flat[s2]))
        return await Truncation(self, label, chunks, bits).run(u, flat[s1], z2, shape)

    async def reduce_few(self, z: Partial, bits: int) -> Share:
        """The same in a round less and with more bytes. See `opened`."""
        shape, flat, label = z.shape[1:], z.reshape(-1), self.label("reduce")
        if (library := library_of(self, z)) is not None:
            return (await Fused(self, library, label, flat.numel()).truncate_opened(flat, bits)).view(2, *shape)
        return await opened(self, label, self.chunks(flat.numel()), bits, flat, shape)

    async def truncate(self, x: Share, bits: int) -> Share:
        """x / 2^bits. Role 0 holds u = x_0 + x_1 + r, role 1 holds v = x_2 - r, so that u is uniform whatever the
        shares are.

        Security: as in `Truncation`. Cost: 2 rounds, 2k/3 + (bits rounded up to bytes)/3 + 2/3 bits.
        """
        label = self.label("truncate")
        flat = x.reshape(2, -1)
        if (library := library_of(self, x)) is not None:
            return (await Fused(self, library, label, flat.shape[1]).truncate(flat, bits)).view(x.shape)
        chunks = self.chunks(flat.shape[1])
        s0, s1, _ = chunks.slices
        u = self.ring.wrap(self.elements("01", 0, f"{label}/u", chunks.numel(0)).add_(flat[0, s0]).add_(flat[1, s0]))
        v = self.ring.wrap(flat[1, s1] - self.elements("01", 1, f"{label}/u", chunks.numel(1)))
        return await Truncation(self, label, chunks, bits).run(u, v, None, x.shape[1:])
