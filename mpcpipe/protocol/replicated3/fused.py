"""replicated3 on tensors in memory: everything that a party computes between two rounds is one native pass.

What is computed, drawn and sent is what linear.py, truncation.py, compare.py and convert.py say, in plain torch and
with every mask by its name; a pass gives the same bits from the same labels (tests/protocol/test_fused.py). It draws
masks block by block where they are used, works in all three roles at once and writes results where they belong: on
large tensors that saves passes over memory, on small ones most of the time.
"""

from __future__ import annotations

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.base import Share
from mpcpipe.protocol.carry import tree_ands
from mpcpipe.protocol.replicated3.roles import Roles
from mpcpipe.protocol.rounds import Round
from mpcpipe.protocol.wrap import correction_bytes
from mpcpipe.random.tape import PrgTape
from mpcpipe.ring.native import NativeLibrary
from mpcpipe.ring.native.abi import Pass
from mpcpipe.ring.native.steps3 import labelled


def library_of(p: Roles, x: torch.Tensor) -> NativeLibrary | None:
    """The native library, if it draws this party's streams and takes tensors such as x, all of whose bits count."""
    tape = p.tape
    if isinstance(tape, PrgTape) and x.is_cpu and p.ring.bits == p.ring.width:
        return tape.library
    return None


def rows(x: torch.Tensor) -> torch.Tensor:
    """x (2, n), each row without gaps."""
    return x if x.stride(1) == 1 or x.shape[1] < 2 else x.contiguous()


