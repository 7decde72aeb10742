"""Exact integer operations on the ring: one function each, the back end chosen per call by device and dtype.

All take and return int32 or int64 tensors (any strides) and are exact modulo 2^32 or 2^64. `out`, if given, is a
contiguous tensor of the result's shape; with `accumulate` the result is added to it. CPU tensors go to the native
library where it is there (or where `ring.choice` says), all others to the reference; all give the same bits. Tensors on
torch's `meta` device have a shape and no values; so have results of them. Shapes that do not fit raise ValueError
before anything is computed.
"""

from __future__ import annotations

import torch

from mpcpipe.ring import native, reference, shadow
from mpcpipe.ring.choice import Call, choice, compute, note
from mpcpipe.ring.shapes import ConvShape, conv_shape, matmul_shape, require_shape

Shape = tuple[int, ...]
Pair = tuple[int, int]


def _native(first: torch.Tensor, second: torch.Tensor | None = None) -> native.NativeLibrary | None:
    """The native library, if it is there and takes these tensors."""
    dtype = first.dtype
    if dtype != torch.int64 and dtype != torch.int32:
        raise ValueError(f"ring elements are int32 or int64, not {dtype}")
    if second is not None and (second.dtype != dtype or second.is_cpu != first.is_cpu):
        found = f"{dtype} on {first.device} and {second.dtype} on {second.device}"
        raise ValueError(f"an operation needs tensors of one dtype on one device, not {found}")
    return native.load() if first.is_cpu else None


def _backend(operator: str, dtype: torch.dtype, shape: ConvShape | tuple[Shape, Shape]) -> str:
    chosen = choice()
    return chosen.of(operator, dtype, shape) if chosen.made else "native"


def _deliver(value: torch.Tensor, out: torch.Tensor | None, accumulate: bool) -> torch.Tensor:
    if out is None:
        if accumulate:
            raise ValueError("accumulate needs `out`, the tensor that the result is added to")
        return value
    require_shape("out", out.shape, value.shape)
    if out.is_meta:
        return out
    return out.add_(value) if accumulate else out.copy_(value)


def matmul(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None, accumulate: bool = False) -> torch.Tensor:
    """a (m, k) times b (k, n)."""
    library = _native(a, b)
    if library is not None:
        backend = _backend("matmul", a.dtype, (a.shape, b.shape))
        if backend in ("native", "products"):
            return library.matmul(a, b, out, accumulate)
        matmul_shape(a.shape, b.shape)
        return _deliver(compute(backend, Call("matmul", a.dtype, (a.shape, b.shape)), a, b), out, accumulate)
    matmul_shape(a.shape, b.shape)
    if a.is_meta:
        note("matmul", a.dtype, (a.shape, b.shape))
    return _deliver((shadow if a.is_meta else reference).matmul(a, b), out, accumulate)


def conv2d(
    x: torch.Tensor,
    w: torch.Tensor,
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
    out: torch.Tensor | None = None,
    accumulate: bool = False,
) -> torch.Tensor:
    """x (n, c, h, w) with w (o, c / groups, kh, kw)."""
    shape = conv_shape(x.shape, w.shape, stride, padding, dilation, groups)
    return _convolve("conv2d", shape, x, w, (), out, accumulate)


def conv2d_input_grad(
    dy: torch.Tensor,
    w: torch.Tensor,
    input_shape: Shape,
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
    out: torch.Tensor | None = None,
    accumulate: bool = False,
) -> torch.Tensor:
    """Gradient of conv2d's x, given dy (n, o, oh, ow)."""
    shape = conv_shape(input_shape, w.shape, stride, padding, dilation, groups)
    require_shape("dy", dy.shape, shape.y)
    return _convolve("conv2d_input_grad", shape, dy, w, (shape.x,), out, accumulate)


def conv2d_weight_grad(
    x: torch.Tensor,
    dy: torch.Tensor,
    weight_shape: Shape,
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
    out: torch.Tensor | None = None,
    accumulate: bool = False,
) -> torch.Tensor:
    """Gradient of conv2d's w, given dy (n, o, oh, ow)."""
    shape = conv_shape(x.shape, weight_shape, stride, padding, dilation, groups)
    require_shape("dy", dy.shape, shape.y)
    return _convolve("conv2d_weight_grad", shape, x, dy, (shape.w,), out, accumulate)


def _convolve(
    direction: str,
    shape: ConvShape,
    first: torch.Tensor,
    second: torch.Tensor,
    wanted: tuple[Shape, ...],
    out: torch.Tensor | None,
    accumulate: bool,
) -> torch.Tensor:
    """A direction of a convolution, named as its function is in every back end. wanted: what a gradient's shape is."""
    library = _native(first, second)
    value: torch.Tensor
    if library is not None:
        backend = _backend(direction, first.dtype, shape)
        if backend in ("native", "products"):
            run = getattr(library, direction)
            value = run(shape, first, second, out, accumulate, as_products=backend == "products")
            return value
        value = compute(backend, Call(direction, first.dtype, shape), first, second)
    else:
        if first.is_meta:
            note(direction, first.dtype, shape)
        plain = getattr(shadow if first.is_meta else reference, direction)
        value = plain(first, second, *wanted, shape.stride, shape.padding, shape.dilation, shape.groups)
    return _deliver(value, out, accumulate)


def words(n: int) -> int:
    """64-bit words that hold n packed bits."""
    return (n + 63) // 64


