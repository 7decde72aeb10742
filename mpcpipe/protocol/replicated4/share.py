"""replicated4: secrets come in; results go out, once everything has been checked."""

from __future__ import annotations

from abc import ABC

import torch

from mpcpipe.errors import IntegrityError
from mpcpipe.link.base import Part
from mpcpipe.protocol.base import Opening, Share
from mpcpipe.protocol.replicated4.checks import Checks
from mpcpipe.protocol.replicated4.evidence import Recorded, Route
from mpcpipe.protocol.replicated4.kinds import Elements
from mpcpipe.protocol.rounds import Round
from mpcpipe.random.mac import TAG_BYTES, packed, unpacked
from mpcpipe.ring.bilinear import Shape


class Sharing(Checks, ABC):
    """share, reveal, public."""

    async def share(self, value: torch.Tensor | None, owner: int, shape: Shape) -> Share:
        """Secret-share `value` of party `owner`.

        Of the parties a, b, c after the owner: components a and b come from streams, component c = value - both goes
        to a and b, the owner's is 0. b is a's witness: an owner who tells them different things is found out.

        Security: a and b see the value minus a stream that they do not know; c sees streams.
        Cost: 1 round, k/2 bits a party and element.
        """
        label = self.label("share")
        numel = torch.Size(shape).numel()
        kind = Elements(self.ring)
        a, b, c = ((owner + step) % 4 for step in (1, 2, 3))
        masks = {x: kind.mask(self.tape, self.without(x), label, numel) for x in (a, b) if x != self.party}
        rest = None
        if self.party == owner:
            if value is None or tuple(value.shape) != tuple(shape):
                raise ValueError(f"party {owner} must give a value of shape {tuple(shape)} to share")
            rest = kind.minus(value.reshape(-1) - masks[a], masks[b])
        send = {a: [rest], b: [rest]} if rest is not None and numel else {}
        receive = {owner: [kind.part(numel)]} if self.party in (a, b) and numel else {}
        arrived = await Round(label, send, receive)
        own = rest
        tags: dict[Recorded, int] = {}
        if receive:
            (own,) = arrived[owner]
            tag = self.passes.tag((owner, b, a), label, f"/tag{owner}{a}", own)
            tags = {} if tag is None else {(owner, b, a): tag}
        self.journal.record(self.lane_number, tags)
        like = next(iter(masks.values()))
        out = like.new_zeros((3, numel))
        for component, mask in masks.items():
            out[self.index(component)] = mask
        if self.party != c and own is not None:
            out[self.index(c)] = own
        return out.reshape(3, *shape)

    async def reveal(self, x: Share, to: int | None, why: str) -> torch.Tensor | None:
        """Open x to one party or to all, after a check of everything that went into it.

        Security: who learns x gets the component that it lacks, which is x minus what it holds, from one party, and
        its tag from another. Nobody sends anything before everybody has found all messages right.
        Cost: 4 rounds; k/4 bits a party and element for one receiver, k for all, and 448 bytes.
        """
        label = self.label("reveal")
        self.openings.append(Opening(why, to, tuple(x.shape[1:])))
        flat = x.reshape(3, -1)
        numel = flat.shape[1]
        receivers = range(4) if to is None else (to,)
        if not numel:
            await Round(label, {}, {})
            return x.new_empty(x.shape[1:]) if self.party in receivers else None
        await self._check(label)
        send: dict[int, list[torch.Tensor]] = {}
        receive: dict[int, list[Part]] = {}
        for receiver in receivers:
            sender, witness = (receiver + 1) % 4, (receiver + 2) % 4
            if self.party == receiver:
                receive = {sender: [Part(self.ring.dtype, numel)], witness: [Part(torch.uint8, TAG_BYTES)]}
            elif self.party in (sender, witness):
                lacked = self.ring.wrap(flat[self.index(receiver)]).contiguous()
                if self.party == witness and not lacked.is_meta:
                    lacked = packed([self._tag((sender, witness, receiver), label, lacked)])
                elif self.party == witness:
                    lacked = lacked.new_empty(TAG_BYTES, dtype=torch.uint8)
                send[receiver] = [lacked]
        received = await Round(label, send, receive)
        if self.party not in receivers:
            return None
        sender, witness = (self.party + 1) % 4, (self.party + 2) % 4
        (lacked,), (tagged,) = received[sender], received[witness]
        if not lacked.is_meta and unpacked(tagged) != [self._tag((sender, witness, self.party), label, lacked)]:
            raise IntegrityError(
                f"party {self.party} noticed at {label!r}: what party {sender} opened is not what party {witness} "
                "knows. One of them deviates from the protocol, or a memory or a network is faulty. Find the cause, "
                "start again"
            )
        return self.ring.wrap(flat.sum(0, dtype=flat.dtype) + lacked).reshape(x.shape[1:])

    def _tag(self, route: Route, label: str, lacked: torch.Tensor) -> int:
        found = self.passes.tag(route, label, f"/tag{route[0]}{route[2]}", lacked)
        assert found is not None, "what is opened has values"
        return found

    def public(self, value: torch.Tensor) -> Share:
        """value as component 0, which party 0 lacks."""
        out = value.new_zeros((3, *value.shape))
        if self.party != 0:
            out[self.index(0)] = value
        return out
