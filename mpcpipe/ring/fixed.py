"""Real numbers as ring elements: x is held as the integer nearest to x * 2^fraction_bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mpcpipe.errors import RangeError
from mpcpipe.ring.ring import Ring


@dataclass(frozen=True)
class FixedPoint:
    """Encoding of reals into `ring` with `fraction_bits` bits after the point.

    limit: the largest magnitude that `encode` takes; 0 means the ring's own bound, 2^(k - 2 - fraction_bits):
    products of bigger values would not survive a truncation anyway.
    """

    ring: Ring
    fraction_bits: int
    limit: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.fraction_bits <= self.ring.bits - 2:
            raise ValueError(f"a ring of {self.ring.bits} bits has no room for {self.fraction_bits} fraction bits")

    @property
    def bound(self) -> float:
        """Values of this magnitude or more are refused."""
        largest = 2.0 ** (self.ring.bits - 2 - self.fraction_bits)
        return min(self.limit, largest) if self.limit else largest

    @property
    def unit(self) -> float:
        """The distance between neighbouring numbers."""
        return 2.0**-self.fraction_bits

    def encode(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """x (floats or integers, any shape) as ring elements, rounded to the nearest.

        Raises RangeError, naming `name`, the first index and the magnitude, for NaN, infinity and |x| >= `bound`.
        """
        wide = x.detach().to(torch.float64)
        bad = ~(wide.abs() < self.bound)
        if bool(bad.any()):
            index = tuple(int(i) for i in bad.nonzero()[0])
            value = float(wide[index])
            count = int(bad.sum())
            finite = bool(torch.isfinite(wide[index]))
            what = f"of magnitude {abs(value):.6g}" if finite else "not a finite number"
            raise RangeError(
                f"{name}: element {list(index)} is {what}; the fixed point with {self.fraction_bits} fraction bits "
                f"takes |x| < {self.bound:g} ({count} of {wide.numel()} elements do not fit). Scale or clean the "
                "values, or choose fewer fraction bits."
            )
        return (wide * 2.0**self.fraction_bits).round().to(self.ring.dtype)

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        """Ring elements as float64; exact while |x| < 2^53 units."""
        return x.to(torch.float64) / 2.0**self.fraction_bits
