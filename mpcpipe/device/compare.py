"""Are the device kernels right here? Every one, with every tile, beside plain torch on the CPU, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from mpcpipe.device.operators import ELEMENTS, DeviceOperators
from mpcpipe.ring import reference
from mpcpipe.ring.shapes import ConvShape, conv_shape

ORDERS = (0, 1, 7)

# (x, filters, kernel, stride, padding): one pixel, odd sizes, multipliers, more than one tile, few and many results.
DEPTHWISE = (
    ((1, 1, 1, 1), 1, 3, 1, (1, 1)),
    ((2, 3, 8, 7), 3, 3, 1, (1, 1)),
    ((3, 2, 9, 12), 4, 3, 2, (1, 0)),
    ((1, 5, 13, 5), 5, 5, 1, (2, 2)),
    ((2, 2, 11, 10), 2, 5, 2, (2, 1)),
    ((1, 2, 9, 14), 6, 7, 1, (3, 6)),
    ((2, 1, 16, 15), 1, 7, 2, (0, 3)),
    ((1, 1, 6, 300), 1, 3, 1, (1, 1)),
    ((1, 1, 5, 531), 1, 5, 2, (2, 2)),
)
# (batch, channels, height, width, filters)
POINTWISE = ((1, 1, 1, 1, 1), (2, 19, 3, 5, 7), (1, 64, 4, 4, 33), (3, 8, 7, 7, 40), (1, 150, 2, 2, 3))


@dataclass(frozen=True)
class Compared:
    """One kernel: how many cases, and what differs (sizes, never values)."""

    kernel: str
    cases: int
    different: tuple[str, ...]


def shapes() -> Iterator[tuple[str, ConvShape]]:
    """(name, shape) of every case."""
    for x, filters, kernel, stride, padding in DEPTHWISE:
        w = (filters, 1, kernel, kernel)
        yield "depthwise", conv_shape(x, w, (stride, stride), padding, (1, 1), x[1])
    for batch, channels, height, width, filters in POINTWISE:
        x, w = (batch, channels, height, width), (filters, channels, 1, 1)
        yield "pointwise", conv_shape(x, w, (1, 1), (0, 0), (1, 1), 1)


def elements(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Ring elements of the whole range; for float32 small integers, whose sums are exact in any order."""
    values = torch.empty(shape, dtype=torch.int64)
    if dtype == torch.float32:
        return values.random_(-8, 9, generator=generator).to(dtype)
    return values.random_(-(1 << 63), None, generator=generator).to(dtype)


def expected(
    shape: ConvShape, x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """y, dx and dw in plain torch; float32 by way of ring elements, which small integers are."""
    how = (shape.stride, shape.padding, shape.dilation, shape.groups)
    if x.dtype == torch.float32:
        found = expected(shape, x.long(), w.long(), dy.long())
        return (found[0].float(), found[1].float(), found[2].float())
    return (
        reference.conv2d(x, w, *how),
        reference.conv2d_input_grad(dy, w, shape.x, *how),
        reference.conv2d_weight_grad(x, dy, shape.w, *how),
    )


def compare(operators: DeviceOperators, device: torch.device, seed: int = 0, rounds: int = 3) -> list[Compared]:
    """All cases, `rounds` times: give the operators an `InTurn` tuner, and other tiles are taken every time."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, Compared] = {}
    for turn in range(rounds):
        if operators.library.kind == "emulated":
            operators.library.set_order(ORDERS[turn % len(ORDERS)])
        for name, shape in shapes():
            for dtype, element in ELEMENTS.items():
                for result in _one(operators, device, name, shape, dtype, element, generator):
                    before = found.get(result.kernel, replace(result, cases=0, different=()))
                    found[result.kernel] = replace(
                        before, cases=before.cases + 1, different=(*before.different, *result.different)
                    )
    return list(found.values())


def _one(
    operators: DeviceOperators,
    device: torch.device,
    name: str,
    shape: ConvShape,
    dtype: torch.dtype,
    element: str,
    generator: torch.Generator,
) -> Iterator[Compared]:
    x, w, dy = (elements(each, dtype, generator) for each in (shape.x, shape.w, shape.y))
    right = expected(shape, x, w, dy)
    there = [each.to(device) for each in (x, w, dy)]
    added = [elements(tuple(each.shape), dtype, generator) for each in right]
    outs = [each.to(device, copy=True) for each in added]
    operators.conv2d(shape, there[0], there[1], outs[0], accumulate=True)
    operators.conv2d_input_grad(shape, there[2], there[1], outs[1], accumulate=True)
    operators.conv2d_weight_grad(shape, there[0], there[2], outs[2], accumulate=True)
    what = f"{shape.x} with {shape.w}, stride {shape.stride}, padding {shape.padding}"
    for direction, out, start, value in zip(("", "_input_grad", "_weight_grad"), outs, added, right, strict=True):
        same = torch.equal(out.cpu(), start + value)
        yield Compared(f"{name}{direction}_{element}", 1, () if same else (what,))
