"""Matrix products and convolutions of the native library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from mpcpipe.ring.native.abi import OVERLAP, Binding, Functions, conv_struct, failure, refuse
from mpcpipe.ring.shapes import ConvShape, matmul_shape, require_shape


class Products(Binding):
    """Products modulo 2^64 (int64) and 2^32 (int32), and of float32.

    `out`, where there is one, is of the result's shape and dtype; `accumulate` adds to it. `threads` is how many
    threads may work on one call, this one included; the result does not depend on it, but for float32's rounding.
    `as_products` computes a depthwise convolution, too, as products of matrices: the same values, slower.
    """

    def __init__(self, c: ctypes.CDLL) -> None:
        self._matmul = _for_dtypes(c, "mpk_matmul")
        self._conv2d = _for_dtypes(c, "mpk_conv2d")
        self._conv2d_input_grad = _for_dtypes(c, "mpk_conv2d_input_grad")
        self._conv2d_weight_grad = _for_dtypes(c, "mpk_conv2d_weight_grad")

    def matmul(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor | None = None,
        accumulate: bool = False,
        threads: int = 1,
    ) -> torch.Tensor:
        """a (m, k) times b (k, n), any strides."""
        shape = matmul_shape(a.shape, b.shape)
        dtype = a.dtype
        function = self._matmul.get(dtype)
        if function is None or b.dtype != dtype or not (a.is_cpu and b.is_cpu):
            raise refuse(a, b)
        (m, n), k = shape, a.shape[1]
        inputs = (m, n, k, a.data_ptr(), *a.stride(), b.data_ptr(), *b.stride())

        def call(target: torch.Tensor, add: bool) -> int:
            return int(function(*inputs, target.data_ptr(), n, 1, add, threads))

        return _into(
            out, shape, dtype, accumulate, call, lambda: f"the product of {tuple(a.shape)} and {tuple(b.shape)}"
        )

    def conv2d(
        self,
        shape: ConvShape,
        x: torch.Tensor,
        w: torch.Tensor,
        out: torch.Tensor | None = None,
        accumulate: bool = False,
        threads: int = 1,
        as_products: bool = False,
    ) -> torch.Tensor:
        """y from x and w."""
        require_shape("x", x.shape, shape.x)
        require_shape("the filter", w.shape, shape.w)
        return self._conv(self._conv2d, shape, x, w, shape.y, out, accumulate, threads, as_products)

    def conv2d_input_grad(
        self,
        shape: ConvShape,
        dy: torch.Tensor,
        w: torch.Tensor,
        out: torch.Tensor | None = None,
        accumulate: bool = False,
        threads: int = 1,
        as_products: bool = False,
    ) -> torch.Tensor:
        """dx from dy and w."""
        require_shape("dy", dy.shape, shape.y)
        require_shape("the filter", w.shape, shape.w)
        return self._conv(self._conv2d_input_grad, shape, dy, w, shape.x, out, accumulate, threads, as_products)

    def conv2d_weight_grad(
        self,
        shape: ConvShape,
        x: torch.Tensor,
        dy: torch.Tensor,
        out: torch.Tensor | None = None,
        accumulate: bool = False,
        threads: int = 1,
        as_products: bool = False,
    ) -> torch.Tensor:
        """dw from x and dy."""
        require_shape("x", x.shape, shape.x)
        require_shape("dy", dy.shape, shape.y)
        return self._conv(self._conv2d_weight_grad, shape, x, dy, shape.w, out, accumulate, threads, as_products)

    def _conv(
        self,
        functions: Functions,
        shape: ConvShape,
        first: torch.Tensor,
        second: torch.Tensor,
        result: tuple[int, ...],
        out: torch.Tensor | None,
        accumulate: bool,
        threads: int,
        as_products: bool,
    ) -> torch.Tensor:
        dtype = first.dtype
        function = functions.get(dtype)
        if function is None or second.dtype != dtype or not (first.is_cpu and second.is_cpu):
            raise refuse(first, second)
        first, second = first.contiguous(), second.contiguous()
        inputs = (conv_struct(shape, as_products), first.data_ptr(), second.data_ptr())

        def call(target: torch.Tensor, add: bool) -> int:
            return int(function(*inputs, target.data_ptr(), add, threads))

        return _into(out, result, dtype, accumulate, call, lambda: f"a direction of {shape}")


def _for_dtypes(c: ctypes.CDLL, name: str) -> Functions:
    widths = {torch.int64: "u64", torch.int32: "u32", torch.float32: "f32"}
    return {dtype: getattr(c, f"{name}_{width}") for dtype, width in widths.items()}


def _into(
    out: torch.Tensor | None,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    accumulate: bool,
    call: Callable[[torch.Tensor, bool], int],
    what: Callable[[], str],
) -> torch.Tensor:
    """The result of a kernel, in `out` if it is given. call(target, add) runs it and returns its status."""
    target = _target(out, shape, dtype, accumulate)
    status = call(target, accumulate and out is target)
    if status == OVERLAP:
        target = torch.empty(shape, dtype=dtype)
        status = call(target, False)
    if status:
        raise failure(status, what())
    return target if out is None or out is target else _deliver(target, out, accumulate)


def _target(out: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, accumulate: bool) -> torch.Tensor:
    """Where the kernel writes: `out`, or new memory where there is no `out` or it is not contiguous."""
    if out is None:
        if accumulate:
            raise ValueError("accumulate needs `out`, the tensor that the result is added to")
        return torch.empty(shape, dtype=dtype)
    require_shape("out", out.shape, shape)
    if out.dtype != dtype or not out.is_cpu:
        raise ValueError(f"out must be {dtype} on the CPU, as the inputs are, not {out.dtype} on {out.device}")
    return out if out.is_contiguous() else torch.empty(shape, dtype=dtype)


def _deliver(target: torch.Tensor, out: torch.Tensor, accumulate: bool) -> torch.Tensor:
    return out.add_(target) if accumulate else out.copy_(target)
