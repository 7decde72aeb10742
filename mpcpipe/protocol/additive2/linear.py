"""additive2: products by triples, and truncation without the big error.

Source: Beaver, CRYPTO 1991 (triples); SecureML, S&P 2017 (a triple of matrices for a product of matrices); the
truncation is docs/protocols.md, "Truncation".
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.additive2.roles import Roles
from mpcpipe.protocol.base import Partial, Share
from mpcpipe.protocol.wrap import Wrap
from mpcpipe.ring.bilinear import Bilinear

_KEPT = "_additive2_operand"


@dataclass
class Operand:
    """An argument of products: a party's summand of its mask (n,), and x - mask (n,) once both parties know it.

    At the dealer the mask is the whole one, and `shown` says only that the parties have shown it.
    """

    mask: torch.Tensor
    kept: bool
    shown: torch.Tensor | None = None


class Linear(Roles, ABC):
    """multiply, reduce, truncate. A partial is a share: a party's summand of two."""

    async def multiply(self, op: Bilinear, x: Share, y: Share) -> Partial:
        """x∘e + d∘b + c for d = x - a and e = y - b, which are opened, and a triple c = a∘b of op's own shapes.

        Security: d and e are masked by what neither party knows of the other. The dealer sees nothing.
        Cost: 1 round; k bits a party for each element of x and y that was not shown before (`keep`), and k from the
        dealer for each of the result; two local products, at the dealer one.
        """
        label, ring = self.label("multiply"), self.ring
        shape = op.shape(tuple(x.shape[1:]), tuple(y.shape[1:]))
        numel = torch.Size(shape).numel()
        first = self._operand(x, f"{label}/a")
        second = first if y is x and first.kept else self._operand(y, f"{label}/b")
        a, b = first.mask.reshape(x.shape[1:]), second.mask.reshape(y.shape[1:])
        if self.deals:
            c = op(a, b).reshape(-1)
            await self.deal(label, ring.wrap(c.sub_(self.own(f"{label}/c", numel))))
            first.shown, second.shown = a, b
            self.needs.count("products", numel, numel * ring.nbytes)
            return self.blank(1, *shape)
        new = [(o, share) for o, share in ((first, x), (second, y)) if o.shown is None][: 1 if second is first else 2]
        own = [ring.wrap(share.reshape(-1) - operand.mask) for operand, share in new]
        others, dealt = await self.exchange(label, own, [Part(ring.dtype, numel)])
        for (operand, _), mine, other in zip(new, own, others, strict=True):
            operand.shown = other.add_(mine)
        assert first.shown is not None and second.shown is not None
        z = (dealt[0] if self.party else self.own(f"{label}/c", numel)).reshape(shape)
        op(x[0], second.shown.reshape(y.shape[1:]), out=z, accumulate=True)
        return ring.wrap(op(first.shown.reshape(x.shape[1:]), b, out=z, accumulate=True)).unsqueeze(0)

    async def show(self, x: Share) -> Share:
        """A view of x that was shown, masked. Security: as `multiply`. Cost: 1 round, k bits a party and element."""
        view = self.keep(x)
        if view is x:
            return x
        label = self.label("show")
        operand = self._operand(view, label)
        if self.deals:
            await self.deal(label)
            operand.shown = operand.mask
            return view
        own = self.ring.wrap(x.reshape(-1) - operand.mask)
        (other,), _ = await self.exchange(label, [own], [])
        operand.shown = other.add_(own)
        return view

    def keep(self, x: Share) -> Share:
        """A view of x that is shown only once: what was shown is kept with it, and goes with it."""
        known: Operand | None = vars(x).get(_KEPT)
        if known is not None and known.shown is not None:
            return x
        view = x.view(x.shape)
        vars(view)[_KEPT] = None
        return view

    def _operand(self, x: Share, label: str) -> Operand:
        """x with a mask of its own, or with the one under which it was shown before."""
        kept = _KEPT in vars(x)
        known: Operand | None = vars(x).get(_KEPT)
        if known is not None and known.shown is not None:
            return known
        operand = Operand(self.mask(label, x.numel()), kept)
        if kept:
            vars(x)[_KEPT] = operand
        return operand

    def partial(self, x: Share) -> Partial:
        """x: shares are summands."""
        return x

    async def reduce(self, z: Partial, truncate: int = 0) -> Share:
        """z as a share, divided by 2^truncate. Without truncation it is one already.

        Security, Cost: as `truncate`; without truncation nothing is sent.
        """
        return await self.truncate(z, truncate) if truncate else self.ring.wrap(z)

    async def refresh(self, x: Share) -> Share:
        """x_0 + r, x_1 - r with a stream r that the two parties have in common.

        Security: local; see `Protocol.refresh`. Cost: nothing.
        """
        label = self.label("refresh")
        if self.deals:
            return self.blank(*x.shape, dtype=x.dtype)
        r = self.tape.elements((0, 1), label, x.numel(), self.ring)
        flat = x.reshape(-1)
        return self.ring.wrap(flat - r if self.party else r.add_(flat)).reshape(x.shape)

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
