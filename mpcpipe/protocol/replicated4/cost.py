"""What replicated4 costs: payload bytes of all four parties together, exact. An element takes 4 or 8 bytes."""

from __future__ import annotations

from dataclasses import dataclass

from mpcpipe.protocol.base import Cost, Costs
from mpcpipe.protocol.carry import tree_ands
from mpcpipe.protocol.wrap import correction_bytes
from mpcpipe.random.mac import TAG_BYTES
from mpcpipe.ring.bilinear import Bilinear, Shape
from mpcpipe.ring.ops import words
from mpcpipe.ring.ring import Ring
from mpcpipe.ring.shapes import bit_blocks, monomial_rows


def block_width(numel: int) -> int:
    """Bits that a comparison of so many elements takes at once: 3 send least, 4 spare a round of the tree."""
    return 4 if numel <= 4096 else 3


def halves(n: int) -> tuple[int, int]:
    """Sizes of the two parts of n that two parties send."""
    return (n + 1) // 2, n // 2


CHECK_BYTES = (4 + 12 + 12) * TAG_BYTES
"""Of what two witnesses know in parts, a sum a receiver; then twice a number from everybody to everybody."""


@dataclass(frozen=True)
class Replicated4Costs(Costs):
    """See `Costs`."""

    ring: Ring
    compare_bits: int

    def share(self, numel: int) -> Cost:
        """The owner sends one element to two parties, who compare; the rest comes from streams."""
        return Cost(1, 2 * numel * self.ring.nbytes)

    def reveal(self, numel: int, to_all: bool) -> Cost:
        """A check; then each who learns it gets the component that it lacks from one party, and a tag from another."""
        if not numel:
            return Cost(1)
        return Cost(4, CHECK_BYTES + (numel * self.ring.nbytes + TAG_BYTES) * (4 if to_all else 1))

    def multiply(self, op: Bilinear, x: Shape, y: Shape) -> Cost:
        """Three local products."""
        return Cost(0, 0, 3 * op.macs(x, y))

    def reduce(self, numel: int, truncate: int = 0) -> Cost:
        """Six summands, each known to two parties, are shared. With truncation a pair of parties is told the rest
        of the value, an element and a bit each.
        """
        if not truncate:
            return Cost(1, 6 * numel * self.ring.nbytes)
        told = 2 * numel * self.ring.nbytes + sum(2 * 8 * words(half) for half in halves(numel))
        return Cost(1, told) + self.truncate(numel, truncate)

    def truncate(self, numel: int, bits: int) -> Cost:
        """Two shifted halves; two bits and their four cross products modulo 2^bits."""
        return Cost(2, numel * (2 * self.ring.nbytes + 6 * correction_bytes(bits)))

    def nonnegative(self, numel: int) -> Cost:
        """Two sharings of the monomials of blocks of bits; of each block, four cross products each of its carry and of
        what lets a carry through; then the tree over the blocks: six messages a plane.
        """
        low, width = self.compare_bits - 1, block_width(numel)
        blocks = len(bit_blocks(low, width))
        levels = tree_ands(blocks)
        tree = sum(pairs + propagated for pairs, propagated in levels)
        planes = 2 * (monomial_rows(low, width) + 1) + 4 * (2 * blocks - 1) + 6 * tree
        return Cost(2 + len(levels), planes * 8 * words(numel))

    def to_ring(self, numel: int) -> Cost:
        """Two halves of a bit, four cross products."""
        return Cost(2, 6 * numel * self.ring.nbytes)

    def select(self, numel: int) -> Cost:
        """Two halves of a bit, two halves of the value, four cross products."""
        return Cost(2, 8 * numel * self.ring.nbytes)

    def select_again(self, numel: int) -> Cost:
        """As `select`, but the halves of the bit are shared already."""
        return Cost(2, 6 * numel * self.ring.nbytes)
