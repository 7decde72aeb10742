"""The ring's operations on tensors without values (torch's `meta` device): results have the right shape and dtype.

Each is one torch operation that a dispatch mode recognises, so a dry run can count the products that a real one does.
"""

from __future__ import annotations

import torch

Shape = tuple[int, ...]
Pair = tuple[int, int]


def warm() -> None:
    """Use such tensors once: at the first, torch loads half of itself, which takes seconds."""
    blank = torch.empty((2, 3), dtype=torch.int64, device="meta")
    torch.cat([blank, blank + 1], dim=1).sum(dim=1)


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a (m, k) times b (k, n). Seen as aten.mm."""
    return a @ b


def conv2d(x: torch.Tensor, w: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> torch.Tensor:
    """x (n, c, h, w) with w (o, c / groups, kh, kw). Seen as aten.convolution."""
    return torch.nn.functional.conv2d(x, w, None, stride, padding, dilation, groups)


def _backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    which: int,
) -> torch.Tensor:
    mask = [which == 0, which == 1, False]
    grads = torch.ops.aten.convolution_backward(
        dy, x, w, None, list(stride), list(padding), list(dilation), False, [0, 0], groups, mask
    )
    found: torch.Tensor = grads[which]
    return found


def conv2d_input_grad(
    dy: torch.Tensor, w: torch.Tensor, input_shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> torch.Tensor:
    """Gradient of conv2d's x. Seen as aten.convolution_backward."""
    return _backward(dy, dy.new_empty(input_shape), w, stride, padding, dilation, groups, 0)


def conv2d_weight_grad(
    x: torch.Tensor, dy: torch.Tensor, weight_shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> torch.Tensor:
    """Gradient of conv2d's w. Seen as aten.convolution_backward."""
    return _backward(dy, x, dy.new_empty(weight_shape), stride, padding, dilation, groups, 1)


def bit_planes(x: torch.Tensor, count: int) -> torch.Tensor:
    """The lowest `count` bits of x (n,), sliced into (count, words) int64."""
    return x.new_empty((count, (x.numel() + 63) // 64), dtype=torch.int64).bitwise_not_()


def unpack_bits(plane: torch.Tensor, n: int, dtype: torch.dtype) -> torch.Tensor:
    """One plane (words,) as n elements 0 or 1."""
    return plane.new_empty(n, dtype=dtype).bitwise_not_()
