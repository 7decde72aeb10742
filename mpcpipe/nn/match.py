"""Which secure layer a torch module or function is, and with which options it cannot be one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from mpcpipe.errors import ModelError
from mpcpipe.nn.layers import (
    AdaptiveAvgPool2d,
    AvgPool2d,
    BatchNorm,
    Conv2d,
    Dropout,
    Flatten,
    Layer,
    Linear,
    MaxPool2d,
    ReLU,
)
from mpcpipe.ring.bilinear import Pair, Shape


@dataclass(frozen=True)
class Found:
    """A module to be matched. where: its name and type, for messages. before, after: shapes with the batch in front."""

    name: str
    where: str
    module: Any
    before: Shape
    after: Shape
    seed: int

    def refuse(self, unless: bool, option: str, instead: str) -> None:
        """ModelError that names the option, unless it is fine."""
        if not unless:
            raise ModelError(f"{self.where}: {option} cannot be trained securely; {instead}")


Maker = Callable[[Found], Layer | None]


def _pair(value: int | Sequence[int]) -> Pair:
    first, second = (value, value) if isinstance(value, int) else value
    return first, second


def _with_state(layer: Layer, module: nn.Module) -> Layer:
    """The layer, with room (tensors without data) for each of the module's weights and running statistics."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    layer.initial = {key: value.detach() for key, value in state.items() if key != "num_batches_tracked"}
    return layer


def _linear(found: Found) -> Layer:
    m = found.module
    found.refuse(len(found.before) == 2, f"an input of shape (batch, {_dims(found.before)})", "put a Flatten before it")
    return _with_state(Linear(found.name, m.in_features, m.out_features, m.bias is not None), m)


def _conv2d(found: Found) -> Layer:
    m = found.module
    found.refuse(m.padding_mode == "zeros", f"padding_mode={m.padding_mode!r}", 'use "zeros"')
    kernel, dilation = _pair(m.kernel_size), _pair(m.dilation)
    if m.padding == "same":
        total = [dilation[i] * (kernel[i] - 1) for i in (0, 1)]
        found.refuse(total[0] % 2 == total[1] % 2 == 0, 'padding="same" of an even kernel', "use an odd kernel")
        padding = (total[0] // 2, total[1] // 2)
    else:
        padding = (0, 0) if m.padding == "valid" else _pair(m.padding)
    layer = Conv2d(
        found.name,
        m.in_channels,
        m.out_channels,
        kernel,
        _pair(m.stride),
        padding,
        dilation,
        m.groups,
        m.bias is not None,
    )
    return _with_state(layer, m)


def _batch_norm(found: Found) -> Layer:
    m = found.module
    dims = 2 if isinstance(m, nn.BatchNorm1d) else 4
    found.refuse(
        len(found.before) == dims, f"an input of shape (batch, {_dims(found.before)})", "use BatchNorm2d on images"
    )
    found.refuse(m.track_running_stats, "track_running_stats=False", "keep the running statistics (the default)")
    found.refuse(m.affine, "affine=False", "keep weight and bias (the default)")
    found.refuse(m.momentum is not None, "momentum=None (a cumulative average)", "give a number, such as 0.1")
    return _with_state(BatchNorm(found.name, m.num_features, m.eps, m.momentum), m)


def _avg_pool(found: Found) -> Layer:
    m = found.module
    padding = _pair(m.padding)
    found.refuse(not m.ceil_mode, "ceil_mode=True", "use False, with padding if the edge matters")
    counted = m.count_include_pad or padding == (0, 0)
    found.refuse(counted, "count_include_pad=False", "use True, or no padding")
    found.refuse(m.divisor_override is None, f"divisor_override={m.divisor_override}", "leave it out")
    return AvgPool2d(found.name, _pair(m.kernel_size), _pair(m.stride), padding)


def _max_pool(found: Found) -> Layer:
    m = found.module
    found.refuse(not m.ceil_mode, "ceil_mode=True", "use False, with padding if the edge matters")
    found.refuse(_pair(m.dilation) == (1, 1), f"dilation={m.dilation}", "use 1")
    return MaxPool2d(found.name, _pair(m.kernel_size), _pair(m.stride), _pair(m.padding))


def _adaptive(found: Found) -> Layer:
    wanted = found.module.output_size
    sizes = (wanted, wanted) if wanted is None or isinstance(wanted, int) else wanted
    h, w = (found.before[2 + i] if size is None else size for i, size in enumerate(sizes))
    fits = found.before[2] % h == 0 and found.before[3] % w == 0
    windows = f"windows of unequal size (an input of {found.before[2:]} to {(h, w)})"
    found.refuse(fits, windows, "use AvgPool2d with a window and stride of your choice")
    return AdaptiveAvgPool2d(found.name, (h, w))


def _dropout(found: Found) -> Layer | None:
    p = found.module.p
    found.refuse(p < 1, f"p={p}", "use less than 1")
    return Dropout(found.name, p, found.seed) if p else None


def _reshape(found: Found) -> Layer | None:
    if found.after == found.before:
        return None
    flat = (found.before[0], torch.Size(found.before[1:]).numel())
    shapes = f"a reshape from (batch, {_dims(found.before)}) to (batch, {_dims(found.after)})"
    found.refuse(found.after == flat, shapes, "only Flatten, to (batch, features), may change the shape")
    return Flatten(found.name)


def _dims(shape: Shape) -> str:
    return ", ".join(map(str, shape[1:]))


class Reshape(nn.Module):
    """Stands for view, reshape and flatten where they are called as functions."""


MAKERS: dict[type[nn.Module], Maker] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.ReLU: lambda found: ReLU(found.name),
    nn.AvgPool2d: _avg_pool,
    nn.MaxPool2d: _max_pool,
    nn.AdaptiveAvgPool2d: _adaptive,
    nn.Dropout: _dropout,
    nn.Flatten: _reshape,
    nn.Identity: lambda found: None,
    Reshape: _reshape,
}


