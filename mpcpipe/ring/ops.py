"""Exact integer operations on the ring: one function each, the back end chosen per call by device and dtype.

All take and return int32 or int64 tensors (any strides) and are exact modulo 2^32 or 2^64. `out`, if given, is a
contiguous tensor of the result's shape; with `accumulate` the result is added to it.
"""

from __future__ import annotations

import torch

from mpcpipe.ring import reference

Shape = tuple[int, ...]
Pair = tuple[int, int]


def _deliver(value: torch.Tensor, out: torch.Tensor | None, accumulate: bool) -> torch.Tensor:
    if out is None:
        return value
    return out.add_(value) if accumulate else out.copy_(value)


def matmul(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None, accumulate: bool = False
) -> torch.Tensor:
    """a (m, k) times b (k, n)."""
    return _deliver(reference.matmul(a, b), out, accumulate)


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
    return _deliver(reference.conv2d(x, w, stride, padding, dilation, groups), out, accumulate)


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
    value = reference.conv2d_input_grad(dy, w, input_shape, stride, padding, dilation, groups)
    return _deliver(value, out, accumulate)


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
    value = reference.conv2d_weight_grad(x, dy, weight_shape, stride, padding, dilation, groups)
    return _deliver(value, out, accumulate)


def words(n: int) -> int:
    """64-bit words that hold n packed bits."""
    return (n + 63) // 64


def bit_planes(x: torch.Tensor, count: int) -> torch.Tensor:
    """The lowest `count` bits of each element of x (n,), sliced: int64 (count, words(n)).

    Bit j of element i is bit i % 64 of word i // 64 of plane j. Bits past n are 0.
    """
    return reference.bit_planes(x, count)


def unpack_bits(plane: torch.Tensor, n: int, dtype: torch.dtype) -> torch.Tensor:
    """One plane (words(n),) as n elements 0 or 1 of `dtype`: the inverse of `bit_planes(x, 1)[0]`."""
    return reference.unpack_bits(plane, n, dtype)
