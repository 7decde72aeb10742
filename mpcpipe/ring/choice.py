"""Which back end computes a product, by operation, dtype and shape. All give the same bits, only the time differs.

    native      the C library, with its best kernel for the shape: the rule where nobody chose
    products    the C library, depthwise convolutions too as products of matrices
    torch       torch's own integer operation, where it has one
    reference   plain torch: small products in integers, large ones in exact float64 digits

A choice holds for this whole process, since all of its workers share one processor (`runtime.kernels` makes it). It
says nothing about tensors that the C library cannot take, nor where there is no C library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache

import torch

from mpcpipe.ring import native, reference
from mpcpipe.ring.shapes import ConvShape

Shape = tuple[int, ...]
BACKENDS = ("native", "products", "torch", "reference")


@dataclass(frozen=True)
class Call:
    """An operation without its values. shape: the convolution's, or those of the two matrices."""

    operator: str
    dtype: torch.dtype
    shape: ConvShape | tuple[Shape, Shape]

    @property
    def inputs(self) -> tuple[Shape, Shape]:
        """Shapes of the two inputs."""
        if isinstance(self.shape, ConvShape):
            s = self.shape
            return {"conv2d": (s.x, s.w), "conv2d_input_grad": (s.y, s.w), "conv2d_weight_grad": (s.x, s.y)}[
                self.operator
            ]
        return self.shape


class Choice:
    """What was chosen: a back end for some calls, and one for all others."""

    def __init__(self) -> None:
        self._of: dict[Call, str] = {}
        self._else = "native"
        self.made = False

    def use(self, backends: Mapping[Call, str], otherwise: str = "native") -> None:
        """From now on, in this process. Raises ValueError for a name that is not in `BACKENDS`."""
        for name in {*backends.values(), otherwise}:
            if name not in BACKENDS:
                raise ValueError(f"there is no back end {name!r}; there are {', '.join(BACKENDS)}")
        self._of, self._else = dict(backends), otherwise
        self.made = bool(backends) or otherwise != "native"

    def of(self, operator: str, dtype: torch.dtype, shape: ConvShape | tuple[Shape, Shape]) -> str:
        """The back end for a call."""
        return self._of.get(Call(operator, dtype, shape), self._else)


@lru_cache(maxsize=1)
def choice() -> Choice:
    """This process's choice."""
    return Choice()


_NOTES: ContextVar[set[Call] | None] = ContextVar("notes", default=None)


@contextmanager
def noted() -> Iterator[set[Call]]:
    """The calls on tensors without values that are made while it is open: what a dry run would compute."""
    calls: set[Call] = set()
    token = _NOTES.set(calls)
    try:
        yield calls
    finally:
        _NOTES.reset(token)


def note(operator: str, dtype: torch.dtype, shape: ConvShape | tuple[Shape, Shape]) -> None:
    """For `noted`."""
    calls = _NOTES.get()
    if calls is not None:
        calls.add(Call(operator, dtype, shape))


def candidates(call: Call) -> tuple[str, ...]:
    """The back ends that have the operation on the CPU."""
    found = ["native"] if native.load() is not None else []
    if (
        found
        and isinstance(call.shape, ConvShape)
        and call.shape.w[1] == 1
        and call.shape.groups == call.shape.w[0] > 1
    ):
        found.append("products")
    if call.operator in ("matmul", "conv2d"):
        found.append("torch")
    return (*found, "reference")


def compute(backend: str, call: Call, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The result by torch's own operation ("torch", where it has one) or the reference."""
    s = call.shape
    if not isinstance(s, ConvShape):
        return first @ second if backend == "torch" else reference.matmul(first, second)
    how = (s.stride, s.padding, s.dilation, s.groups)
    if call.operator == "conv2d":
        if backend == "torch":
            return torch.nn.functional.conv2d(first, second, None, *how)
        return reference.conv2d(first, second, *how)
    if call.operator == "conv2d_input_grad":
        return reference.conv2d_input_grad(first, second, s.x, *how)
    return reference.conv2d_weight_grad(first, second, s.w, *how)
