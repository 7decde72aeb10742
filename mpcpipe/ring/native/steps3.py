"""Passes of three parties: what one computes between two rounds, masks included (protocol.replicated3.fused)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mpcpipe.ring.native.abi import Binding, Chunks, Pass, failure, refuse


def labelled(next_key: bytes, prev_key: bytes, label: str) -> Pass:
    """What the masks of a pass are drawn from: the keys shared with both neighbours, and the label."""
    name = label.encode()
    return Pass(next_key, len(next_key), prev_key, len(prev_key), name, len(name))


def chunks_struct(
    numels: Sequence[int], starts: Sequence[int], words: Sequence[int], word_starts: Sequence[int]
) -> Chunks:
    """The elements, and words of packed bits, of each of the three roles."""
    roles = (tuple(values) for values in (numels, starts, words, word_starts))
    return Chunks(*roles, sum(numels), sum(words))


def _pointer(x: torch.Tensor | None, dtype: torch.dtype, numel: int) -> int | None:
    """Where x lies, checked to be so many elements without gaps; None of None."""
    if x is None:
        return None
    if x.dtype != dtype or not x.is_cpu:
        raise refuse(x)
    if x.numel() != numel or not x.is_contiguous():
        raise ValueError(f"a pass needs {numel} elements without gaps, not {x.numel()} with strides {x.stride()}")
    return x.data_ptr()


def _rows(x: torch.Tensor | None, numel: int) -> tuple[int | None, int | None]:
    """Where the two components of x (2, numel) lie."""
    if x is None:
        return None, None
    if not x.is_cpu:
        raise refuse(x)
    if x.shape != (2, numel) or (x.stride(1) != 1 and numel > 1):
        raise ValueError(f"a pass needs two rows of {numel} elements, not {tuple(x.shape)} with strides {x.stride()}")
    first = x.data_ptr()
    return first, first + x.stride(0) * x.element_size()


_WORD = torch.int64


class Steps3(Binding):
    """Tensors are flat, or (2, n) where both components of a share are meant; results are written where they are asked
    for.
    """

    def pass_masked(self, keys: Pass, x: torch.Tensor, out: torch.Tensor) -> None:
        """out = x + (stream with the next party) - (stream with the previous)."""
        n, dtype = x.numel(), x.dtype
        status = self.c.mpk_pass_masked(keys, _pointer(x, dtype, n), n, dtype.itemsize, _pointer(out, dtype, n))
        if status:
            raise failure(status, f"{n} masked elements")

    def pass_truncate_begin(
        self,
        keys: Pass,
        chunks: Chunks,
        x: torch.Tensor,
        bits: int,
        u: torch.Tensor,
        alpha: torch.Tensor,
        dealt: torch.Tensor,
        other: torch.Tensor,
        beta: torch.Tensor | None,
    ) -> None:
        """Of a partial (n,): u, alpha, the correction and, in `other`, z2. Of a share (2, n): v instead, and beta."""
        dtype, n, words = x.dtype, chunks.n, chunks.words
        x0, x1 = (_pointer(x, dtype, chunks.total), None) if beta is None else _rows(x, chunks.total)
        status = self.c.mpk_pass_truncate_begin(
            *(keys, chunks, x0, x1, dtype.itemsize, bits, _pointer(u, dtype, n[0]), _pointer(alpha, _WORD, words[0])),
            _pointer(dealt, torch.uint8, n[2] * ((bits + 7) // 8)),
            _pointer(other, dtype, n[2] if beta is None else n[1]),
            _pointer(beta, _WORD, words[1]),
        )
        if status:
            raise failure(status, f"the first step of {chunks.total} truncations by {bits} bits")

    def pass_truncate_half(
        self,
        keys: Pass,
        chunks: Chunks,
        role: int,
        summand: torch.Tensor,
        last: torch.Tensor | None,
        own: torch.Tensor,
        seen: torch.Tensor,
        dealt: torch.Tensor | None,
        bits: int,
        half: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """A masked half of the quotient, and its mask as a component of `out`."""
        dtype, n, words = summand.dtype, chunks.n[role], chunks.words[role]
        if (dealt is None) != (role == 0):
            raise ValueError("role 1 needs a correction, and role 0 draws its own")
        status = self.c.mpk_pass_truncate_half(
            *(keys, chunks, role, _pointer(summand, dtype, n), _pointer(last, dtype, n)),
            *(_pointer(own, _WORD, words), _pointer(seen, _WORD, words)),
            *(_pointer(dealt, torch.uint8, n * ((bits + 7) // 8)), dtype.itemsize, bits),
            *(_pointer(half, dtype, n), _pointer(out, dtype, 2 * chunks.total)),
        )
        if status:
            raise failure(status, f"{n} quotients by 2^{bits}")

    def pass_truncate_end(
        self,
        keys: Pass,
        chunks: Chunks,
        half0: torch.Tensor,
        seen1: torch.Tensor,
        half1: torch.Tensor,
        seen0: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """The rest of `out`: the sums of both halves as roles 0 and 1, streams as role 2."""
        dtype, n = out.dtype, chunks.n
        status = self.c.mpk_pass_truncate_end(
            *(keys, chunks, _pointer(half0, dtype, n[0]), _pointer(seen1, dtype, n[0])),
            *(_pointer(half1, dtype, n[1]), _pointer(seen0, dtype, n[1])),
            *(dtype.itemsize, _pointer(out, dtype, 2 * chunks.total)),
        )
        if status:
            raise failure(status, f"the last step of {chunks.total} truncations")

    def pass_open_begin(
        self,
        keys: Pass,
        chunks: Chunks,
        z: torch.Tensor,
        bits: int,
        sums: tuple[torch.Tensor, torch.Tensor],
        quotient: torch.Tensor,
        dealt: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Of a partial (n,): the masked summands of roles 0 and 1, what role 2 deals, and its part of `out`."""
        dtype, n = z.dtype, chunks.n
        status = self.c.mpk_pass_open_begin(
            *(keys, chunks, _pointer(z, dtype, chunks.total), dtype.itemsize, bits),
            *(_pointer(sums[0], dtype, n[0]), _pointer(sums[1], dtype, n[1]), _pointer(quotient, dtype, n[2])),
            *(_pointer(dealt, torch.uint8, n[2] * ((bits + 7) // 8)), _pointer(out, dtype, 2 * chunks.total)),
        )
        if status:
            raise failure(status, f"the first step of {chunks.total} truncations by {bits} bits")

    def pass_open_second(
        self,
        keys: Pass,
        chunks: Chunks,
        bits: int,
        sums: tuple[torch.Tensor, torch.Tensor],
        seen: tuple[torch.Tensor, torch.Tensor],
        quotient: torch.Tensor,
        dealt: torch.Tensor,
        wraps: tuple[torch.Tensor, torch.Tensor],
        out: torch.Tensor,
    ) -> None:
        """From own and seen summands, each as role 0 and as role 1, and what was dealt: both parts of the wrap-around,
        and `out` but for the parts that the others send.
        """
        dtype, n, nbytes = out.dtype, chunks.n, (bits + 7) // 8
        status = self.c.mpk_pass_open_second(
            *(keys, chunks, dtype.itemsize, bits, _pointer(sums[0], dtype, n[0]), _pointer(seen[0], dtype, n[0])),
            *(_pointer(sums[1], dtype, n[1]), _pointer(seen[1], dtype, n[1]), _pointer(quotient, dtype, n[1])),
            *(_pointer(dealt, torch.uint8, n[1] * nbytes), _pointer(wraps[0], torch.uint8, n[0] * nbytes)),
            *(_pointer(wraps[1], torch.uint8, n[1] * nbytes), _pointer(out, dtype, 2 * chunks.total)),
        )
        if status:
            raise failure(status, f"the second step of {chunks.total} truncations by {bits} bits")

    def pass_open_end(
        self, chunks: Chunks, bits: int, seen: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor
    ) -> None:
        """out, with the others' parts of the wrap-around, as role 0 and as role 1."""
        dtype, n, nbytes = out.dtype, chunks.n, (bits + 7) // 8
        first, second = (_pointer(part, torch.uint8, n[role] * nbytes) for role, part in enumerate(seen))
        status = self.c.mpk_pass_open_end(
            chunks, dtype.itemsize, bits, first, second, _pointer(out, dtype, 2 * chunks.total)
        )
        if status:
            raise failure(status, f"the last step of {chunks.total} truncations by {bits} bits")

    def pass_sign_begin(
        self,
        keys: Pass,
        chunks: Chunks,
        x: torch.Tensor,
        bits: int,
        t0: torch.Tensor,
        g1: torch.Tensor,
        generate: torch.Tensor,
        propagate: torch.Tensor,
    ) -> None:
        """The messages t0 and g1, and what is known of generate (2, bits - 1, words) and propagate (2, bits, words)."""
        words, total = chunks.words, chunks.total_words
        if x.dtype != torch.int64 and x.dtype != torch.int32:
            raise refuse(x)
        status = self.c.mpk_pass_sign_begin(
            *(keys, chunks, *_rows(x, chunks.total), x.element_size(), bits, _pointer(t0, _WORD, bits * words[0])),
            *(_pointer(g1, _WORD, (bits - 1) * words[1]), _pointer(generate, _WORD, 2 * (bits - 1) * total)),
            _pointer(propagate, _WORD, 2 * bits * total),
        )
        if status:
            raise failure(status, f"the first step of {chunks.total} comparisons by {bits} bits")

    def pass_sign_second(
        self,
        keys: Pass,
        chunks: Chunks,
        bits: int,
        t0: torch.Tensor,
        g1: torch.Tensor,
        g2: torch.Tensor,
        generate: torch.Tensor,
        propagate: torch.Tensor,
    ) -> None:
        """As role 2, from what came: g2, and its words of generate and propagate."""
        words, total = chunks.words[2], chunks.total_words
        status = self.c.mpk_pass_sign_second(
            *(keys, chunks, bits, _pointer(t0, _WORD, bits * words), _pointer(g1, _WORD, (bits - 1) * words)),
            *(_pointer(g2, _WORD, (bits - 1) * words), _pointer(generate, _WORD, 2 * (bits - 1) * total)),
            _pointer(propagate, _WORD, 2 * bits * total),
        )
        if status:
            raise failure(status, f"the second step of {chunks.total} comparisons by {bits} bits")

    def pass_tree_level(
        self,
        keys: Pass,
        positions: int,
        generate: torch.Tensor,
        propagate: torch.Tensor,
        before: tuple[torch.Tensor, torch.Tensor] | None,
        after: tuple[torch.Tensor, torch.Tensor] | None,
        z: torch.Tensor | None,
    ) -> None:
        """z of a level over `positions` planes (2, positions or more, words); or, from both components of the z
        `before`, the planes `after` (2, positions - positions // 2, words), and z over these.
        """
        (_, generate_rows, words), propagate_rows = generate.shape, propagate.shape[1]
        count = positions if before is None else positions - positions // 2
        own, seen = (None, None) if before is None else before
        new_generate, new_propagate = (None, None) if after is None else after
        if (before is None) != (after is None):
            raise ValueError("the planes after a level are made of what was sent and received before")
        status = self.c.mpk_pass_tree_level(
            *(keys, words, positions, _pointer(generate, _WORD, 2 * generate_rows * words), generate_rows),
            *(_pointer(propagate, _WORD, 2 * propagate_rows * words), propagate_rows),
            *(_pointer(own, _WORD, (positions - 1) * words), _pointer(seen, _WORD, (positions - 1) * words)),
            *(_pointer(new_generate, _WORD, 2 * count * words), _pointer(new_propagate, _WORD, 2 * count * words)),
            _pointer(z, _WORD, (count - 1) * words),
        )
        if status:
            raise failure(status, f"a level of {positions} planes of {words} words")

    def pass_select_begin(
        self,
        keys: Pass,
        chunks: Chunks,
        bits: torch.Tensor,
        x: torch.Tensor | None,
        t1: torch.Tensor | None,
        t0: torch.Tensor | None,
        u0: torch.Tensor | None,
        half1: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """The messages t0 (None: shared before) and u0 (None: there is no x, the bits themselves are wanted), half1,
        and what is known of `out`. t1 is made where t0 is, and used where it is not.
        """
        dtype, n = out.dtype, chunks.n
        if x is not None and (x.dtype != dtype or t1 is None or u0 is None):
            raise refuse(x)
        if x is None and t0 is None:
            raise ValueError("bits become elements once; there is nothing to select with bits shared before")
        status = self.c.mpk_pass_select_begin(
            *(keys, chunks, _pointer(bits, _WORD, 2 * chunks.total_words), *_rows(x, chunks.total), dtype.itemsize),
            *(t0 is not None, _pointer(t1, dtype, n[1]), _pointer(t0, dtype, n[0]), _pointer(u0, dtype, n[0])),
            *(_pointer(half1, dtype, n[1]), _pointer(out, dtype, 2 * chunks.total)),
        )
        if status:
            raise failure(status, f"the first step of {chunks.total} selections")

    def pass_select_second(
        self,
        keys: Pass,
        chunks: Chunks,
        bits: torch.Tensor,
        x: torch.Tensor | None,
        t0: torch.Tensor,
        u0: torch.Tensor | None,
        seen1: torch.Tensor,
        half2: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """As role 2, from what came: its half, and its part of `out`."""
        dtype, n = out.dtype, chunks.n[2]
        if x is not None and (x.dtype != dtype or u0 is None):
            raise refuse(x)
        status = self.c.mpk_pass_select_second(
            *(keys, chunks, _pointer(bits, _WORD, 2 * chunks.total_words), *_rows(x, chunks.total), dtype.itemsize),
            *(_pointer(t0, dtype, n), _pointer(u0, dtype, n), _pointer(seen1, dtype, n), _pointer(half2, dtype, n)),
            _pointer(out, dtype, 2 * chunks.total),
        )
        if status:
            raise failure(status, f"the second step of {chunks.total} selections")
