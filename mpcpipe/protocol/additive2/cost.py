"""What additive2 costs: payload bytes of both parties and the dealer together, exact. An element takes 4 or 8 bytes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mpcpipe.protocol.base import Cost, Costs
from mpcpipe.protocol.carry import tree_ands
from mpcpipe.protocol.wrap import correction_bytes
from mpcpipe.ring.bilinear import Bilinear, Shape
from mpcpipe.ring.ops import words
from mpcpipe.ring.ring import Ring


def packed_bytes(numel: int) -> int:
    """Bytes of a plane of numel bits, padded to 64-bit words."""
    return 8 * words(numel)


@dataclass(frozen=True)
class Additive2Costs(Costs):
    """See `Costs`. Sums are written as two times what a party shows to the other, plus what the dealer sends."""

    ring: Ring
    compare_bits: int

    def share(self, numel: int) -> Cost:
        """Nothing: the other's share is a stream."""
        return Cost()

    def reveal(self, numel: int, to_all: bool) -> Cost:
        """A share to each of the two who learns it."""
        return Cost(1, numel * self.ring.nbytes * (2 if to_all else 1))

    def multiply(self, op: Bilinear, x: Shape, y: Shape) -> Cost:
        """Both arguments, masked; a summand of the triple's product."""
        shown = torch.Size(x).numel() + torch.Size(y).numel()
        dealt = torch.Size(op.shape(x, y)).numel()
        return Cost(1, (2 * shown + dealt) * self.ring.nbytes, 2 * op.macs(x, y))

    def reduce(self, numel: int, truncate: int = 0) -> Cost:
        """Nothing, or a truncation."""
        return self.truncate(numel, truncate) if truncate else Cost()

    def truncate(self, numel: int, bits: int) -> Cost:
        """A bit of each party; a correction."""
        return Cost(1, 2 * packed_bytes(numel) + numel * correction_bytes(bits))

    def nonnegative(self, numel: int) -> Cost:
        """m-1 planes at first; a level shows three planes for two products."""
        low = self.compare_bits - 1
        levels = tree_ands(low)
        shown = low + sum(2 * pairs + kept for pairs, kept in levels)
        dealt = low + sum(pairs + kept for pairs, kept in levels)
        return Cost(1 + len(levels), (2 * shown + dealt) * packed_bytes(numel))

    def to_ring(self, numel: int) -> Cost:
        """A bit of each party; a summand of its mask."""
        return Cost(1, 2 * packed_bytes(numel) + numel * self.ring.nbytes)

    def select(self, numel: int) -> Cost:
        """A bit and an element of each party; two summands."""
        return Cost(1, 2 * packed_bytes(numel) + 4 * numel * self.ring.nbytes)

    def select_again(self, numel: int) -> Cost:
        """An element of each party; a summand."""
        return Cost(1, 3 * numel * self.ring.nbytes)
