"""Local steps of four parties: one tells another a sum of two masked values (protocol.replicated4.told)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from mpcpipe.ring.native.abi import INTEGERS, Binding, Stream, failure, refuse
from mpcpipe.ring.shapes import require_shape

TAG_BYTES = 16
KeyAndLabel = tuple[bytes, bytes]
Signs = tuple[bool, bool]
"""Does a value count with the other sign?"""


class Told4(Binding):
    """Parts are value - mask or -value - mask modulo 2^bits, as unsigned numbers. Streams are keys and labels.

    Values, base, out and wire are (n,), int32 or int64, of `bits` bits each; carries are int64 words of packed bits.
    """

    def tell(
        self,
        values: Sequence[torch.Tensor],
        minus: Signs,
        masks: Sequence[KeyAndLabel],
        bits: int,
        base: torch.Tensor,
        out: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum of both parts modulo 2^bits, added to base in `out`; and where it carries."""
        n = _checked((*values, base, out))
        wire, carries = torch.empty_like(out), torch.empty((n + 63) // 64, dtype=torch.int64)
        first, second = values
        status = self.c.mpk_tell(
            *(first.data_ptr(), second.data_ptr(), minus[0] + 2 * minus[1], _streams(masks), n, out.element_size()),
            *(bits, base.data_ptr(), out.data_ptr(), wire.data_ptr(), carries.data_ptr()),
        )
        if status:
            raise failure(status, f"sums of {n} parts of {bits} bits")
        return wire, carries

    def vouch(
        self,
        values: Sequence[torch.Tensor],
        minus: Signs,
        masks: Sequence[KeyAndLabel],
        coefficients: Sequence[KeyAndLabel],
        bits: int,
        base: torch.Tensor,
        out: torch.Tensor,
    ) -> tuple[int, int]:
        """out = base + all four masks, the first two being those of the values' parts, of which the tags are returned:
        as `random.mac.weighted`.
        """
        n = _checked((*values, base, out))
        tags = ctypes.create_string_buffer(2 * TAG_BYTES)
        first, second = values
        status = self.c.mpk_vouch(
            *(first.data_ptr(), second.data_ptr(), minus[0] + 2 * minus[1], _streams(masks), _streams(coefficients)),
            *(n, out.element_size(), bits, base.data_ptr(), out.data_ptr(), ctypes.addressof(tags)),
        )
        if status:
            raise failure(status, f"tags of {n} parts of {bits} bits")
        return int.from_bytes(tags.raw[:TAG_BYTES], "big"), int.from_bytes(tags.raw[TAG_BYTES:], "big")

    def told(
        self, wire: torch.Tensor, carries: torch.Tensor, coefficients: KeyAndLabel, bits: int, out: torch.Tensor
    ) -> int:
        """out += wire; and the sum of both parts' tags."""
        n = _checked((wire, out))
        if carries.dtype != torch.int64 or not carries.is_cpu or not carries.is_contiguous():
            raise refuse(carries)
        require_shape("carries", carries.shape, ((n + 63) // 64,))
        tag = ctypes.create_string_buffer(TAG_BYTES)
        status = self.c.mpk_told(
            *(wire.data_ptr(), carries.data_ptr(), _streams([coefficients]), n, out.element_size(), bits),
            *(out.data_ptr(), ctypes.addressof(tag)),
        )
        if status:
            raise failure(status, f"the tag of {n} sums of {bits} bits")
        return int.from_bytes(tag.raw, "big")


def _checked(tensors: Sequence[torch.Tensor]) -> int:
    """How many elements each of them has."""
    out = tensors[-1]
    for x in tensors:
        if x.dtype != out.dtype or x.dtype not in INTEGERS or not x.is_cpu or not x.is_contiguous():
            raise refuse(*tensors)
        require_shape("each tensor", x.shape, (out.numel(),))
    return out.numel()


def _streams(streams: Sequence[KeyAndLabel]) -> ctypes.Array[Stream]:
    return (Stream * len(streams))(*(Stream(key, len(key), label, len(label)) for key, label in streams))
