"""`torch.ops.mpcpipe.*`: schemas, shapes for tensors without values, implementations, derivatives.

Each operation has three directions, and each of them a form that adds to a tensor:

    y  = matmul(a, b)          da = matmul_input_grad(dy, b)         db = matmul_weight_grad(a, dy)
    y  = conv2d(x, w, ...)     dx = conv2d_input_grad(dy, w, x's shape, ...)
                               dw = conv2d_weight_grad(x, dy, w's shape, ...)
    depthwise and pointwise likewise; matmul_add_(out, a, b) adds to out, and so on

The directions are bilinear and each other's derivatives, so all of them have autograd: also second derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mpcpipe.ops import compute

_CONV = "int[2] stride, int[2] padding, int[2] dilation, int groups"
_PLANES = "int[2] stride, int[2] padding"
_INPUTS = {
    "": "Tensor {0}, Tensor {1}",
    "_input_grad": "Tensor dy, Tensor {1}",
    "_weight_grad": "Tensor {0}, Tensor dy",
}
_SIZES = {"": "", "_input_grad": ", SymInt[] input_shape", "_weight_grad": ", SymInt[] weight_shape"}
_REST = {
    "matmul": ("a", "b", ""),
    "conv2d": ("x", "w", _CONV),
    "depthwise": ("x", "w", _PLANES),
    "pointwise": ("x", "w", ""),
}
DIRECTIONS = ("", "_input_grad", "_weight_grad")
OPERATORS = tuple(f"{kind}{direction}" for kind in _REST for direction in DIRECTIONS)
"""Names of the operators; each also with `_add_`."""

Tensor = torch.Tensor


def _split(name: str) -> tuple[str, str]:
    kind = name.partition("_")[0]
    return kind, name[len(kind) :]


def _has_sizes(kind: str) -> bool:
    return kind in ("conv2d", "depthwise")


def schema_of(name: str) -> str:
    """The arguments of an operator."""
    kind, direction = _split(name)
    first, second, rest = _REST[kind]
    sizes = _SIZES[direction] if _has_sizes(kind) else ""
    return _INPUTS[direction].format(first, second) + sizes + (f", {rest}" if rest else "")


def _convolution(kind: str, x: Sequence[Any], w: Sequence[Any], rest: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """stride, padding, dilation and groups, whichever of the three kinds it is."""
    if len(x) != 4 or len(w) != 4:
        raise ValueError(f"{kind} takes x (n, c, h, w) and filters of four sizes, not {tuple(x)} and {tuple(w)}")
    if kind == "conv2d":
        return rest[0], rest[1], rest[2], rest[3]
    if kind == "depthwise":
        return rest[0], rest[1], (1, 1), x[1]
    if w[2] != 1 or w[3] != 1:
        raise ValueError(f"a pointwise filter is (o, c, 1, 1), not {tuple(w)}")
    return (1, 1), (0, 0), (1, 1), 1


def _shapes(name: str, first: Tensor, second: Tensor, rest: Sequence[Any]) -> tuple[Any, Any, Sequence[Any]]:
    """Shapes of x and w, and the arguments after sizes."""
    kind, direction = _split(name)
    if kind == "pointwise":
        n, _, h, w = first.shape if first.dim() == 4 else (0, 0, 0, 0)
        if direction == "_input_grad":
            return (n, second.shape[1], h, w), second.shape, ()
        if direction == "_weight_grad":
            return first.shape, (second.shape[1], first.shape[1], 1, 1), ()
        return first.shape, second.shape, ()
    if direction == "_input_grad":
        return rest[0], second.shape, rest[1:]
    if direction == "_weight_grad":
        return first.shape, rest[0], rest[1:]
    return first.shape, second.shape, rest


def _compute(name: str) -> Callable[..., Tensor]:
    kind, direction = _split(name)

    def product(first: Tensor, second: Tensor) -> Tensor:
        if first.dim() != 2 or second.dim() != 2:
            raise ValueError(f"{name} takes two matrices, not {tuple(first.shape)} and {tuple(second.shape)}")
        if direction == "_input_grad":
            return compute.matmul(first, second.T)
        return compute.matmul(first.T, second) if direction else compute.matmul(first, second)

    def convolution(first: Tensor, second: Tensor, *rest: Any) -> Tensor:
        if first.dim() != 4 or second.dim() != 4:
            raise ValueError(f"{name} takes tensors of four sizes, not {tuple(first.shape)} and {tuple(second.shape)}")
        x, w, how = _shapes(name, first, second, rest)
        shape = compute.shape_of(tuple(x), tuple(w), *_convolution(kind, x, w, how))
        return compute.convolve(f"conv2d{direction}", shape, first, second)

    return product if kind == "matmul" else convolution


def _check(condition: bool, message: str) -> None:
    torch._check(condition, lambda: message)  # type: ignore[no-untyped-call]


def _fake(name: str) -> Callable[..., Tensor]:
    """The result's shape and dtype, also of symbolic sizes."""
    kind, direction = _split(name)

    def product(first: Tensor, second: Tensor) -> Tensor:
        _check(first.dim() == 2 and second.dim() == 2, f"{name} takes two matrices")
        if direction == "_input_grad":
            _check(first.shape[1] == second.shape[1], f"{name}: the matrices do not fit")
            return first.new_empty((first.shape[0], second.shape[0]))
        if direction:
            _check(first.shape[0] == second.shape[0], f"{name}: the matrices do not fit")
            return first.new_empty((first.shape[1], second.shape[1]))
        _check(first.shape[1] == second.shape[0], f"{name}: the matrices do not fit")
        return first.new_empty((first.shape[0], second.shape[1]))

    def convolution(first: Tensor, second: Tensor, *rest: Any) -> Tensor:
        _check(first.dim() == 4 and second.dim() == 4, f"{name} takes tensors of four sizes")
        x, w, how = _shapes(name, first, second, rest)
        if direction == "_input_grad":
            return first.new_empty(tuple(x))
        if direction == "_weight_grad":
            return first.new_empty(tuple(w))
        stride, padding, dilation, _ = _convolution(kind, x, w, how)
        sides = [(x[2 + i] + 2 * padding[i] - dilation[i] * (w[2 + i] - 1) - 1) // stride[i] + 1 for i in (0, 1)]
        return first.new_empty((x[0], w[0], *sides))

    return product if kind == "matmul" else convolution


def _adding(name: str) -> Callable[..., None]:
    value = _compute(name)

    def add(out: Tensor, *arguments: Any) -> None:
        result = value(*arguments)
        if result.shape != out.shape or result.dtype != out.dtype:
            found = f"{tuple(out.shape)} of {out.dtype}"
            raise ValueError(f"{name}_add_ adds {tuple(result.shape)} of {result.dtype}, which does not fit {found}")
        out.add_(result)

    return add


def _derivative(name: str) -> tuple[Callable[..., Any], Callable[..., None]]:
    """(backward, setup_context): each argument's derivative is another direction of the same operation."""
    kind, direction = _split(name)
    sized = _has_sizes(kind)

    def direct(which: str, first: Tensor, second: Tensor, size: Sequence[int], how: Sequence[Any]) -> Tensor:
        operator = getattr(torch.ops.mpcpipe, f"{kind}{which}")
        sizes = (list(size),) if sized and which else ()
        found: Tensor = operator(first, second, *sizes, *how)
        return found

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        first, second, *rest = inputs
        ctx.save_for_backward(first, second)
        ctx.how = rest[1:] if sized and direction else rest
        ctx.size = rest[0] if sized and direction else ()
        ctx.count = len(inputs)

    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        first, second = ctx.saved_tensors
        one = other = None
        needs_one, needs_other = ctx.needs_input_grad[:2]
        if direction == "":  # y = x w
            if needs_one:
                one = direct("_input_grad", g, second, first.shape, ctx.how)
            if needs_other:
                other = direct("_weight_grad", first, g, second.shape, ctx.how)
        elif direction == "_input_grad":  # of dy and w, g has the shape of x
            if needs_one:
                one = direct("", g, second, (), ctx.how)
            if needs_other:
                other = direct("_weight_grad", g, first, second.shape, ctx.how)
        else:  # of x and dy, g has the shape of w
            if needs_one:
                one = direct("_input_grad", second, g, first.shape, ctx.how)
            if needs_other:
                other = direct("", first, g, (), ctx.how)
        return (one, other, *(None,) * (ctx.count - 2))

    return backward, setup


def register() -> torch.library.Library:
    """Make the operators known to torch: once a process. They live as long as what is returned."""
    library = torch.library.Library("mpcpipe", "DEF")  # type: ignore[no-untyped-call]
    for name in OPERATORS:
        schema = schema_of(name)
        library.define(f"{name}({schema}) -> Tensor")  # type: ignore[no-untyped-call]
        library.impl(name, _compute(name), "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"mpcpipe::{name}", _fake(name), lib=library)
        backward, setup = _derivative(name)
        torch.library.register_autograd(f"mpcpipe::{name}", backward, setup_context=setup, lib=library)
        library.define(f"{name}_add_(Tensor(a!) out, {schema}) -> ()")  # type: ignore[no-untyped-call]
        library.impl(f"{name}_add_", _adding(name), "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"mpcpipe::{name}_add_", lambda out, *arguments: None, lib=library)
    return library


LIBRARY = register()
