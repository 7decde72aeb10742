"""Kinds of values that are shared, as flat tensors: how they are masked, and how they go over the wire."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.replicated4 import cost
from mpcpipe.protocol.wrap import from_bytes, to_bytes
from mpcpipe.random.tape import Holders, Tape
from mpcpipe.ring.ring import Ring


class Kind(ABC):
    """dtype, bits: of an element. wire_bytes: what it takes on the wire; None for words of bits. narrow: fewer bytes
    than in memory.
    """

    dtype: torch.dtype
    bits: int
    wire_bytes: int | None
    narrow = False

    def halves(self, numel: int) -> tuple[int, int]:
        """The sizes of the two parts that two parties send."""
        return cost.halves(numel)

    @abstractmethod
    def mask(self, tape: Tape, holders: Holders, label: str, numel: int) -> torch.Tensor:
        """A uniform tensor (numel,)."""

    @abstractmethod
    def minus(self, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """What remains without `mask`, reduced: nothing of the mask's size is left in it."""

    @abstractmethod
    def add(self, out: torch.Tensor, value: torch.Tensor, up: int) -> None:
        """Add value 2^up into `out`, which is not reduced."""

    def to_wire(self, value: torch.Tensor) -> torch.Tensor:
        """As it is sent."""
        return value

    def from_wire(self, data: torch.Tensor) -> torch.Tensor:
        """The inverse."""
        return data

    def part(self, numel: int) -> Part:
        """What is expected for so many elements."""
        return Part(self.dtype, numel)


class Elements(Kind):
    """Ring elements, added; in whole words."""

    def __init__(self, ring: Ring) -> None:
        self.ring, self.dtype, self.bits = ring, ring.dtype, ring.bits
        self.wire_bytes: int | None = ring.nbytes

    def mask(self, tape: Tape, holders: Holders, label: str, numel: int) -> torch.Tensor:
        """See `Kind`."""
        return tape.elements(holders, label, numel, self.ring)

    def minus(self, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """See `Kind`."""
        return self.ring.wrap(value - mask)

    def add(self, out: torch.Tensor, value: torch.Tensor, up: int) -> None:
        """See `Kind`."""
        out.add_(value.to(out.dtype) << up if up else value)


class Narrow(Elements):
    """Elements of a small ring, sent in as many bytes as they need."""

    narrow = True

    def __init__(self, ring: Ring, nbytes: int) -> None:
        super().__init__(ring)
        self.wire_bytes = self.nbytes = nbytes

    def to_wire(self, value: torch.Tensor) -> torch.Tensor:
        """See `Kind`."""
        return to_bytes(value, self.nbytes)

    def from_wire(self, data: torch.Tensor) -> torch.Tensor:
        """See `Kind`."""
        return self.ring.wrap(from_bytes(data, self.nbytes, self.dtype))

    def part(self, numel: int) -> Part:
        """See `Kind`."""
        return Part(torch.uint8, numel * self.nbytes)


@dataclass(frozen=True)
class Planes(Kind):
    """Packed bits, plane after plane of `words` words each, combined by XOR. Whole planes are sent."""

    words: int
    dtype = torch.int64
    bits = 64
    wire_bytes = None

    def halves(self, numel: int) -> tuple[int, int]:
        """See `Kind`."""
        first, second = cost.halves(numel // self.words if self.words else 0)
        return first * self.words, second * self.words

    def mask(self, tape: Tape, holders: Holders, label: str, numel: int) -> torch.Tensor:
        """See `Kind`."""
        return tape.planes(holders, label, numel // self.words if self.words else 0, 64 * self.words).reshape(-1)

    def minus(self, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """See `Kind`."""
        return value ^ mask

    def add(self, out: torch.Tensor, value: torch.Tensor, up: int) -> None:
        """See `Kind`."""
        out.bitwise_xor_(value)