class Fused:
    """One operation of party p, on `numel` elements, whose masks are drawn under `label`."""

    def __init__(self, p: Roles, library: NativeLibrary, label: str, numel: int) -> None:
        self.p, self.library, self.label = p, library, label
        self.chunks = p.chunks(numel)
        self.native = self.chunks.native

    def keys(self, suffix: str = "") -> Pass:
        """The keys shared with the neighbours, for streams under the label; it is used up."""
        p, label = self.p, self.label + suffix
        following, preceding = p.with_next(), p.with_prev()
        return labelled(p.tape.key_for(following, label), p.tape.key_for(preceding, label), label)  # type: ignore[attr-defined]

    def _empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self.p.ring.dtype)

    async def reduce(self, z: torch.Tensor) -> Share:
        """See `Linear.reduce`, z (n,). Returns (2, n)."""
        p, n = self.p, z.numel()
        out = self._empty(2, n)
        own = out[0]
        self.library.pass_masked(self.keys(), z.contiguous(), own)
        received = await Round(self.label, {p.prev: [own]}, {p.next: [Part(p.ring.dtype, n)]})
        out[1].copy_(received[p.next][0])
        return out

    async def truncate(self, x: torch.Tensor, bits: int) -> Share:
        """See `Truncation`: of a partial (n,), of which role 2 sends its summand first; or of a share (2, n)."""
        p, chunks, native, library, label = self.p, self.chunks, self.native, self.library, self.label
        dtype, reduces, keys = p.ring.dtype, x.dim() == 1, self.keys()
        x = x.contiguous() if reduces else rows(x)
        n0, n1, n2 = chunks.numels
        words0, words1, nbytes = native.words[0], native.words[1], correction_bytes(bits)
        following, preceding = p.next, p.prev
        u, alpha = self._empty(n0), torch.empty(words0, dtype=torch.int64)
        dealt = torch.empty(n2 * nbytes, dtype=torch.uint8)
        other = self._empty(n2 if reduces else n1)
        own = torch.empty(words1, dtype=torch.int64)
        library.pass_truncate_begin(keys, native, x, bits, u, alpha, dealt, other, None if reduces else own)
        first = Part(torch.uint8, n1 * nbytes)
        received = await Round(
            f"{label}/1",
            {following: [alpha], preceding: [dealt, other if reduces else own]},
            {
                preceding: [Part(torch.int64, words1)],
                following: [first, Part(dtype, n1) if reduces else Part(torch.int64, words0)],
            },
        )
        seen_alpha, (seen_dealt, last) = received[preceding][0], received[following]

        out, y1, y0 = self._empty(2, chunks.numel_of_all), self._empty(n1), self._empty(n0)
        summand, z2 = (x[chunks.slices[1]], last) if reduces else (other, None)
        library.pass_truncate_half(keys, native, 1, summand, z2, own, seen_alpha, seen_dealt, bits, y1, out)
        seen_beta = last
        y1_part, y0_part = Part(dtype, n0), Part(dtype, n1)
        if reduces:
            received = await Round(
                f"{label}/2", {preceding: [own, y1]}, {following: [Part(torch.int64, words0), y1_part]}
            )
            seen_beta, seen_y1 = received[following]
        library.pass_truncate_half(keys, native, 0, u, None, alpha, seen_beta, None, bits, y0, out)
        if reduces:
            received = await Round(f"{label}/3", {following: [y0]}, {preceding: [y0_part]})
        else:
            received = await Round(
                f"{label}/2", {preceding: [y1], following: [y0]}, {following: [y1_part], preceding: [y0_part]}
            )
            seen_y1 = received[following][0]
        library.pass_truncate_end(keys, native, y0, seen_y1, y1, received[preceding][0], out)
        return out

    async def truncate_opened(self, z: torch.Tensor, bits: int) -> Share:
        """See `opened`: of a partial (n,). Returns (2, n)."""
        p, chunks, native, library, label = self.p, self.chunks, self.native, self.library, self.label
        dtype, keys, following, preceding = p.ring.dtype, self.keys(), p.next, p.prev
        n0, n1, n2 = chunks.numels
        nbytes = correction_bytes(bits)
        out, sums, quotient = self._empty(2, chunks.numel_of_all), (self._empty(n0), self._empty(n1)), self._empty(n2)
        dealt = torch.empty(n2 * nbytes, dtype=torch.uint8)
        library.pass_open_begin(keys, native, z.contiguous(), bits, sums, quotient, dealt, out)
        received = await Round(
            f"{label}/1",
            {following: [sums[0]], preceding: [sums[1], quotient, dealt]},
            {
                preceding: [Part(dtype, n1)],
                following: [Part(dtype, n0), Part(dtype, n1), Part(torch.uint8, n1 * nbytes)],
            },
        )
        seen1, seen_quotient, seen_dealt = received[following]
        wraps = torch.empty(n0 * nbytes, dtype=torch.uint8), torch.empty(n1 * nbytes, dtype=torch.uint8)
        seen = seen1, received[preceding][0]
        library.pass_open_second(keys, native, bits, sums, seen, seen_quotient, seen_dealt, wraps, out)
        received = await Round(
            f"{label}/2",
            {following: [wraps[0]], preceding: [wraps[1]]},
            {following: [Part(torch.uint8, n0 * nbytes)], preceding: [Part(torch.uint8, n1 * nbytes)]},
        )
        library.pass_open_end(native, bits, (received[following][0], received[preceding][0]), out)
        return out

    async def nonnegative(self, x: Share) -> torch.Tensor:
        """See `Compare.nonnegative`, x (2, n). Returns the bits (2, words)."""
        p, native, library, label, m = self.p, self.native, self.library, self.label, self.p.compare_bits
        low, total, following, preceding, keys = m - 1, self.chunks.total_words, p.next, p.prev, self.keys()
        w0, w1, w2 = native.words
        generate = torch.empty((2, low, total), dtype=torch.int64)
        propagate = torch.empty((2, m, total), dtype=torch.int64)
        t0, g1 = torch.empty(m * w0, dtype=torch.int64), torch.empty(low * w1, dtype=torch.int64)
        library.pass_sign_begin(keys, native, rows(x), m, t0, g1, generate, propagate)
        received = await Round(
            f"{label}/1",
            {preceding: [t0], following: [g1]},
            {following: [Part(torch.int64, m * w2)], preceding: [Part(torch.int64, low * w2)]},
        )
        g2 = torch.empty(low * w2, dtype=torch.int64)
        library.pass_sign_second(
            keys, native, m, received[following][0], received[preceding][0], g2, generate, propagate
        )
        received = await Round(f"{label}/2", {preceding: [g2]}, {following: [Part(torch.int64, low * w1)]})
        torch.bitwise_xor(
            received[following][0].view(low, w1), g1.view(low, w1), out=generate[1, :, self.chunks.words[1]]
        )

        sign, positions = propagate[:, low], low
        before: tuple[torch.Tensor, torch.Tensor] | None = None
        for level, _ in enumerate(tree_ands(low), 1):
            keys = self.keys(f"/level{level}")
            count = positions if before is None else positions - positions // 2
            after = None if before is None else self._planes(count)
            z = torch.empty((count - 1) * total, dtype=torch.int64)
            library.pass_tree_level(keys, positions, generate, propagate, before, after, z)
            if after is not None:
                generate, propagate = after
            positions = count
            received = await Round(
                f"{label}/level{level}", {preceding: [z]}, {following: [Part(torch.int64, z.numel())]}
            )
            before = z, received[following][0]
        if before is not None:
            after = self._planes(1)
            library.pass_tree_level(keys, positions, generate, propagate, before, after, None)
            generate = after[0]
        return sign ^ generate[:, 0]

    def _planes(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        both = torch.empty((2, 2, count, self.chunks.total_words), dtype=torch.int64)
        return both[0], both[1]

    async def select(
        self, bits: torch.Tensor, x: Share | None, held: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[Share, tuple[torch.Tensor, torch.Tensor]]:
        """See `Convert`: bits (2, words) times x (2, n), or as ring elements where x is None; held: t1 and t0 of a
        selector. Returns (2, n) and t1 and t0.
        """
        p, native, library, label = self.p, self.native, self.library, self.label
        dtype, following, preceding, keys = p.ring.dtype, p.next, p.prev, self.keys()
        n0, n1, n2 = self.chunks.numels
        x, bits = None if x is None else rows(x), bits.contiguous()
        out, half1 = self._empty(2, self.chunks.numel_of_all), self._empty(n1)
        t1 = held[0] if held is not None else self._empty(n1) if x is not None else None
        t0 = None if held is not None else self._empty(n0)
        u0 = None if x is None else self._empty(n0)
        library.pass_select_begin(keys, native, bits, x, t1, t0, u0, half1, out)
        shared = [tensor for tensor in (u0, t0) if tensor is not None]
        part = Part(dtype, n2)
        received = await Round(
            f"{label}/1",
            {preceding: shared, following: [half1]},
            {following: [part] * len(shared), preceding: [part]},
        )
        *seen_u0, seen_t0 = received[following] if held is None else (*received[following], held[1])
        half2 = self._empty(n2)
        library.pass_select_second(
            keys, native, bits, x, seen_t0, seen_u0[0] if seen_u0 else None, received[preceding][0], half2, out
        )
        received = await Round(f"{label}/2", {preceding: [half2]}, {following: [Part(dtype, n1)]})
        torch.add(received[following][0], half1, out=out[1, self.chunks.slices[1]])
        return out, (seen_t0 if t1 is None else t1, seen_t0)
