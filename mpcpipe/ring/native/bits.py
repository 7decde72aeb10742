"""Bit planes and key streams of the native library."""

from __future__ import annotations

import torch

from mpcpipe.ring.native.abi import INTEGERS, Binding, failure, refuse
from mpcpipe.ring.shapes import require_shape


class Bits(Binding):
    """Bit slicing and AES-128 in counter mode."""

    @property
    def has_aes(self) -> bool:
        """Whether `aes128_ctr` works on this processor."""
        return bool(self.c.mpk_aes_level())

    def bit_planes(self, x: torch.Tensor, count: int) -> torch.Tensor:
        """The lowest `count` bits of x (n,), sliced into int64 (count, words)."""
        if x.dtype not in INTEGERS or not x.is_cpu:
            raise refuse(x)
        x = x.contiguous()
        n = x.numel()
        planes = torch.empty((count, (n + 63) // 64), dtype=torch.int64)
        status = self.c.mpk_bit_planes(x.data_ptr(), n, x.element_size(), count, planes.data_ptr())
        if status:
            raise failure(status, f"{count} bit planes of {n} elements")
        return planes

    def unpack_bits(self, plane: torch.Tensor, n: int, dtype: torch.dtype) -> torch.Tensor:
        """One plane, int64 (words,), as n elements 0 or 1."""
        require_shape("the plane", plane.shape, ((n + 63) // 64,))
        if plane.dtype != torch.int64 or dtype not in INTEGERS or not plane.is_cpu:
            found = f"{plane.dtype} on {plane.device} to {dtype}"
            raise ValueError(f"an int64 plane on the CPU is unpacked to int32 or int64, not {found}")
        plane = plane.contiguous()
        out = torch.empty(n, dtype=dtype)
        status = self.c.mpk_unpack_bits(plane.data_ptr(), n, out.element_size(), out.data_ptr())
        if status:
            raise failure(status, f"{n} unpacked bits")
        return out

    def aes128_ctr(self, key: bytes, first_block: int, out: torch.Tensor) -> None:
        """Fills `out` (contiguous, CPU) with the AES-128-CTR key stream from block `first_block` on.

        Block b is the cipher of b as a 16-byte big-endian number. KernelError where `has_aes` is false.
        """
        if len(key) != 16:
            raise ValueError(f"an AES-128 key has 16 bytes, not {len(key)}")
        if not 0 <= first_block < 1 << 64:
            raise ValueError(f"a block number lies from 0 to 2^64 - 1, unlike {first_block}")
        if out.device.type != "cpu" or not out.is_contiguous():
            raise ValueError("the key stream is written to contiguous CPU tensors only")
        nbytes = out.numel() * out.element_size()
        status = self.c.mpk_aes128_ctr(key, first_block, out.data_ptr(), nbytes)
        if status:
            raise failure(status, f"{nbytes} bytes of AES key stream")

    def draw(self, key: bytes, label: bytes, out: torch.Tensor, bits: int) -> None:
        """Fills `out` (contiguous, CPU) with the key stream of HMAC-SHA256(key, label), in the range of `bits` bits.

        The key has at most 64 bytes. KernelError where `has_aes` is false.
        """
        if out.dtype not in INTEGERS or not out.is_cpu or not out.is_contiguous():
            raise refuse(out)
        n, width = out.numel(), out.element_size()
        status = self.c.mpk_draw(key, len(key), label, len(label), out.data_ptr(), n, width, bits)
        if status:
            raise failure(status, f"a draw of {n} elements of {bits} bits")
