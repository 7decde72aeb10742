"""Is the native library right here? Every kernel beside plain torch, bit for bit, on random and edge shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from mpcpipe.errors import KernelError
from mpcpipe.ring import reference
from mpcpipe.ring.native import ISA_NAMES, NativeLibrary
from mpcpipe.ring.shapes import ConvShape, conv_shape

Shape = tuple[int, ...]
Random = Callable[[Shape, torch.dtype], torch.Tensor]
DTYPES = (torch.int64, torch.int32)

# (m, k, n): single elements, vectors, sizes around the kernels' tiles, and one that is cut into blocks.
MATMULS = ((1, 1, 1), (1, 7, 1), (3, 1, 5), (5, 64, 1), (1, 33, 17), (4, 8, 8), (7, 9, 13), (31, 65, 33), (96, 300, 70))

# (x, filter, stride, padding, dilation, groups)
CONVOLUTIONS = (
    ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((2, 3, 8, 8), (4, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((2, 1, 9, 7), (5, 1, 5, 3), (2, 1), (2, 0), (1, 1), 1),
    ((1, 4, 11, 10), (6, 2, 3, 3), (2, 2), (1, 2), (1, 1), 2),
    ((3, 2, 12, 12), (2, 2, 3, 3), (1, 1), (2, 2), (2, 2), 1),
    ((2, 6, 9, 9), (6, 1, 3, 3), (1, 1), (1, 1), (1, 1), 6),
    ((2, 8, 7, 7), (12, 8, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((1, 3, 5, 5), (2, 3, 5, 5), (3, 3), (0, 0), (1, 1), 1),
)
BIT_COUNTS = (1, 63, 64, 65, 1000)
AES_SIZES = ((0, 16), (1, 16), (3, 4096), ((1 << 32) - 1, 160), ((1 << 63) + 5, 4112))


@dataclass(frozen=True)
class Compared:
    """One kernel with one instruction set: how many cases, and what differs (sizes, never values)."""

    kernel: str
    isa: str
    cases: int
    different: tuple[str, ...]


@dataclass(frozen=True)
class _Case:
    kernel: str
    what: str
    expected: torch.Tensor
    compute: Callable[[], torch.Tensor]


def compare(library: NativeLibrary, seed: int = 0) -> list[Compared]:
    """Every kernel with every instruction set that this processor has. The library is left as it was."""
    results: list[Compared] = []
    before = library.isa
    cases = list(_cases(library, torch.Generator().manual_seed(seed)))
    try:
        for isa in ISA_NAMES:
            try:
                library.set_isa(isa)
            except KernelError:
                continue  # this processor lacks it
            results += _run(cases, isa)
    finally:
        library.set_isa(before)
    return results


def _run(cases: Sequence[_Case], isa: str) -> list[Compared]:
    found: dict[str, list[str]] = {}
    counts: dict[str, int] = {}
    for case in cases:
        counts[case.kernel] = counts.get(case.kernel, 0) + 1
        different = found.setdefault(case.kernel, [])
        if not torch.equal(case.compute(), case.expected):
            different.append(case.what)
    return [Compared(kernel, isa, counts[kernel], tuple(found[kernel])) for kernel in counts]


def _cases(library: NativeLibrary, generator: torch.Generator) -> Iterator[_Case]:
    def random(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        values = torch.empty(shape, dtype=torch.int64).random_(-(1 << 63), None, generator=generator)
        return values.to(dtype)

    for dtype in DTYPES:
        width = "u64" if dtype == torch.int64 else "u32"
        yield from _matmuls(library, random, dtype, width)
        for x, w, stride, padding, dilation, groups in CONVOLUTIONS:
            yield from _convolution(library, random, dtype, width, conv_shape(x, w, stride, padding, dilation, groups))
        for n in BIT_COUNTS:
            yield from _bits(library, random((n,), dtype), width)
    if library.has_aes:
        key = bytes(range(16))
        for block, nbytes in AES_SIZES:
            what = f"{nbytes} bytes from block {block}"
            yield _Case("aes128_ctr", what, _aes(key, block, nbytes), partial(_stream, library, key, block, nbytes))


def _matmuls(library: NativeLibrary, random: Random, dtype: torch.dtype, width: str) -> Iterator[_Case]:
    name = f"matmul_{width}"
    for m, k, n in MATMULS:
        a, b, turned = random((m, k), dtype), random((k, n), dtype), random((n, k), dtype).T
        added = random((m, n), dtype)
        what = f"({m}, {k}) x ({k}, {n})"
        yield _Case(name, what, a @ b, partial(library.matmul, a, b))
        yield _Case(name, f"{what}, transposed", a @ turned, partial(library.matmul, a, turned, threads=2))
        yield _Case(name, f"{what}, added", added + a @ b, partial(_added, library, a, b, added))


def _added(library: NativeLibrary, a: torch.Tensor, b: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    return library.matmul(a, b, to.clone(), accumulate=True)


def _convolution(
    library: NativeLibrary, random: Random, dtype: torch.dtype, width: str, s: ConvShape
) -> Iterator[_Case]:
    x, w, dy = random(s.x, dtype), random(s.w, dtype), random(s.y, dtype)
    how = (s.stride, s.padding, s.dilation, s.groups)
    what = f"{s.x} with {s.w}, stride {s.stride}, padding {s.padding}, dilation {s.dilation}, groups {s.groups}"
    yield _Case(f"conv2d_{width}", what, reference.conv2d(x, w, *how), lambda: library.conv2d(s, x, w))
    yield _Case(
        f"conv2d_input_grad_{width}",
        what,
        reference.conv2d_input_grad(dy, w, s.x, *how),
        lambda: library.conv2d_input_grad(s, dy, w, threads=2),
    )
    yield _Case(
        f"conv2d_weight_grad_{width}",
        what,
        reference.conv2d_weight_grad(x, dy, s.w, *how),
        lambda: library.conv2d_weight_grad(s, x, dy),
    )


def _bits(library: NativeLibrary, x: torch.Tensor, width: str) -> Iterator[_Case]:
    n, bits = x.numel(), 64 if x.dtype == torch.int64 else 32
    for count in (1, bits - 1, bits):
        what = f"{count} planes of {n} elements"
        expected = reference.bit_planes(x, count)
        yield _Case(f"bit_planes_{width}", what, expected, partial(library.bit_planes, x, count))
    plane = reference.bit_planes(x, 1)[0]
    yield _Case(
        f"unpack_bits_{width}",
        f"{n} elements",
        reference.unpack_bits(plane, n, x.dtype),
        lambda: library.unpack_bits(plane, n, x.dtype),
    )


def _aes(key: bytes, block: int, nbytes: int) -> torch.Tensor:
    """The key stream by another implementation."""
    cipher = Cipher(algorithms.AES(key), modes.CTR(block.to_bytes(16, "big"))).encryptor()
    return torch.frombuffer(bytearray(cipher.update(bytes(nbytes))), dtype=torch.uint8)


def _stream(library: NativeLibrary, key: bytes, block: int, nbytes: int) -> torch.Tensor:
    out = torch.empty(nbytes, dtype=torch.uint8)
    library.aes128_ctr(key, block, out)
    return out
