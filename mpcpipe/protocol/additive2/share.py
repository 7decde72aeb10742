"""additive2: secrets come in, results go out."""

from __future__ import annotations

from abc import ABC

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.additive2.roles import Roles
from mpcpipe.protocol.base import Opening, Share
from mpcpipe.protocol.rounds import Round
from mpcpipe.ring.bilinear import Shape


class Sharing(Roles, ABC):
    """share, reveal, public."""

    async def share(self, value: torch.Tensor | None, owner: int, shape: Shape) -> Share:
        """Secret-share `value` of party `owner`: the other's share is a stream that the two have in common.

        Security: the other sees a stream, the dealer nothing. Cost: nothing is sent.
        """
        if owner == self.dealer:
            raise ValueError(
                f"party {owner} is the dealer, which has nothing to share; the data are with parties 0 and 1"
            )
        if self.party == owner and (value is None or tuple(value.shape) != tuple(shape)):
            raise ValueError(f"party {owner} must give a value of shape {tuple(shape)} to share")
        label = self.label("share")
        if self.deals:
            return self.blank(1, *shape)
        mask = self.tape.elements((0, 1), label, torch.Size(shape).numel(), self.ring)
        if value is not None and self.party == owner:
            mask = self.ring.wrap(value.reshape(-1) - mask)
        return mask.reshape(1, *shape)

    async def reveal(self, x: Share, to: int | None, why: str) -> torch.Tensor | None:
        """Open x to one of the two parties, or to both. None at the dealer, always.

        Security: who learns x gets the other's share, which is x minus what it holds; the dealer sees nothing.
        Cost: 1 round, k bits for each receiver.
        """
        if to == self.dealer:
            raise ValueError(f"party {to} is the dealer: whoever knows all masks must not learn what they mask")
        label = self.label("reveal")
        self.openings.append(Opening(why, to, tuple(x.shape[1:])))
        if self.deals:
            await Round(label, {}, {})
            return None
        flat = x.reshape(-1)
        send = {self.other: [flat]} if to in (None, self.other) else {}
        receive = {self.other: [Part(self.ring.dtype, flat.numel())]} if to in (None, self.party) else {}
        received = await Round(label, send, receive)
        if not receive:
            return None
        return self.ring.wrap(received[self.other][0].add_(flat)).reshape(x.shape[1:])

    def public(self, value: torch.Tensor) -> Share:
        """value as the share (value, 0)."""
        if self.deals:
            return self.blank(1, *value.shape, dtype=value.dtype)
        return (value.clone() if self.party == 0 else torch.zeros_like(value)).unsqueeze(0)
