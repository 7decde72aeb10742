"""additive2: products by triples, and truncation without the big error.

Source: Beaver, CRYPTO 1991 (triples); SecureML, S&P 2017 (a triple of matrices for a product of matrices); the
truncation is docs/protocols.md, "Truncation".
"""

from __future__ import annotations

from abc import ABC

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.additive2.roles import Roles
from mpcpipe.protocol.base import Partial, Share
from mpcpipe.protocol.wrap import Wrap
from mpcpipe.ring.bilinear import Bilinear


class Linear(Roles, ABC):
    """multiply, reduce, truncate. A partial is a share: a party's summand of two."""

    async def multiply(self, op: Bilinear, x: Share, y: Share) -> Partial:
        """x∘e + d∘b + c for d = x - a and e = y - b, which are opened, and a triple c = a∘b of op's own shapes.

        Security: d and e are masked by what neither party knows of the other. The dealer sees nothing.
        Cost: 1 round; k bits a party for each element of x and y, and k from the dealer for each of the result; two
        local products, at the dealer one.
        """
        label, ring = self.label("multiply"), self.ring
        size_x, size_y = x[0].shape, y[0].shape
        shape = op.shape(tuple(size_x), tuple(size_y))
        numel = torch.Size(shape).numel()
        a = self.mask(f"{label}/a", size_x.numel()).reshape(size_x)
        b = self.mask(f"{label}/b", size_y.numel()).reshape(size_y)
        if self.deals:
            c = op(a, b).reshape(-1)
            await self.deal(label, ring.wrap(c.sub_(self.own(f"{label}/c", numel))))
            self.needs.count("products", numel, numel * ring.nbytes)
            return self.blank(1, *shape)
        d, e = ring.wrap(x[0] - a).reshape(-1), ring.wrap(y[0] - b).reshape(-1)
        (d_other, e_other), dealt = await self.exchange(label, [d, e], [Part(ring.dtype, numel)])
        d, e = d_other.add_(d).reshape(size_x), e_other.add_(e).reshape(size_y)
        z = (dealt[0] if self.party else self.own(f"{label}/c", numel)).reshape(shape)
        op(x[0], e, out=z, accumulate=True)
        return ring.wrap(op(d, b, out=z, accumulate=True)).unsqueeze(0)

    def partial(self, x: Share) -> Partial:
        """x: shares are summands."""
        return x

    async def reduce(self, z: Partial, truncate: int = 0) -> Share:
        """z as a share, divided by 2^truncate. Without truncation it is one already.

        Security, Cost: as `truncate`; without truncation nothing is sent.
        """
        return await self.truncate(z, truncate) if truncate else self.ring.wrap(z)

    async def truncate(self, x: Share, bits: int) -> Share:
        """x / 2^bits. Party 0 holds u = x_0 + r, party 1 v = x_1 - r, so that u is uniform whatever the shares are, and
        the rounding right on average.

        Security: each sees one bit of the other's summand, masked; the parts of the masks' product are dealt.
        Cost: 1 round, 1 bit a party, and `bits` (rounded up to bytes) from the dealer.
        """
        label, wrap, n = self.label("truncate"), Wrap(self.ring, bits), x.numel()
        r_a, r_b = (planes[0] for planes in self.mask_planes(f"{label}/bit", 1, n))
        if self.deals:
            await self.deal(label, wrap.deal(r_a, r_b, self.own(f"{label}/c", n, wrap.small)))
            self.needs.count("truncations", n, n * wrap.nbytes)
            return self.blank(*x.shape)
        r = self.tape.elements((0, 1), f"{label}/u", n, self.ring)
        flat = x.reshape(-1)
        summand = self.ring.wrap(flat - r) if self.party else wrap.lifted(r.add_(flat))
        bit = wrap.bit(summand)
        shown = bit ^ r_a
        (seen,), dealt = await self.exchange(label, [shown], [Part(torch.uint8, n * wrap.nbytes)])
        if self.party:
            y = wrap.half_v(summand, bit, seen, shown, dealt[0])
        else:
            y = wrap.half_u(summand, bit, shown, seen, self.own(f"{label}/c", n, wrap.small))
        return self.ring.wrap(y).reshape(x.shape)
