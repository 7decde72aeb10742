"""What replicated3 costs: payload bytes of all three parties together, exact. An element takes 4 or 8 bytes."""

from __future__ import annotations

from dataclasses import dataclass

from mpcpipe.protocol.base import Cost, Costs
from mpcpipe.protocol.carry import tree_ands
from mpcpipe.protocol.wrap import correction_bytes
from mpcpipe.ring.bilinear import Bilinear, Shape
from mpcpipe.ring.ops import words
from mpcpipe.ring.ring import Ring

FEW = 1 << 14
"""Products of up to so many elements are truncated in a round less, for 1.25 bytes more an element: 20 kB a party,
0.16 ms at 1 Gbit/s.
"""


def thirds(numel: int) -> list[int]:
    """Sizes of the three chunks of a flat tensor."""
    return [numel // 3 + (index < numel % 3) for index in range(3)]


def packed_bytes(numel: int) -> int:
    """Bytes of one plane of numel bits in three chunks, each padded to 64-bit words."""
    return 8 * sum(words(size) for size in thirds(numel))


@dataclass(frozen=True)
class Replicated3Costs(Costs):
    """See `Costs`."""

    ring: Ring
    compare_bits: int

    def share(self, numel: int) -> Cost:
        """The owner sends one element to one party; the rest comes from a stream."""
        return Cost(1, numel * self.ring.nbytes)

    def reveal(self, numel: int, to_all: bool) -> Cost:
        """Each who learns it gets the one share that it lacks."""
        return Cost(1, numel * self.ring.nbytes * (3 if to_all else 1))

    def multiply(self, op: Bilinear, x: Shape, y: Shape) -> Cost:
        """Two local products."""
        return Cost(0, 0, 2 * op.macs(x, y))

    def reduce(self, numel: int, truncate: int = 0) -> Cost:
        """Resharing: an element a party. With truncation: z2, two halves of the result, the correction, two bits. Of
        few elements: two masked summands, two dealt numbers, two parts of the wrap-around.
        """
        if not truncate:
            return Cost(1, 3 * numel * self.ring.nbytes)
        if numel <= FEW:
            return Cost(2, 3 * numel * (self.ring.nbytes + correction_bytes(truncate)))
        return Cost(3, numel * (3 * self.ring.nbytes + correction_bytes(truncate)) + 2 * packed_bytes(numel))

    def truncate(self, numel: int, bits: int) -> Cost:
        """As `reduce` without z2."""
        return Cost(2, numel * (2 * self.ring.nbytes + correction_bytes(bits)) + 2 * packed_bytes(numel))

    def nonnegative(self, numel: int) -> Cost:
        """One sharing of m planes, one product of m-1 planes by two messages, then the tree: three messages a plane."""
        m = self.compare_bits
        levels = tree_ands(m - 1)
        planes = m + 2 * (m - 1) + 3 * sum(pairs + propagated for pairs, propagated in levels)
        return Cost(2 + len(levels), planes * packed_bytes(numel))

    def to_ring(self, numel: int) -> Cost:
        """Role 0 shares its half of the bit; roles 1 and 2 exchange."""
        return Cost(2, 3 * numel * self.ring.nbytes)

    def select(self, numel: int) -> Cost:
        """Role 0 shares its half of the bit and of the selected value; roles 1 and 2 exchange."""
        return Cost(2, 4 * numel * self.ring.nbytes)

    def select_again(self, numel: int) -> Cost:
        """As `select`, but the half of the bit is shared already."""
        return Cost(2, 3 * numel * self.ring.nbytes)
