"""replicated4: products, resharing, and truncation without the big error.

Products of components i and j are known to the two parties that lack neither, so a product is a sum of six summands,
one for each pair of parties. Which summand the squares (i = j, known to three) go to is free; with

    (x_i + x_j)(y_i + y_j)        for {i, j} = {0,1} {1,2} {2,3} {0,3}
    -(x_i - x_j)(y_i - y_j)       for {i, j} = {0,2} {1,3}

each square is counted twice and taken off once, and a summand is *one* bilinear operation: three a party.

Source: the joint sharing of products is Fantastic Four's (USENIX Security 2021); the three products, and the wrap of
the truncation as a product of bits that two parties know each, are docs/protocols.md, "replicated4".
"""

from __future__ import annotations

from abc import ABC

import torch

from mpcpipe.protocol.base import Partial, Share
from mpcpipe.protocol.replicated4.joint import Joint, Known, Message
from mpcpipe.protocol.replicated4.kinds import Elements, Narrow
from mpcpipe.protocol.replicated4.roles import PAIRS, others
from mpcpipe.protocol.wrap import Wrap
from mpcpipe.ring.bilinear import Bilinear

_INTO_HALVES = ((0, 2), (2, 1), (1, 3), (3, 0))
"""Sender and witness of a summand that parties of both halves know. The receiver is the sender's partner."""


class Linear(Joint, ABC):
    """multiply, reduce, truncate. A partial is (3, *shape): the summands that party p and p+1, p+2, p+3 know."""

    async def multiply(self, op: Bilinear, x: Share, y: Share) -> Partial:
        """The three summands that this party knows.

        Security: local. Cost: no round, three local products.
        """
        shape = op.shape(tuple(x.shape[1:]), tuple(y.shape[1:]))
        z = x.new_empty((3, *shape))
        for peer in others(self.party):
            i, j = (self.index(component) for component in others(self.party, peer))
            if (peer - self.party) % 4 == 2:
                op(x[j] - x[i], y[i] - y[j], out=z[self.stands(peer)])
            else:
                op(x[i] + x[j], y[i] + y[j], out=z[self.stands(peer)])
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
        Cost: 1 round, 3k/2 bits a party and element; with truncation 3 rounds, and (truncate in bytes) 3/2 more.
        """
        shape, flat = z.shape[1:], z.reshape(3, -1)
        n = flat.shape[1]
        label, kind = self.label("reduce"), Elements(self.ring)
        if truncate:
            return await self._divide(await self._into_halves(flat, label), label, truncate, shape)
        summands = [Known("", pair, self._summand(flat, pair), (n,), kind) for pair in PAIRS]
        out = torch.zeros_like(flat)
        for pieces in await self.reshare(label, summands):
            self.collect(out, pieces, kind)
        return self.ring.wrap(out).reshape(3, *shape)

    def _summand(self, z: torch.Tensor, pair: tuple[int, int]) -> torch.Tensor | None:
        if self.party not in pair:
            return None
        return z[self.stands(pair[0] if pair[1] == self.party else pair[1])]

    async def _into_halves(self, z: torch.Tensor, label: str) -> torch.Tensor:
        """u at parties 2 and 3, v at parties 0 and 1, u + v = z: masked by streams that become the other half.

        party 0 ──> 1, party 2 ──> 3, party 1 ──> 0, party 3 ──> 2: summand - stream of all but the receiver
        """
        kind, own = Elements(self.ring), z[self.stands(self.partner)].clone()
        messages: list[Message] = []
        for sender, witness in _INTO_HALVES:
            receiver = sender ^ 1
            message = Message(sender, witness, receiver, kind.part((own.numel(),)), None)
            messages.append(message)
            if self.party == receiver:
                continue
            mask = kind.mask(self.tape, self.without(receiver), f"{label}/half{receiver}", (own.numel(),))
            if self.party in (sender, witness):
                message.value = kind.minus(z[self.stands(witness if self.party == sender else sender)], mask)
            own.add_(message.known() if self.party == sender else mask)
        await self.exchange(f"{label}/halves", messages)
        for message in messages:
            if message.receiver == self.party and message.value is not None:
                own.add_(message.value)
        return self.ring.wrap(own)

    async def truncate(self, x: Share, bits: int) -> Share:
        """x / 2^bits, from the halves x_0 + x_1 and x_2 + x_3.

        Security: as `reduce`. Cost: 2 rounds, k/2 + 3/2 (bits rounded up to bytes) bits a party and element.
        """
        first, second = self.own_half(x.reshape(3, -1))
        return await self._divide(self.ring.wrap(first + second), self.label("truncate"), bits, x.shape[1:])

    async def _divide(self, own: torch.Tensor, label: str, bits: int, shape: torch.Size) -> Share:
        """(u + v) / 2^bits, where `own` is u at parties 2 and 3, v at parties 0 and 1; see `protocol.wrap`.

        round 1   u >> t, v >> t, and the bits a and b (t bits each)       shared
        round 2   a b, its four cross products (t bits each)               shared
        """
        wrap, ring = Wrap(self.ring, bits), self.ring
        whole, small = Elements(ring), Narrow(wrap.small, wrap.nbytes)
        if self.party >= 2:
            own = wrap.lifted(own)
        shifted = ring.shift_right(own, bits)
        bit = (own >= 0).to(wrap.small.dtype)
        shared = await self.reshare(
            f"{label}/shift", [*self.halves("shifted", shifted, whole), *self.halves("bit", bit, small)]
        )
        out, factors = self.joined(shared[:2], shifted), self.joined(shared[2:], bit)
        crossing = self.crossing("wrap", lambda i, j: factors[i] * factors[j], tuple(bit.shape), small)
        product = torch.zeros_like(factors)
        for pieces in await self.reshare(f"{label}/wrap", crossing):
            self.collect(product, pieces, small)
        out.add_(product.to(ring.dtype) << (ring.bits - bits))
        if self.party != 0:
            out[self.index(0)] -= (1 << (ring.bits - bits)) + (1 << (ring.bits - 2 - bits)) - 1
        return ring.wrap(out).reshape(3, *shape)