def bit_planes(x: torch.Tensor, count: int) -> torch.Tensor:
    """The lowest `count` bits of each element of x (n,), sliced: int64 (count, words(n)).

    Bit j of element i is bit i % 64 of word i // 64 of plane j. Bits past n are 0.
    """
    if x.dim() != 1 or not 0 <= count <= 64:
        raise ValueError(f"bit planes are 0 to 64 of a tensor (n,), not {count} of {tuple(x.shape)}")
    library = _native(x)
    if library is not None:
        return library.bit_planes(x, count)
    return shadow.bit_planes(x, count) if x.is_meta else reference.bit_planes(x, count)


def unpack_bits(plane: torch.Tensor, n: int, dtype: torch.dtype) -> torch.Tensor:
    """One plane (words(n),) as n elements 0 or 1 of `dtype`: the inverse of `bit_planes(x, 1)[0]`."""
    require_shape("the plane", plane.shape, (words(n),))
    if plane.dtype != torch.int64 or dtype not in (torch.int32, torch.int64):
        raise ValueError(f"planes are int64 and ring elements int32 or int64, not {plane.dtype} and {dtype}")
    library = _native(plane)
    if library is not None:
        return library.unpack_bits(plane, n, dtype)
    return shadow.unpack_bits(plane, n, dtype) if plane.is_meta else reference.unpack_bits(plane, n, dtype)


# Local steps of protocols, each one pass over its tensors where the native library is there: what they are for is in
# protocol.wrap and protocol.carry.


def sum_and_sign(
    x: torch.Tensor, y: torch.Tensor | None, mask: torch.Tensor, bits: int, constant: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """x + y + constant modulo 2^bits (n,), new memory; and where that is >= 0, packed, xor `mask`."""
    return (_native(x, y) or reference).sum_and_sign(x, y, mask, bits, constant)


def deal(r_a: torch.Tensor, r_b: torch.Tensor, c0: torch.Tensor, bits: int, nbytes: int) -> torch.Tensor:
    """The lowest `nbytes` bytes of (r_a & r_b) - c0 modulo 2^bits, from planes of n bits and c0 (n,): uint8."""
    return (_native(c0) or reference).deal(r_a, r_b, c0, bits, nbytes)


def quotient_half(
    summand: torch.Tensor,
    own: torch.Tensor,
    alpha: torch.Tensor,
    beta: torch.Tensor,
    correction: torch.Tensor,
    mask: torch.Tensor | None,
    bits: int,
    shift: int,
    first: bool,
    constant: int = 0,
) -> torch.Tensor:
    """(summand >> shift) + (bit + sigma correction) 2^(bits-shift) - constant - mask, modulo 2^bits (n,).

    A logical shift. own, alpha and beta are planes of n bits: sigma is -1 where alpha ^ beta; bit is
    own beta - alpha beta if `first`, else own alpha. The correction counts modulo 2^shift: elements (n,), or as many
    bytes each as it needs.
    """
    back = _native(summand, mask) or reference
    return back.quotient_half(summand, own, alpha, beta, correction, mask, bits, shift, first, constant)


def and_level(
    p: torch.Tensor, g: torch.Tensor, q: torch.Tensor, mask_0: torch.Tensor, mask_1: torch.Tensor
) -> torch.Tensor:
    """One party's summands of ANDs of replicated planes: p and g (2, n, words), then the last planes of p and q.

    x_0 & (y_0 ^ y_1) ^ x_1 & y_0 ^ mask_0 ^ mask_1, int64 (n + len(q), words), of which are the masks.
    """
    return (_native(p, g) or reference).and_level(p, g, q, mask_0, mask_1)


def shifted(
    x: torch.Tensor, y: torch.Tensor | None, lift: int, constant: int, bits: int, shift: int, small: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """(s >> shift) - constant, a logical shift of s = x + y + lift modulo 2^bits (n,); and 1 where s >= 0, as `small`.

    New memory.
    """
    return (_native(x, y) or reference).shifted(x, y, lift, constant, bits, shift, small)


def monomials(planes: torch.Tensor, count: int, width: int) -> torch.Tensor:
    """Products of planes (n, words): of each block of the lowest `count` (`shapes.bit_blocks`) those of all non-empty
    sets, by the set's number (bit i for the block's plane i); then the planes above as they are.
    """
    return (_native(planes) or reference).monomials(planes, count, width)


def block_products(a: torch.Tensor, b: torch.Tensor, count: int, width: int) -> torch.Tensor:
    """What a + b carries out of each block, and what lets a carry through: sums of products of a row of a and one of b,
    both as from `monomials`.

    First for each block the sum over i of a_i b_i times all (a_j ^ b_j) above i; then, for each but the lowest, the
    product of all (a_j ^ b_j) but for the two products that are of a or of b alone: (2 blocks - 1, words).
    """
    return (_native(a, b) or reference).block_products(a, b, count, width)


def pair_sums(x: torch.Tensor) -> torch.Tensor:
    """x_1 + x_2, x_0 - x_2 and x_0 + x_1 of x (3, ...), without gaps."""
    return (_native(x) or reference).pair_sums(x)


def and_summands(p: torch.Tensor, g: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The summands of ANDs that one of four parties knows: p and g (3, n, words), then the last planes of p and q.

    For c = 0, 1, 2 (x_a ^ x_b) & (y_a ^ y_b), a and b the two that are not c: int64 (3, n + len(q), words).
    """
    return (_native(p, g) or reference).and_summands(p, g, q)
