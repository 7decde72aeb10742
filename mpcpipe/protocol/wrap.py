"""Dividing u + v by 2^t where one party knows u and another v: the wrap-around of the sum as one product of two bits.

With 2^(k-2) added, u + v = x is in [0, 2^(k-1)) whenever |x| < 2^(k-2). Its top bit is 0 then, and the sum wraps around
exactly if msb(u) or msb(v). With a = not msb(u) and b = not msb(v) the wrap is 1 - ab, so

    x >> t  =  (u >> t) + (v >> t) + (ab - 1) 2^(k-t) - 2^(k-2-t)   (+ 1)

is x / 2^t rounded down or up. Of the bit product only its value modulo 2^t counts. Somebody who sees neither u nor v
deals c0 + c1 = r_a r_b modulo 2^t for the masks of the two bits, which are shown to each other as alpha = a ^ r_a and
beta = b ^ r_b; then

    ab = [beta (a - alpha) + sigma c0] + [alpha b + sigma c1],   sigma = (1 - 2 alpha)(1 - 2 beta)

splits into what the party of u knows and what the party of v knows. Bits are packed, one an element.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mpcpipe.ring import ops
from mpcpipe.ring.reference import from_bytes as from_bytes
from mpcpipe.ring.reference import to_bytes as to_bytes
from mpcpipe.ring.ring import Ring


def correction_bytes(bits: int) -> int:
    """Bytes on the wire of an element of Z_2^bits, the dealt part of a truncation by `bits`."""
    return (bits + 7) // 8


@dataclass(frozen=True)
class Wrap:
    """A division by 2^bits in `ring`: who computes what. Local; messages are the protocol's."""

    ring: Ring
    bits: int

    def __post_init__(self) -> None:
        if not 0 < self.bits <= self.ring.bits - 2:
            raise ValueError(f"cannot truncate by {self.bits} bits in a ring of {self.ring.bits}")

    @property
    def small(self) -> Ring:
        """Z_2^t, in which the correction lies."""
        return Ring(self.bits)

    @property
    def nbytes(self) -> int:
        """Bytes of an element's correction."""
        return correction_bytes(self.bits)

    @property
    def lift(self) -> int:
        """2^(k-2), added to one of the two summands, never to both."""
        return 1 << (self.ring.bits - 2)

    @property
    def constant(self) -> int:
        """Taken from the quotient's summand of who has not added `lift`."""
        k, t = self.ring.bits, self.bits
        return (1 << (k - t)) + (1 << (k - 2 - t)) - 1

    def lifted(self, u: torch.Tensor) -> torch.Tensor:
        """u + 2^(k-2): one of the two summands, never both."""
        return self.ring.wrap(u + self.lift)

    def deal(self, r_a: torch.Tensor, r_b: torch.Tensor, c0: torch.Tensor) -> torch.Tensor:
        """c1 in bytes, from the masks and c0 (n,); reduced to t bits: a carry into the rest of its bytes would tell
        r_a r_b.
        """
        return ops.deal(r_a, r_b, c0, self.bits, self.nbytes)

    def bit(self, summand: torch.Tensor) -> torch.Tensor:
        """not msb(summand), packed."""
        return ops.bit_planes((summand >= 0).to(torch.int32), 1)[0]

    def half_u(
        self,
        u: torch.Tensor,
        a: torch.Tensor,
        alpha: torch.Tensor,
        beta: torch.Tensor,
        c0: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The quotient's summand of who knows u (lifted), less `mask`."""
        # beta (a - alpha) is 1 where a and not alpha, -1 where alpha and not a
        return ops.quotient_half(u, a, alpha, beta, c0, mask, self.ring.bits, self.bits, True)

    def half_v(
        self,
        v: torch.Tensor,
        b: torch.Tensor,
        alpha: torch.Tensor,
        beta: torch.Tensor,
        dealt: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The quotient's summand of who knows v, less `mask`."""
        return ops.quotient_half(v, b, alpha, beta, dealt, mask, self.ring.bits, self.bits, False, self.constant)