def maker_of(module: nn.Module) -> Maker | None:
    """What makes the secure layer for a module of this type, or of a subclass that computes the same; else None."""
    for kind, maker in MAKERS.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return maker
    return None


# Functions and tensor methods, as the module that does the same. Arguments after the input, under torch's names.


def _relu(inplace: bool = False) -> nn.Module:
    return nn.ReLU(inplace)


def _relu_in_place() -> nn.Module:
    return nn.ReLU(inplace=True)


def _function_max_pool(
    kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: Any = False,
    return_indices: Any = False,
) -> nn.Module:  # fmt: skip
    return nn.MaxPool2d(kernel_size, stride or None, padding, dilation, return_indices, ceil_mode)


def _function_dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> nn.Module:
    return nn.Dropout(p if training else 0.0, inplace)


def _same(*args: Any, **kwargs: Any) -> nn.Module:
    return nn.Identity()


def _reshaped(*args: Any, **kwargs: Any) -> nn.Module:
    return Reshape()


FUNCTIONS: dict[Any, Callable[..., nn.Module]] = {
    **dict.fromkeys((F.relu, torch.relu, "relu"), _relu),
    **dict.fromkeys((F.relu_, torch.relu_, "relu_"), _relu_in_place),
    **dict.fromkeys((F.max_pool2d, torch.max_pool2d), _function_max_pool),
    F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    **dict.fromkeys((F.dropout, torch.dropout), _function_dropout),
    **dict.fromkeys((torch.flatten, "flatten", "view", torch.reshape, "reshape"), _reshaped),
    "contiguous": _same,
}


def as_module(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> nn.Module | None:
    """The module that does the same as the function or tensor method `target` with these arguments, if there is one."""
    if target not in FUNCTIONS:
        return None
    options = {key: value for key, value in kwargs.items() if key not in ("input", "self")}
    return FUNCTIONS[target](*(args if len(options) < len(kwargs) else args[1:]), **options)


def is_add(target: Any) -> bool:
    """Is this an addition, in any of its forms?"""
    return target in (operator.add, operator.iadd, torch.add, "add", "add_")


def adds_in_place(target: Any) -> bool:
    """Does this addition overwrite its first operand?"""
    return target in (operator.iadd, "add_")


def is_plain(op: str, target: Any, args: Sequence[Any]) -> bool:
    """Does this ask for sizes and types only, which are public?"""
    if op == "call_method":
        return target in ("size", "dim", "numel", "ndimension")
    return target is getattr and cast(str, args[1]) in ("shape", "ndim", "dtype", "device")
