"""The ring Z_2^k and how its elements lie in torch tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class Ring:
    """Z_2^k, k from 1 to 64. Elements are signed integers in [-2^(k-1), 2^(k-1)) in int32 (k <= 32) or int64 tensors.

    For k = 32 and 64 torch's own wrap-around is the ring's. For any other k (tests use k = 2 and 8) a result must be
    brought back into the range with `wrap`, which costs nothing where it is not needed.
    """

    bits: int = 64

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 64:
            raise ValueError(f"a ring has 1 to 64 bits, not {self.bits}")

    @cached_property
    def dtype(self) -> torch.dtype:
        """torch.int32 up to 32 bits, torch.int64 above."""
        return torch.int32 if self.bits <= 32 else torch.int64

    @cached_property
    def nbytes(self) -> int:
        """Bytes of one element, in memory and on the wire: 4 or 8."""
        return 4 if self.bits <= 32 else 8

    @cached_property
    def width(self) -> int:
        """Bits of the machine word that holds an element: 32 or 64."""
        return 8 * self.nbytes

    @cached_property
    def _spare(self) -> int:
        return self.width - self.bits

    def wrap(self, x: torch.Tensor) -> torch.Tensor:
        """x modulo 2^k, as the signed representative. Returns x itself where the dtype already wraps at k bits."""
        spare = self._spare
        return (x << spare) >> spare if spare else x

    def shift_right(self, x: torch.Tensor, bits: int) -> torch.Tensor:
        """x as an *unsigned* k-bit number, shifted right by `bits` (0 < bits < k): a logical shift."""
        keep = (1 << (self.bits - bits)) - 1
        return (x >> bits) & keep
