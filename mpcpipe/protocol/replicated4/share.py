"""replicated4: secrets come in; everything is checked; results go out."""

from __future__ import annotations

from abc import ABC

import torch

from mpcpipe.errors import IntegrityError
from mpcpipe.link.base import Part
from mpcpipe.protocol.base import Opening, Share
from mpcpipe.protocol.replicated4.evidence import Route
from mpcpipe.protocol.replicated4.joint import Joint
from mpcpipe.protocol.replicated4.kinds import Elements
from mpcpipe.protocol.replicated4.roles import others
from mpcpipe.protocol.rounds import Round
from mpcpipe.random.mac import TAG_BYTES, packed, unpacked
from mpcpipe.ring.bilinear import Shape


class Sharing(Joint, ABC):
    """share, check, reveal, public."""

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
        own, tags = rest, {}
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

    async def check(self) -> None:
        """Compare all that this lane knows of with its witnesses. IntegrityError, at the one who notices.

        Security: a tag says nothing but whether what its receiver got is right. Who goes on has heard from everybody
        that it was. Cost: 2 rounds, 396 bytes of all parties together.
        """
        await self._check(self.label("check"))

    async def _check(self, label: str) -> None:
        totals = self.journal.totals(self.lane_number)
        everybody = others(self.party)
        tags = {
            peer: packed([totals.get((sender, self.party, peer), 0) for sender in others(self.party, peer)])
            for peer in everybody
        }
        received = await Round(
            f"{label}/check",
            {peer: [data] for peer, data in tags.items()},
            {peer: [Part(torch.uint8, 2 * TAG_BYTES)] for peer in everybody},
        )
        for witness in everybody:
            (data,) = received[witness]
            if not data.is_meta:
                senders = others(self.party, witness)
                for sender, said in zip(senders, unpacked(data), strict=True):
                    if said != totals.get((sender, witness, self.party), 0):
                        raise self._deviation(label, sender, witness)
        await self._everybody_is_content(f"{label}/agreed")
        self.journal.last_check[self.lane_number] = label

    async def _everybody_is_content(self, label: str) -> None:
        yes = torch.ones(1, dtype=torch.uint8)
        everybody = others(self.party)
        received = await Round(
            label, {peer: [yes] for peer in everybody}, {peer: [Part(torch.uint8, 1)] for peer in everybody}
        )
        for peer in everybody:
            (said,) = received[peer]
            if not said.is_meta and said.item() != 1:
                raise IntegrityError(f"party {self.party} at {label!r}: party {peer} does not say that all was right")

    def _deviation(self, label: str, sender: int, witness: int) -> IntegrityError:
        since = self.journal.last_check.get(self.lane_number)
        after = f"after {since!r}" if since else "since the session began"
        return IntegrityError(
            f"party {self.party} noticed at {label!r}: what party {sender} sent it {after} is not what party {witness} "
            "knows it should be. One of the two deviates from the protocol, or somebody who sent it something before, "
            "or a memory or a network is faulty. Nothing that depends on it was opened. Find the cause, start again"
        )

    async def reveal(self, x: Share, to: int | None, why: str) -> torch.Tensor | None:
        """Open x to one party or to all, after a check of everything that went into it.

        Security: who learns x gets the component that it lacks, which is x minus what it holds, from one party, and
        its tag from another. Nobody sends anything before everybody has found all messages right.
        Cost: 3 rounds; k/4 bits a party and element for one receiver, k for all, and 396 bytes.
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
            raise self._deviation(label, sender, witness)
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
