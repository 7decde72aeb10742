"""Local steps of four parties: values that two of them know on their way to being shared (protocol.replicated4)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch

from mpcpipe.ring.native.abi import Binding, Term, failure, flat, refuse
from mpcpipe.ring.shapes import monomial_rows, require_shape

TAG_BYTES = 16
OPERATIONS = {"copy": (1, 1), "product": (2, 2), "cross": (3, 4), "chosen": (4, 3)}
"""Of a value: its number in `enum mpk_term_op`, and how many tensors it is made of."""


class JointTerm(NamedTuple):
    """One value of a pass. key: of the mask, under `label`; mask_at, rest_at: components of the result, -1 for none.

    operation and tensors: as in `OPERATIONS`, at least `start` + n elements each; None where only the mask is known.
    wire: where value - mask goes, if it goes anywhere. tag_key, tag_label: for a tag of it, as `Steps4.tag`.
    """

    key: bytes
    label: bytes
    mask_at: int
    rest_at: int = -1
    operation: str | None = None
    tensors: tuple[torch.Tensor, ...] = ()
    wire: torch.Tensor | None = None
    tag_key: bytes | None = None
    tag_label: bytes = b""


class Steps4(Binding):
    """What protocol.replicated4 computes between two rounds. `joint` draws its masks itself."""

    def joint(
        self,
        terms: Sequence[JointTerm],
        dtype: torch.dtype,
        bits: int,
        wire_bytes: int | None,
        base: torch.Tensor | None,
        out: torch.Tensor,
        start: int,
        n: int,
        up: int = 0,
    ) -> list[int | None]:
        """out[:, start : start + n] = base there (or 0) + masks and rests of `terms`, each times 2^up.

        `out` and `base` are (components, at least start + n), rows without gaps. wire_bytes: of an element of a rest;
        None for packed bits, which are combined by xor. Returns the tag of each term that has a key for one.
        """
        width, xored = dtype.itemsize, wire_bytes is None
        for whole in (out, base):
            if whole is not None and (
                not whole.is_cpu or whole.dtype != out.dtype or whole.stride(1) != 1 or whole.shape[1] < start + n
            ):
                raise refuse(whole)
        packed = (Term * len(terms))()
        tags = [None if term.tag_key is None else ctypes.create_string_buffer(TAG_BYTES) for term in terms]
        for index, term in enumerate(terms):
            operation, pointers = 0, [None] * 4
            if term.operation is not None:
                operation, count = OPERATIONS[term.operation]
                if len(term.tensors) != count or (
                    term.wire is not None and term.wire.nbytes < n * (wire_bytes or width)
                ):
                    raise ValueError(f"a value by {term.operation} takes {count} tensors, and a place for the rest")
                for place, tensor in enumerate(term.tensors):
                    if not tensor.is_cpu or tensor.dtype != dtype or not tensor.is_contiguous():
                        raise refuse(tensor)
                    if tensor.numel() < start + n:
                        raise ValueError(f"{tensor.numel()} elements do not hold those up to {start + n}")
                    pointers[place] = tensor.data_ptr() + start * width  # type: ignore[call-overload]
            wire = None if term.wire is None else term.wire.data_ptr()
            tag, tag_key = tags[index], term.tag_key or b""
            packed[index] = Term(
                *(operation, *pointers, term.key, len(term.key), term.label, len(term.label)),
                *(term.mask_at, term.rest_at, wire, tag_key, len(tag_key), term.tag_label, len(term.tag_label)),
                None if tag is None else ctypes.addressof(tag),
            )
        offset = start * out.element_size()
        status = self.c.mpk_joint(
            *(packed, len(terms), n, width, bits, xored, wire_bytes or width),
            *(None if base is None else base.data_ptr() + offset, 0 if base is None else base.stride(0)),
            *(out.data_ptr() + offset, out.stride(0), out.shape[0], out.element_size(), up),
        )
        if status:
            raise failure(status, f"{len(terms)} joint values of {n} elements of {bits} bits")
        return [None if tag is None else int.from_bytes(tag.raw, "big") for tag in tags]

    def tag(self, key: bytes, label: bytes, data: torch.Tensor) -> int:
        """As `random.mac.tag` of a flat tensor, under the first 16 bytes of the stream of key and label."""
        if not data.is_cpu or not data.is_contiguous():
            raise refuse(data)
        tag = ctypes.create_string_buffer(TAG_BYTES)
        status = self.c.mpk_tag(key, len(key), label, len(label), data.data_ptr(), data.nbytes, ctypes.addressof(tag))
        if status:
            raise failure(status, f"a tag of {data.nbytes} bytes")
        return int.from_bytes(tag.raw, "big")

    def add_bytes(self, data: torch.Tensor, nbytes: int, out: torch.Tensor, up: int) -> None:
        """out (n,) += data 2^up, where `data` has `nbytes` bytes an element (uint8)."""
        n = out.numel()
        if data.dtype != torch.uint8 or not data.is_cpu or not data.is_contiguous() or data.numel() != n * nbytes:
            raise ValueError(f"{data.numel()} bytes are no {n} elements of {nbytes} bytes")
        if not out.is_cpu or not out.is_contiguous():
            raise refuse(out)
        status = self.c.mpk_add_bytes(data.data_ptr(), nbytes, n, up, out.data_ptr(), out.element_size())
        if status:
            raise failure(status, f"sums of {n} elements")

    def shifted(
        self,
        x: torch.Tensor,
        y: torch.Tensor | None,
        lift: int,
        constant: int,
        bits: int,
        shift: int,
        small: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `reference.shifted`."""
        n = x.numel()
        x = flat(x, n, x.dtype)
        if y is not None:
            y = flat(y, n, x.dtype)
        out, bit = torch.empty_like(x), torch.empty(n, dtype=small)
        status = self.c.mpk_shifted(
            *(x.data_ptr(), None if y is None else y.data_ptr(), lift, constant, n, x.element_size(), bits, shift),
            *(out.data_ptr(), bit.data_ptr(), bit.element_size()),
        )
        if status:
            raise failure(status, f"{n} shifts by {shift} bits")
        return out, bit

    def and_summands(self, p: torch.Tensor, g: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """As `reference.and_summands`."""
        planes, words = p.shape[1:]
        q_planes = q.shape[1]
        require_shape("p", p.shape, (3, planes, words))
        require_shape("g", g.shape, (3, planes, words))
        require_shape("q", q.shape, (3, q_planes, words))
        if not all(x.dtype == torch.int64 and x.is_cpu for x in (p, g, q)):
            raise refuse(p, g, q)
        p, g, q = (x if x.stride(2) == 1 else x.contiguous() for x in (p, g, q))
        z = torch.empty((3, planes + q_planes, words), dtype=torch.int64)
        status = self.c.mpk_and_summands(
            *(p.data_ptr(), *p.stride()[:2], g.data_ptr(), *g.stride()[:2], q.data_ptr(), *q.stride()[:2]),
            *(planes, q_planes, words, z.data_ptr()),
        )
        if status:
            raise failure(status, f"ANDs of {planes} and {q_planes} planes")
        return z

    def monomials(self, planes: torch.Tensor, count: int, width: int) -> torch.Tensor:
        """As `reference.monomials`."""
        words = planes.shape[1]
        if planes.dtype != torch.int64 or not planes.is_cpu or not planes.is_contiguous():
            raise refuse(planes)
        require_shape("planes", planes.shape, (max(count, planes.shape[0]), words))
        rows = monomial_rows(count, width)
        out = torch.empty((rows + planes.shape[0] - count, words), dtype=torch.int64)
        status = self.c.mpk_monomials(planes.data_ptr(), count, width, words, out.data_ptr())
        if status:
            raise failure(status, f"monomials of {count} planes")
        out[rows:] = planes[count:]
        return out

    def block_products(self, a: torch.Tensor, b: torch.Tensor, count: int, width: int) -> torch.Tensor:
        """As `reference.block_products`."""
        rows, words = monomial_rows(count, width), a.shape[1]
        for x in (a, b):
            if x.dtype != torch.int64 or not x.is_cpu or not x.is_contiguous():
                raise refuse(x)
            require_shape("monomials", x.shape, (max(rows, x.shape[0]), words))
        z = torch.empty((2 * -(-count // width) - 1, words), dtype=torch.int64)
        status = self.c.mpk_block_products(a.data_ptr(), b.data_ptr(), count, width, words, z.data_ptr())
        if status:
            raise failure(status, f"carries of {count} planes")
        return z
