"""The ring's operations in plain torch, for any device: slow, always there, and what the native library must equal."""

from __future__ import annotations

import torch

Shape = tuple[int, ...]
Pair = tuple[int, int]


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a (m, k) times b (k, n), exact modulo the width of the dtype."""
    return a @ b


def _windows(x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> torch.Tensor:
    """View of the padded x (n, c, h, w) as (n, c, kh, kw, oh, ow)."""
    x = torch.nn.functional.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    n, c, h, w = x.shape
    oh, ow = ((size - d * (k - 1) - 1) // s + 1 for size, d, k, s in zip((h, w), dilation, kernel, stride, strict=True))
    sn, sc, sh, sw = x.stride()
    return x.as_strided(
        (n, c, *kernel, oh, ow), (sn, sc, sh * dilation[0], sw * dilation[1], sh * stride[0], sw * stride[1])
    )


def conv2d(x: torch.Tensor, w: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> torch.Tensor:
    """x (n, c, h, w) with w (o, c / groups, kh, kw)."""
    n, c = x.shape[:2]
    o, cg, kh, kw = w.shape
    patches = _windows(x, (kh, kw), stride, padding, dilation)
    oh, ow = patches.shape[-2:]
    columns = patches.reshape(n, groups, cg * kh * kw, oh * ow)
    return (w.reshape(1, groups, o // groups, cg * kh * kw) @ columns).reshape(n, o, oh, ow)


def conv2d_input_grad(
    dy: torch.Tensor, w: torch.Tensor, input_shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> torch.Tensor:
    """Gradient of conv2d's x, of shape `input_shape`."""
    n, c, h, width = input_shape
    o, cg, kh, kw = w.shape
    oh, ow = dy.shape[-2:]
    columns = w.reshape(1, groups, o // groups, -1).transpose(2, 3) @ dy.reshape(n, groups, o // groups, oh * ow)
    columns = columns.reshape(n, c, kh, kw, oh, ow)
    padded = dy.new_zeros((n, c, h + 2 * padding[0], width + 2 * padding[1]))
    for i in range(kh):
        for j in range(kw):
            top, left = i * dilation[0], j * dilation[1]
            rows = slice(top, top + stride[0] * (oh - 1) + 1, stride[0])
            cols = slice(left, left + stride[1] * (ow - 1) + 1, stride[1])
            padded[:, :, rows, cols] += columns[:, :, i, j]
    return padded[:, :, padding[0] : padding[0] + h, padding[1] : padding[1] + width]


def conv2d_weight_grad(
    x: torch.Tensor, dy: torch.Tensor, weight_shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> torch.Tensor:
    """Gradient of conv2d's w, of shape `weight_shape`."""
    n = x.shape[0]
    o, cg, kh, kw = weight_shape
    oh, ow = dy.shape[-2:]
    patches = _windows(x, (kh, kw), stride, padding, dilation)[..., :oh, :ow]
    columns = patches.reshape(n, groups, cg * kh * kw, oh * ow)
    grads = dy.reshape(n, groups, o // groups, oh * ow) @ columns.transpose(2, 3)
    return grads.sum(0).reshape(o, cg, kh, kw).to(x.dtype)


def bit_planes(x: torch.Tensor, count: int) -> torch.Tensor:
    """The lowest `count` bits of x (n,), sliced into (count, words) int64."""
    n = x.numel()
    padded = torch.zeros((n + 63) // 64 * 64, dtype=torch.int64, device=x.device)
    padded[:n] = x
    lanes = torch.arange(64, device=x.device)
    planes = [(((padded.view(-1, 64) >> j) & 1) << lanes).sum(1) for j in range(count)]
    return torch.stack(planes) if planes else padded.new_zeros((0, (n + 63) // 64))


def unpack_bits(plane: torch.Tensor, n: int, dtype: torch.dtype) -> torch.Tensor:
    """One plane (words,) as n elements 0 or 1."""
    lanes = torch.arange(64, device=plane.device)
    return ((plane.unsqueeze(1) >> lanes) & 1).reshape(-1)[:n].to(dtype)
