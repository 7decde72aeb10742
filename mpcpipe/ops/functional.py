"""Convolutions for ordinary PyTorch models, with autograd in float32: what `torch.nn.functional.conv2d` would give."""

from __future__ import annotations

import torch

import mpcpipe.ops.registered  # noqa: F401 (torch.ops.mpcpipe)

Size = int | tuple[int, int]


def _pair(value: Size) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


def depthwise_conv2d(x: torch.Tensor, w: torch.Tensor, stride: Size = 1, padding: Size = 0) -> torch.Tensor:
    """x (n, c, h, w) with filters (c m, 1, kh, kw), m for each channel: as conv2d with groups=c.

    float32, differentiable; also int32 and int64, exactly modulo 2^32 and 2^64. Raises ValueError where shapes do not
    fit.
    """
    result: torch.Tensor = torch.ops.mpcpipe.depthwise(x, w, _pair(stride), _pair(padding))
    return result


def pointwise_conv2d(x: torch.Tensor, w: torch.Tensor, stride: Size = 1, padding: Size = 0) -> torch.Tensor:
    """x (n, c, h, w) with filters (o, c, 1, 1). Otherwise as `depthwise_conv2d`."""
    (down, right), (high, wide) = _pair(stride), _pair(padding)
    if min(down, right) < 1 or min(high, wide) < 0:
        raise ValueError(f"a stride is at least 1 and a padding at least 0, unlike {stride} and {padding}")
    if high or wide:
        x = torch.nn.functional.pad(x, (wide, wide, high, high))
    if down > 1 or right > 1:
        x = x[:, :, ::down, ::right]
    result: torch.Tensor = torch.ops.mpcpipe.pointwise(x, w)
    return result
