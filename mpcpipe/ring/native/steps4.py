"""Local steps of four parties: values that two of them know on their way to being shared (protocol.replicated4)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch

from mpcpipe.ring.native.abi import INTEGERS, Binding, Rows, Term, Use, failure, flat, refuse
from mpcpipe.ring.shapes import monomial_rows, require_shape

TAG_BYTES = 16
OPERATIONS = {"copy": (1, 1), "product": (2, 2), "cross": (3, 6), "chosen": (4, 3), "minus": (5, 1)}
"""Of a value: its number in `enum mpk_term_op`, and how many rows it is made of."""


class JointTerm(NamedTuple):
    """One value of a pass, for half 0 or 1 of the elements. key: of the mask, under the pass's label + `suffix`;
    mask_at, rest_at: components of the result, -1 for none.

    operation and operands: as in `OPERATIONS`, of rows (source, row); None where only the mask is known. wire: where
    value - mask goes, if it goes anywhere. tag_key, tag_suffix: for a tag of it, as `Steps4.tag`.
    """

    half: int
    key: bytes
    suffix: bytes
    mask_at: int
    rest_at: int = -1
    operation: str | None = None
    operands: Sequence[tuple[int, int]] = ()
    wire: int = -1
    tag_key: bytes | None = None
    tag_suffix: bytes = b""


class JointPlan:
    """Terms as the library takes them, for any number of passes. `tagged`: how many of them have tags."""

    def __init__(self, terms: Sequence[JointTerm]) -> None:
        self.tagged = 0
        self.terms = (Term * len(terms))()
        for index, term in enumerate(terms):
            number, count = (0, 0) if term.operation is None else OPERATIONS[term.operation]
            if len(term.operands) != count:
                raise ValueError(f"a value by {term.operation} takes {count} rows, not {len(term.operands)}")
            packed = self.terms[index]
            packed.half, packed.op = term.half, number
            for place, (source, row) in enumerate(term.operands):
                packed.source[place], packed.row[place] = source, row
            packed.key, packed.key_bytes = term.key, len(term.key)
            packed.suffix, packed.suffix_bytes = term.suffix, len(term.suffix)
            packed.mask_at, packed.rest_at, packed.wire, packed.tag = term.mask_at, term.rest_at, term.wire, -1
            if term.tag_key is not None:
                packed.tag_key, packed.tag_key_bytes = term.tag_key, len(term.tag_key)
                packed.tag_suffix, packed.tag_suffix_bytes = term.tag_suffix, len(term.tag_suffix)
                packed.tag = self.tagged
                self.tagged += 1


class Steps4(Binding):
    """What protocol.replicated4 computes between two rounds. `joint` draws its masks itself."""

    def joint(
        self,
        plan: JointPlan,
        label: bytes,
        sources: Sequence[torch.Tensor],
        wires: Sequence[torch.Tensor],
        dtype: torch.dtype,
        bits: int,
        wire_bytes: int | None,
        base: torch.Tensor | None,
        out: torch.Tensor,
        halves: tuple[int, int],
        up: int = 0,
    ) -> list[int]:
        """out (components, n) = base (or 0) + masks and rests of the plan's terms, each times 2^up.

        sources: (rows, n) or (n,), rows without gaps, n the sum of `halves`. wires: as the terms number them, of as
        many elements as their halves. wire_bytes: of an element of a rest; None for packed bits, which are combined by
        xor. Returns the tags of the terms that have keys for them, those of a half without elements as 0.
        """
        width, n, xored = dtype.itemsize, sum(halves), wire_bytes is None
        for whole in (out, base):
            if whole is not None and (
                not whole.is_cpu or whole.dtype != out.dtype or whole.stride(1) != 1 or whole.shape[1] != n
            ):
                raise refuse(whole)
        rows = (Rows * len(sources))()
        for index, source in enumerate(sources):
            if not source.is_cpu or source.dtype != dtype or source.stride(-1) != 1 or source.shape[-1] != n:
                raise refuse(source)
            place = rows[index]
            place.first = source.data_ptr()
            place.stride, place.rows = (source.stride(0), source.shape[0]) if source.dim() == 2 else (0, 1)
        addresses = (ctypes.c_void_p * len(wires))(*(wire.data_ptr() for wire in wires))
        tags = ctypes.create_string_buffer(TAG_BYTES * plan.tagged)
        use = Use(label, len(label), rows, len(rows), addresses, len(wires), ctypes.addressof(tags), plan.tagged)
        status = self.c.mpk_joint(
            *(plan.terms, len(plan.terms), use, (ctypes.c_int64 * 2)(*halves), width, bits, xored, wire_bytes or width),
            *(None if base is None else base.data_ptr(), 0 if base is None else base.stride(0)),
            *(out.data_ptr(), out.stride(0), out.shape[0], out.element_size(), up),
        )
        if status:
            raise failure(status, f"{len(plan.terms)} joint values of {n} elements of {bits} bits")
        raw = tags.raw
        return [int.from_bytes(raw[at : at + TAG_BYTES], "big") for at in range(0, len(raw), TAG_BYTES)]

    def tag(self, key: bytes, label: bytes, suffix: bytes, data: torch.Tensor) -> int:
        """As `random.mac.tag` of a flat tensor, under the first 16 bytes of the stream of key and label + suffix."""
        if not data.is_cpu or not data.is_contiguous():
            raise refuse(data)
        tag = ctypes.create_string_buffer(TAG_BYTES)
        status = self.c.mpk_tag(
            *(key, len(key), label, len(label), suffix, len(suffix), data.data_ptr(), data.nbytes),
            ctypes.addressof(tag),
        )
        if status:
            raise failure(status, f"a tag of {data.nbytes} bytes")
        return int.from_bytes(tag.raw, "big")

    def take(
        self, key: bytes, label: bytes, suffix: bytes, data: torch.Tensor, out: torch.Tensor, up: int, xored: bool
    ) -> int:
        """out (n,) += data 2^up, or out ^= data, `data` being n numbers of as many bytes as it has for each; and its
        tag.
        """
        n = out.numel()
        nbytes = data.nbytes // n if n else 1
        if not data.is_cpu or not data.is_contiguous() or data.nbytes != n * nbytes:
            raise ValueError(f"{data.nbytes} bytes are no {n} elements")
        if not out.is_cpu or not out.is_contiguous():
            raise refuse(out)
        tag = ctypes.create_string_buffer(TAG_BYTES)
        status = self.c.mpk_take(
            *(key, len(key), label, len(label), suffix, len(suffix), data.data_ptr(), nbytes, n, xored, up),
            *(out.data_ptr(), out.element_size(), ctypes.addressof(tag)),
        )
        if status:
            raise failure(status, f"sums of {n} elements")
        return int.from_bytes(tag.raw, "big")

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

    def pair_sums(self, x: torch.Tensor) -> torch.Tensor:
        """As `reference.pair_sums`."""
        if x.dtype not in INTEGERS or not x.is_cpu:
            raise refuse(x)
        require_shape("x", x.shape, (3, *x.shape[1:]))
        if not x[0].is_contiguous():
            x = x.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype)
        status = self.c.mpk_pair_sums(x.data_ptr(), x.stride(0), x[0].numel(), x.element_size(), out.data_ptr())
        if status:
            raise failure(status, f"sums of pairs of {x[0].numel()} elements")
        return out

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
