"""What the operators compute: by the kernels that serve a tensor's device and dtype, else by plain torch.

int32 and int64 are exact modulo 2^32 and 2^64, by whatever the ring uses. float32 on the CPU goes to whichever of the C
library and torch's own (oneDNN) was faster when the shape was first seen: neither is for all shapes. Results are
contiguous.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

import torch

from mpcpipe.device.loading import operators_for
from mpcpipe.device.operators import refuses
from mpcpipe.ring import native
from mpcpipe.ring import ops as ring_ops
from mpcpipe.ring.shapes import ConvShape, conv_shape, matmul_shape, require_shape

Shape = tuple[int, ...]
Pair = tuple[int, int]
_INTEGERS = (torch.int32, torch.int64)
_NOTHING = (torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.bool)
_MASKS = {"conv2d_input_grad": [True, False, False], "conv2d_weight_grad": [False, True, False]}
_RUNS = 2


def _require(first: torch.Tensor, second: torch.Tensor) -> None:
    if first.dtype != second.dtype or first.device != second.device or first.dtype in _NOTHING or first.is_complex():
        found = f"{first.dtype} on {first.device} and {second.dtype} on {second.device}"
        raise ValueError(f"an operator takes int32, int64 or floating tensors, of one kind on one device, not {found}")


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a (m, k) times b (k, n)."""
    shape = matmul_shape(tuple(a.shape), tuple(b.shape))
    _require(a, b)
    if a.dtype in _INTEGERS:
        if a.is_cuda and (device := operators_for(a.device)[0]) is not None:
            return device.matmul(a, b)
        return ring_ops.matmul(a, b)
    library = _for_floats(a)
    if library is None:
        return a @ b
    ways: dict[str, Callable[[], torch.Tensor]] = {"native": lambda: library.matmul(a, b), "torch": lambda: a @ b}
    return fastest().run(("matmul", shape, a.shape[1], a.stride(), b.stride()), ways)


def convolve(operator: str, shape: ConvShape, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """One direction of a convolution: "conv2d" of (x, w), "conv2d_input_grad" of (dy, w), "conv2d_weight_grad" of
    (x, dy).
    """
    expected = {"conv2d": (shape.x, shape.w), "conv2d_input_grad": (shape.y, shape.w)}
    one, other = expected.get(operator, (shape.x, shape.y))
    require_shape("the first tensor", tuple(first.shape), one)
    require_shape("the second tensor", tuple(second.shape), other)
    _require(first, second)
    if first.is_cuda and refuses(shape, first.dtype) is None:
        device = operators_for(first.device)[0]
        if device is not None:
            found: torch.Tensor = getattr(device, operator)(shape, first, second)
            return found
    if first.dtype in _INTEGERS:
        return _exact(operator, shape, first, second)
    library = _for_floats(first)
    if library is None:
        return _by_torch(operator, shape, first, second)
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "native": lambda: getattr(library, operator)(shape, first, second),
        "torch": lambda: _by_torch(operator, shape, first, second),
    }
    return fastest().run((operator, shape), ways)


def shape_of(x: Shape, w: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> ConvShape:
    """Checked shapes, from what a schema's arguments are."""
    two = [(int(pair[0]), int(pair[1])) for pair in (stride, padding, dilation)]
    return conv_shape(tuple(map(int, x)), tuple(map(int, w)), two[0], two[1], two[2], int(groups))


def _for_floats(x: torch.Tensor) -> native.NativeLibrary | None:
    return native.load() if x.is_cpu and x.dtype == torch.float32 else None


def _exact(operator: str, s: ConvShape, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    how = (s.stride, s.padding, s.dilation, s.groups)
    if operator == "conv2d":
        return ring_ops.conv2d(first, second, *how).contiguous()
    if operator == "conv2d_input_grad":
        return ring_ops.conv2d_input_grad(first, second, s.x, *how).contiguous()
    return ring_ops.conv2d_weight_grad(first, second, s.w, *how).contiguous()


def _by_torch(operator: str, s: ConvShape, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    if operator == "conv2d":
        return torch.nn.functional.conv2d(first, second, None, s.stride, s.padding, s.dilation, s.groups).contiguous()
    if operator == "conv2d_input_grad":
        dy, x, w = first, first.new_empty(s.x), second
    else:
        dy, x, w = second, first, first.new_empty(s.w)
    if s.x[0] == 0:
        return torch.zeros_like(x if operator == "conv2d_input_grad" else w)
    how = (list(s.stride), list(s.padding), list(s.dilation), False, [0, 0], s.groups)
    grads = torch.ops.aten.convolution_backward(dy, x, w, None, *how, _MASKS[operator])
    found: torch.Tensor = grads[_MASKS[operator].index(True)]
    return found.contiguous()


class Fastest:
    """Of several ways to the same result (up to rounding) the one that was fastest when a shape was first seen."""

    def __init__(self) -> None:
        self.chosen: dict[object, str] = {}

    def run(self, key: object, ways: dict[str, Callable[[], torch.Tensor]]) -> torch.Tensor:
        """The result of the way chosen for `key`; the first time all are timed, a few runs each."""
        key = (key, torch.get_num_threads())
        name = self.chosen.get(key)
        if name is None:
            name = self.chosen[key] = min(ways, key=lambda way: _seconds(ways[way]))
        return ways[name]()


def _seconds(work: Callable[[], torch.Tensor]) -> float:
    work()
    best = float("inf")
    for _ in range(_RUNS):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


@lru_cache(maxsize=1)
def fastest() -> Fastest:
    """This process's."""
    return Fastest()
