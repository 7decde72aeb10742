"""Local steps of protocols, each one pass over its tensors (what for: protocol.wrap and protocol.carry)."""

from __future__ import annotations

import torch

from mpcpipe.ring.native.abi import Binding, failure, flat, plane_of, refuse
from mpcpipe.ring.shapes import require_shape


class Steps(Binding):
    """What `reference` has under the same names."""

    def sum_and_sign(
        self, x: torch.Tensor, y: torch.Tensor | None, mask: torch.Tensor, bits: int, constant: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x + y + constant modulo 2^bits, and where it is >= 0, packed, xor `mask`."""
        n, width = x.numel(), x.element_size()
        x, mask = flat(x, n, x.dtype), plane_of(mask, n)
        if y is not None:
            y = flat(y, n, x.dtype)
        total, plane = torch.empty_like(x), torch.empty_like(mask)
        status = self.c.mpk_sum_and_sign(
            *(x.data_ptr(), None if y is None else y.data_ptr(), constant, mask.data_ptr()),
            *(n, width, bits, total.data_ptr(), plane.data_ptr()),
        )
        if status:
            raise failure(status, f"{n} sums of {bits} bits")
        return total, plane

    def deal(self, r_a: torch.Tensor, r_b: torch.Tensor, c0: torch.Tensor, bits: int, nbytes: int) -> torch.Tensor:
        """The lowest `nbytes` bytes of (r_a & r_b) - c0 modulo 2^bits, flat uint8."""
        n, width = c0.numel(), c0.element_size()
        c0, r_a, r_b = flat(c0, n, c0.dtype), plane_of(r_a, n), plane_of(r_b, n)
        out = torch.empty(n * nbytes, dtype=torch.uint8)
        status = self.c.mpk_deal(r_a.data_ptr(), r_b.data_ptr(), c0.data_ptr(), n, width, bits, nbytes, out.data_ptr())
        if status:
            raise failure(status, f"{n} dealt corrections of {bits} bits")
        return out

    def quotient_half(
        self,
        summand: torch.Tensor,
        own: torch.Tensor,
        alpha: torch.Tensor,
        beta: torch.Tensor,
        correction: torch.Tensor,
        mask: torch.Tensor | None,
        bits: int,
        shift: int,
        first: bool,
        constant: int,
    ) -> torch.Tensor:
        """As `reference.quotient_half`; the correction as elements or as bytes (uint8)."""
        n, width = summand.numel(), summand.element_size()
        summand = flat(summand, n, summand.dtype)
        own, alpha, beta = plane_of(own, n), plane_of(alpha, n), plane_of(beta, n)
        correction = correction.contiguous()
        if mask is not None:
            mask = flat(mask, n, summand.dtype)
        nbytes = correction.nbytes // n if n else 1
        if not correction.is_cpu or correction.nbytes != n * nbytes:
            raise ValueError(f"a correction of {correction.nbytes} bytes does not fit {n} elements")
        out = torch.empty_like(summand)
        status = self.c.mpk_quotient_half(
            *(summand.data_ptr(), own.data_ptr(), alpha.data_ptr(), beta.data_ptr(), correction.data_ptr(), nbytes),
            *(first, constant, None if mask is None else mask.data_ptr(), n, width, bits, shift, out.data_ptr()),
        )
        if status:
            raise failure(status, f"{n} quotients by 2^{shift}")
        return out

    def and_level(
        self, p: torch.Tensor, g: torch.Tensor, q: torch.Tensor, mask_0: torch.Tensor, mask_1: torch.Tensor
    ) -> torch.Tensor:
        """As `reference.and_level`: z, int64 (planes, words)."""
        planes, words = p.shape[1:]
        q_planes = q.shape[1]
        require_shape("g", g.shape, (2, planes, words))
        require_shape("q", q.shape, (2, q_planes, words))
        p, g, q = (x if x.stride(2) == 1 else x.contiguous() for x in (p, g, q))
        z = torch.empty((planes + q_planes, words), dtype=torch.int64)
        for mask in (mask_0, mask_1):
            require_shape("a mask", mask.shape, z.shape)
        mask_0, mask_1 = mask_0.contiguous(), mask_1.contiguous()
        if not all(x.dtype == torch.int64 and x.is_cpu for x in (p, g, q, mask_0, mask_1)):
            raise refuse(p, g, q, mask_0, mask_1)
        status = self.c.mpk_and_level(
            *(p.data_ptr(), *p.stride()[:2], g.data_ptr(), *g.stride()[:2], q.data_ptr(), *q.stride()[:2]),
            *(planes, q_planes, words, mask_0.data_ptr(), mask_1.data_ptr(), z.data_ptr()),
        )
        if status:
            raise failure(status, f"ANDs of {planes} and {q_planes} planes")
        return z
