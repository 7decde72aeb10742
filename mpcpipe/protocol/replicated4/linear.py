"""replicated4: products, resharing, and truncation without the big error.

Products of components i and j are known to the two parties that lack neither, so a product is a sum of six summands,
one for each pair of parties. Which summand the squares (i = j, known to three) go to is free; with

    (x_i + x_j)(y_i + y_j)        for {i, j} = {0,1} {1,2} {2,3} {0,3}
    -(x_i - x_j)(y_i - y_j)       for {i, j} = {0,2} {1,3}

each square is counted twice and taken off once, and a summand is *one* bilinear operation: three a party. The minus
is left to where a summand is shared: in a partial, summands of parties two apart stand with the other sign.

Source: the joint sharing of products is Fantastic Four's (USENIX Security 2021); the three products, and the wrap of
the truncation as a product of bits that two parties know each, are docs/protocols.md, "replicated4".
"""

from __future__ import annotations

from abc import ABC

import torch

from mpcpipe.protocol.base import Partial, Share
from mpcpipe.protocol.replicated4 import cost, plans
from mpcpipe.protocol.replicated4.joint import Joint, Messages, Values
from mpcpipe.protocol.replicated4.kinds import Elements, Narrow
from mpcpipe.protocol.replicated4.told import Telling
from mpcpipe.protocol.rounds import Round
from mpcpipe.protocol.wrap import Wrap
from mpcpipe.ring import ops
from mpcpipe.ring.bilinear import Bilinear


class Linear(Joint, ABC):
    """multiply, reduce, truncate. A partial is (3, *shape): the summands that party p and p+1, p+2, p+3 know, the
    second of them with the other sign.
    """

    async def multiply(self, op: Bilinear, x: Share, y: Share) -> Partial:
        """The three summands that this party knows.

        Security: local. Cost: no round, three local products.
        """
        z = x.new_empty((3, *op.shape(tuple(x.shape[1:]), tuple(y.shape[1:]))))
        of_x, of_y = ops.pair_sums(x), ops.pair_sums(y)  # of those that this party and a peer hold, as peers stand in z
        for at in range(3):
            op(of_x[at], of_y[at], out=z[at])
        return self.ring.wrap(z)

    def partial(self, x: Share) -> Partial:
        """Each half of x as the summand of who knows it."""
        first, second = self.own_half(x)
        z = torch.zeros_like(x)
        torch.add(first, second, out=z[self.stands(self.partner)])
        return z

    async def reduce(self, z: Partial, truncate: int = 0) -> Share:
        """z as a share, divided by 2^truncate.

        Security: what is received is masked by streams of the three others.
        Cost: 1 round, 3k/2 bits a party and element; with truncation 3 rounds, k + 1/2 bits and 3/2 of `truncate`'s.
        """
        shape, flat = z.shape[1:], z.reshape(3, -1)
        n = flat.shape[1]
        label, kind = self.label("reduce"), Elements(self.ring)
        if truncate:
            return await self._divide(await self._into_halves(flat, label), None, label, truncate, shape)
        (out,) = await self.reshare(label, Values(kind, n, plans.summands(self.party), (flat,)))
        return self.ring.wrap(out).reshape(3, *shape)

    async def _into_halves(self, z: torch.Tensor, label: str) -> torch.Tensor:
        """u (n,) at parties 2 and 3, v at parties 0 and 1, u + v = z: of the first half of the elements v is what its
        parties are told, of the second half u; see `told`.
        """
        n, told, telling = z.shape[1], self.party // 2, Telling(self.tape, self.party, self.ring)
        sizes = cost.halves(n)
        segments = slice(0, sizes[0]), slice(sizes[0], n)
        out = z.new_empty(n)
        messages, partner, own = Messages(), self.partner, segments[told]
        if sizes[told]:
            messages.send[partner] = list(telling.tell(z[:, own], label, out[own]))
            messages.receive[partner] = telling.parts(sizes[told])
        if sizes[1 - told]:
            for route, tag in telling.vouch(z[:, segments[1 - told]], label, out[segments[1 - told]]):
                messages.add_tag(route, tag)
        arrived = await Round(f"{label}/halves", messages.send, messages.receive)
        if sizes[told]:
            wire, carries = arrived[partner]
            messages.add_tag((partner, self.party), telling.told(wire, carries, label, out[own]))
        self.journal.record(self.lane_number, messages.tags)
        return out

    async def truncate(self, x: Share, bits: int) -> Share:
        """x / 2^bits, from the halves x_0 + x_1 and x_2 + x_3.

        Security: as `reduce`. Cost: 2 rounds, k/2 + 3/2 (bits rounded up to bytes) bits a party and element.
        """
        first, second = self.own_half(x.reshape(3, -1))
        return await self._divide(first, second, self.label("truncate"), bits, x.shape[1:])

    async def _divide(self, x: torch.Tensor, y: torch.Tensor | None, label: str, bits: int, shape: torch.Size) -> Share:
        """(u + v) / 2^bits, where x + y is u at parties 2 and 3, v at parties 0 and 1; see `protocol.wrap`.

        round 1   u >> t, v >> t, and the bits a and b (t bits each)       shared
        round 2   a b, its four cross products (t bits each)               shared
        """
        wrap, ring, n = Wrap(self.ring, bits), self.ring, x.numel()
        whole, small = Elements(ring), Narrow(wrap.small, wrap.nbytes)
        lift, constant = (0, wrap.constant) if self.party < 2 else (wrap.lift, 0)
        shifted, bit = ops.shifted(x, y, lift, constant, ring.bits, bits, wrap.small.dtype)
        out, factors = await self.reshare(
            f"{label}/shift",
            Values(whole, n, plans.halves(self.party, "shifted"), (shifted,)),
            Values(small, n, plans.halves(self.party, "bit", number=1), (bit,)),
        )
        crossing = plans.crossing(self.party, "wrap", "product")
        (out,) = await self.reshare(f"{label}/wrap", Values(small, n, crossing, (factors,), out, ring.bits - bits))
        return ring.wrap(out).reshape(3, *shape)
