"""Secret numbers with a fixed point: shares, and how many of their bits are fraction.

Scales differ on purpose: average pooling over a window of 4 is a sum whose value has two more fraction bits, and costs nothing;
the next product truncates them away together with its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpcpipe.protocol.base import Partial, Share
from mpcpipe.ring.bilinear import Shape


@dataclass(frozen=True)
class Fixed:
    """A secret tensor: real value = data / 2^fraction_bits. data (components, *shape)."""

    data: Share
    fraction_bits: int

    @property
    def shape(self) -> Shape:
        """Shape of the secret tensor, without the share components."""
        return tuple(self.data.shape[1:])


@dataclass(frozen=True)
class PartialGrad:
    """A weight's gradient before it is reduced: sums of local products over micro-batches. See `Protocol.multiply`."""

    data: Partial
    fraction_bits: int

    def __add__(self, other: PartialGrad) -> PartialGrad:
        """Sum over micro-batches: local, and free."""
        assert self.fraction_bits == other.fraction_bits
        return PartialGrad(self.data + other.data, self.fraction_bits)
