"""plaintext: every party holds every value. For tests, and for finding out whether a model's trouble is the model's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.base import Bits, Cost, Costs, Opening, Partial, Protocol, Share
from mpcpipe.protocol.rounds import Round
from mpcpipe.ring.bilinear import Bilinear, Shape
from mpcpipe.ring.ring import Ring


@dataclass(frozen=True)
class PlaintextCosts(Costs):
    """Only `share` sends anything: the owner tells the others."""

    ring: Ring
    parties: int

    def share(self, numel: int) -> Cost:
        """The value, to every other party."""
        return Cost(1 if self.parties > 1 else 0, (self.parties - 1) * numel * self.ring.nbytes)

    def reveal(self, numel: int, to_all: bool) -> Cost:
        """Nothing."""
        return Cost()

    def multiply(self, op: Bilinear, x: Shape, y: Shape) -> Cost:
        """One local product."""
        return Cost(macs=op.macs(x, y))

    def reduce(self, numel: int, truncate: int = 0) -> Cost:
        """Nothing."""
        return Cost()

    def truncate(self, numel: int, bits: int) -> Cost:
        """Nothing."""
        return Cost()

    def nonnegative(self, numel: int) -> Cost:
        """Nothing."""
        return Cost()

    def to_ring(self, numel: int) -> Cost:
        """Nothing."""
        return Cost()

    def select(self, numel: int) -> Cost:
        """Nothing."""
        return Cost()

    def select_again(self, numel: int) -> Cost:
        """Nothing."""
        return Cost()


class Plaintext(Protocol):
    """The interface of a protocol, over values that every party sees. Protects nothing.

    Same ring, same fixed point, rounding to the nearest.
    """

    name: ClassVar[str] = "plaintext"
    party_counts: ClassVar[tuple[int, ...]] = (1, 2, 3, 4)
    components: ClassVar[int] = 1
    promise: ClassVar[str] = "NO PROTECTION: every party sees all values"

    @property
    def costs(self) -> PlaintextCosts:
        """What each operation costs."""
        return PlaintextCosts(self.ring, self.parties)

    async def share(self, value: torch.Tensor | None, owner: int, shape: Shape) -> Share:
        """The owner sends the value to all others. Security: none. Cost: 1 round, k bits to each other party."""
        label = self.label("share")
        others = [party for party in range(self.parties) if party != self.party]
        if self.party == owner:
            if value is None or tuple(value.shape) != tuple(shape):
                raise ValueError(f"party {owner} must give a value of shape {tuple(shape)} to share")
            if others:
                await Round(label, {other: [value.reshape(-1).contiguous()] for other in others}, {})
            return value.unsqueeze(0).clone()
        received = await Round(label, {}, {owner: [Part(self.ring.dtype, torch.Size(shape).numel())]})
        return received[owner][0].reshape(1, *shape)

    async def reveal(self, x: Share, to: int | None, why: str) -> torch.Tensor | None:
        """x. Security: none. Cost: nothing."""
        self.openings.append(Opening(why, to, tuple(x.shape[1:])))
        return x[0].clone() if to in (None, self.party) else None

    def public(self, value: torch.Tensor) -> Share:
        """value."""
        return value.unsqueeze(0)

    async def multiply(self, op: Bilinear, x: Share, y: Share) -> Partial:
        """op(x, y). Cost: one local product."""
        return self.ring.wrap(op(x[0], y[0])).unsqueeze(0)

    def partial(self, x: Share) -> Partial:
        """x."""
        return x

    async def reduce(self, z: Partial, truncate: int = 0) -> Share:
        """z / 2^truncate, rounded to the nearest."""
        return await self.truncate(z, truncate) if truncate else self.ring.wrap(z)

    async def truncate(self, x: Share, bits: int) -> Share:
        """x / 2^bits, rounded to the nearest."""
        return self.ring.wrap(x + (1 << (bits - 1))) >> bits

    async def nonnegative(self, x: Share) -> Bits:
        """1 where x >= 0, modulo 2^compare_bits."""
        reduced = Ring(self.compare_bits).wrap(x.to(Ring(self.compare_bits).dtype))
        return Bits((reduced >= 0).to(self.ring.dtype).reshape(1, -1), tuple(x.shape[1:]))

    async def to_ring(self, bits: Bits) -> Share:
        """Bits as ring elements."""
        return bits.data.reshape(1, *bits.shape).clone()

    async def select(self, bits: Bits, x: Share) -> tuple[Share, Bits]:
        """x where the bit is 1."""
        return x * bits.data.reshape(1, *bits.shape), bits

    async def select_again(self, selector: Bits, x: Share) -> Share:
        """x where the bit is 1."""
        return x * selector.data.reshape(1, *selector.shape)
