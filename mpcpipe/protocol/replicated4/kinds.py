"""Kinds of values that are shared: how they are masked, and how they go over the wire. The last dimension is cut."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.wrap import from_bytes, to_bytes
from mpcpipe.random.tape import Holders, Tape
from mpcpipe.ring.bilinear import Shape
from mpcpipe.ring.ring import Ring


class Kind(ABC):
    """One kind of tensors of a given shape."""

    @abstractmethod
    def mask(self, tape: Tape, holders: Holders, label: str, shape: Shape) -> torch.Tensor:
        """A uniform tensor."""

    @abstractmethod
    def minus(self, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """What remains without `mask`, reduced: nothing of the mask's size is left in it."""

    @abstractmethod
    def add(self, out: torch.Tensor, value: torch.Tensor) -> None:
        """Add into `out`."""

    def to_wire(self, value: torch.Tensor) -> torch.Tensor:
        """As a flat tensor."""
        return value.reshape(-1)

    def from_wire(self, data: torch.Tensor, shape: Shape) -> torch.Tensor:
        """The inverse."""
        return data.view(shape)

    @abstractmethod
    def part(self, shape: Shape) -> Part:
        """What is expected for a tensor of this shape."""


@dataclass(frozen=True)
class Elements(Kind):
    """Ring elements (n,), added; in whole words."""

    ring: Ring

    def mask(self, tape: Tape, holders: Holders, label: str, shape: Shape) -> torch.Tensor:
        """See `Kind`."""
        return tape.elements(holders, label, shape[0], self.ring)

    def minus(self, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """See `Kind`."""
        return self.ring.wrap(value - mask)

    def add(self, out: torch.Tensor, value: torch.Tensor) -> None:
        """See `Kind`. `out` is not wrapped."""
        out.add_(value)

    def part(self, shape: Shape) -> Part:
        """See `Kind`."""
        return Part(self.ring.dtype, shape[0])


@dataclass(frozen=True)
class Narrow(Elements):
    """Elements of a small ring (n,), sent in as many bytes as they need."""

    nbytes: int

    def to_wire(self, value: torch.Tensor) -> torch.Tensor:
        """See `Kind`."""
        return to_bytes(value, self.nbytes)

    def from_wire(self, data: torch.Tensor, shape: Shape) -> torch.Tensor:
        """See `Kind`."""
        return self.ring.wrap(from_bytes(data, self.nbytes, self.ring.dtype))

    def part(self, shape: Shape) -> Part:
        """See `Kind`."""
        return Part(torch.uint8, shape[0] * self.nbytes)


class Planes(Kind):
    """Packed bits (planes, words), combined by XOR."""

    def mask(self, tape: Tape, holders: Holders, label: str, shape: Shape) -> torch.Tensor:
        """See `Kind`."""
        return tape.planes(holders, label, shape[0], 64 * shape[1])

    def minus(self, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """See `Kind`."""
        return value ^ mask

    def add(self, out: torch.Tensor, value: torch.Tensor) -> None:
        """See `Kind`."""
        out.bitwise_xor_(value)

    def part(self, shape: Shape) -> Part:
        """See `Kind`."""
        return Part(torch.int64, shape[0] * shape[1])
