"""Shapes of the ring's operations, checked once and remembered: every back end asks here before it touches memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

Shape = tuple[int, ...]
Pair = tuple[int, int]


@dataclass(frozen=True)
class ConvShape:
    """A convolution of x (n, c, h, w) with a filter (o, c / groups, kh, kw) into y (n, o, oh, ow)."""

    x: Shape
    w: Shape
    y: Shape
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int


def matmul_shape(a: Shape, b: Shape) -> Shape:
    """Shape of a (m, k) times b (k, n). Raises ValueError where they do not fit."""
    if len(a) != 2 or len(b) != 2 or a[1] != b[0]:
        raise ValueError(f"a matrix product takes (m, k) and (k, n), not {tuple(a)} and {tuple(b)}")
    return (a[0], b[1])


@lru_cache(maxsize=1024)
def conv_shape(x: Shape, w: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> ConvShape:
    """All shapes of a convolution from those of its two inputs. Raises ValueError where they do not fit."""
    if len(x) != 4 or len(w) != 4:
        raise ValueError(f"a convolution takes (n, c, h, w) and (o, c / groups, kh, kw), not {tuple(x)} and {tuple(w)}")
    for name, pair, least in (("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1)):
        if len(pair) != 2 or min(pair) < least:
            raise ValueError(f"{name} must be two numbers of at least {least}, not {pair}")
    if groups < 1 or x[1] != w[1] * groups or w[0] % groups:
        raise ValueError(
            f"{groups} groups do not fit {x[1]} channels and a filter {tuple(w)}: "
            "the channels must be groups times the filter's second size, and its first a multiple of groups"
        )
    if min(w[2:]) < 1:
        raise ValueError(f"the filter {tuple(w)} is empty")
    out = tuple((x[2 + i] + 2 * padding[i] - dilation[i] * (w[2 + i] - 1) - 1) // stride[i] + 1 for i in (0, 1))
    if min(out) < 1:
        raise ValueError(
            f"the filter {tuple(w)} with dilation {dilation} is larger than the input {tuple(x)} with padding {padding}"
        )
    return ConvShape(tuple(x), tuple(w), (x[0], w[0], *out), stride, padding, dilation, groups)


def require_shape(name: str, actual: Shape, expected: Shape) -> None:
    """Raises ValueError unless the tensor called `name` has the expected shape."""
    if actual != expected:
        raise ValueError(f"{name} has shape {tuple(actual)}, but {tuple(expected)} is needed here")


def bit_blocks(count: int, width: int) -> list[int]:
    """How `count` planes are cut into blocks of `width`, the lowest first: it is what is left over."""
    blocks = -(-count // width)
    return [width if block else count - (blocks - 1) * width for block in range(blocks)]


def monomial_rows(count: int, width: int) -> int:
    """How many products of planes of one block there are, in all blocks."""
    return sum((1 << planes) - 1 for planes in bit_blocks(count, width))
