"""Bilinear operations as values: a protocol multiplies shares by any of them without knowing which.

An operation `op` is linear in each of its two arguments over Z_2^k. Protocols call `op(a, b, out=..., accumulate=True)`
on *local* tensors (no share component dimension) and ask `op.shape(a.shape, b.shape)` and `op.macs(...)` for the plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch

from mpcpipe.ring import ops

Shape = tuple[int, ...]
Pair = tuple[int, int]


class Bilinear(Protocol):
    """What a protocol needs to know of a bilinear operation."""

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None, accumulate: bool = False
    ) -> torch.Tensor:
        """op(a, b), exactly modulo 2^(width of the dtype); written or added into `out` if that is given."""
        ...

    def shape(self, a: Shape, b: Shape) -> Shape:
        """Shape of the result."""
        ...

    def macs(self, a: Shape, b: Shape) -> int:
        """Multiply-adds of one call."""
        ...


@dataclass(frozen=True)
class Mul:
    """Element by element, with torch's broadcasting."""

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None, accumulate: bool = False
    ) -> torch.Tensor:
        if out is None:
            return a * b
        return out.addcmul_(a, b) if accumulate else torch.mul(a, b, out=out)

    def shape(self, a: Shape, b: Shape) -> Shape:
        return tuple(torch.broadcast_shapes(a, b))  # type: ignore[no-untyped-call]

    def macs(self, a: Shape, b: Shape) -> int:
        return math.prod(self.shape(a, b))


@dataclass(frozen=True)
class MatMul:
    """a (m, k) times b (k, n); `transpose_a` takes a as (k, m), `transpose_b` takes b as (n, k)."""

    transpose_a: bool = False
    transpose_b: bool = False

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None, accumulate: bool = False
    ) -> torch.Tensor:
        return ops.matmul(a.T if self.transpose_a else a, b.T if self.transpose_b else b, out, accumulate)

    def shape(self, a: Shape, b: Shape) -> Shape:
        return (a[1] if self.transpose_a else a[0], b[0] if self.transpose_b else b[1])

    def macs(self, a: Shape, b: Shape) -> int:
        return math.prod(a) * self.shape(a, b)[1]


@dataclass(frozen=True)
class Conv2d:
    """x (n, c, h, w) with filter (o, c / groups, kh, kw)."""

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None, accumulate: bool = False
    ) -> torch.Tensor:
        return ops.conv2d(a, b, self.stride, self.padding, self.dilation, self.groups, out, accumulate)

    def shape(self, a: Shape, b: Shape) -> Shape:
        spatial = (
            (a[2 + i] + 2 * self.padding[i] - self.dilation[i] * (b[2 + i] - 1) - 1) // self.stride[i] + 1
            for i in (0, 1)
        )
        return (a[0], b[0], *spatial)

    def macs(self, a: Shape, b: Shape) -> int:
        return math.prod(self.shape(a, b)) * math.prod(b[1:])


@dataclass(frozen=True)
class Conv2dInputGrad:
    """dy (n, o, oh, ow) with filter (o, c / groups, kh, kw): the gradient of x, of shape `input_shape` (n, c, h, w)."""

    conv: Conv2d
    input_shape: Shape

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None, accumulate: bool = False
    ) -> torch.Tensor:
        c = self.conv
        return ops.conv2d_input_grad(a, b, self.input_shape, c.stride, c.padding, c.dilation, c.groups, out, accumulate)

    def shape(self, a: Shape, b: Shape) -> Shape:
        return self.input_shape

    def macs(self, a: Shape, b: Shape) -> int:
        return math.prod(a) * math.prod(b[1:])


@dataclass(frozen=True)
class Conv2dWeightGrad:
    """x (n, c, h, w) with dy (n, o, oh, ow): the gradient of the filter, of shape `weight_shape`."""

    conv: Conv2d
    weight_shape: Shape

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None, accumulate: bool = False
    ) -> torch.Tensor:
        c = self.conv
        return ops.conv2d_weight_grad(
            a, b, self.weight_shape, c.stride, c.padding, c.dilation, c.groups, out, accumulate
        )

    def shape(self, a: Shape, b: Shape) -> Shape:
        return self.weight_shape

    def macs(self, a: Shape, b: Shape) -> int:
        return math.prod(b) * math.prod(self.weight_shape[1:])


MUL = Mul()
MATMUL = MatMul()
