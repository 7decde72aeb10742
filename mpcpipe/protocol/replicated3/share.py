"""replicated3: secrets come in, results go out."""

from __future__ import annotations

from abc import ABC

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.base import Opening, Share
from mpcpipe.protocol.replicated3.roles import Roles
from mpcpipe.protocol.rounds import Round
from mpcpipe.ring.bilinear import Shape


class Sharing(Roles, ABC):
    """share, reveal, public."""

    async def share(self, value: torch.Tensor | None, owner: int, shape: Shape) -> Share:
        """Secret-share `value` of party `owner`.

        With the owner as role 0: s1 comes from the stream of roles 0 and 1, s0 = value - s1 goes to role 2, s2 = 0.

        Security: role 1 sees a stream, role 2 sees value minus a stream that it does not know: both uniform.
        Cost: 1 round, k/3 bits a party and element.
        """
        label = self.label("share")
        numel = torch.Size(shape).numel()
        role = (self.party - owner) % 3
        if role == 0:
            if value is None or tuple(value.shape) != tuple(shape):
                raise ValueError(f"party {owner} must give a value of shape {tuple(shape)} to share")
            s1 = self.elements("01", 0, label, numel)
            s0 = self.ring.wrap(value.reshape(-1) - s1)
            await Round(label, {self.prev: [s0]}, {})
            halves = (s0, s1)
        elif role == 1:
            s1 = self.elements("01", 1, label, numel)
            await Round(label, {}, {})
            halves = (s1, torch.zeros_like(s1))
        else:
            received = await Round(label, {}, {owner: [Part(self.ring.dtype, numel)]})
            halves = (torch.zeros_like(received[owner][0]), received[owner][0])
        return torch.stack(halves).reshape(2, *shape)

    async def reveal(self, x: Share, to: int | None, why: str) -> torch.Tensor | None:
        """Open x to one party or to all.

        Security: who learns x gets the one share that it lacks, which is x minus what it holds.
        Cost: 1 round, k/3 bits a party and element for one receiver, k for all.
        """
        label = self.label("reveal")
        self.openings.append(Opening(why, to, tuple(x.shape[1:])))
        flat = x.reshape(2, -1)
        part = [Part(self.ring.dtype, flat.shape[1])]
        send = {self.next: [flat[0].contiguous()]} if to in (None, self.next) else {}
        receive = {self.prev: part} if to in (None, self.party) else {}
        received = await Round(label, send, receive)
        if not receive:
            return None
        return self.ring.wrap(flat[0] + flat[1] + received[self.prev][0]).reshape(x.shape[1:])

    def public(self, value: torch.Tensor) -> Share:
        """value as the share (value, 0, 0)."""
        none = torch.zeros_like(value)
        return torch.stack({0: (value, none), 1: (none, none), 2: (none, value)}[self.party])
