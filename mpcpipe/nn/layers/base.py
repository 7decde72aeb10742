"""What a secure layer is: forward, gradient of the input, gradients of the weights, each an action of its own.

    forward(p, x)           -> y, saved           saved: what the gradients need; kept per micro-batch by the worker
    input_grad(p, saved, dy)  -> dx               the way back down the chain
    weight_grad(p, saved, dy) -> {name: grad}     needed by nobody until the update: fills gaps in a schedule

A layer holds no state of a step but its parameters, so several micro-batches can be in it at once. `p` is a protocol
in a scope of its own for (step, layer, micro-batch, direction).
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from mpcpipe.nn.fixed import Fixed, PartialGrad
from mpcpipe.protocol.base import Protocol
from mpcpipe.ring.bilinear import Shape

Saved = Any


class Layer(ABC):
    """One secure layer.

    name: unique in the model, the torch module's qualified name (`features.0`), so labels do not depend on where the
    model is cut.
    parameters: secret weights by their torch name (`weight`, `bias`). buffers: other secret state (running statistics).
    initial: the values in the clear (float tensors) from which the weights start.
    working_bits: fraction bits that results come back to; the same for all layers of a model.
    factors: the parameters that every micro-batch is multiplied with.
    """

    working_bits: int = 16
    factors: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str) -> None:
        self.name = name
        self.parameters: dict[str, Fixed] = {}
        self.buffers: dict[str, Fixed] = {}
        self.initial: dict[str, torch.Tensor] = {}

    @abstractmethod
    def output_shape(self, shape: Shape) -> Shape:
        """Shape of the result for an input of `shape` (batch first)."""

    @abstractmethod
    async def forward(self, p: Protocol, x: Fixed, training: bool) -> tuple[Fixed, Saved]:
        """The layer's result, and what its gradients need."""

    @abstractmethod
    async def input_grad(self, p: Protocol, saved: Saved, dy: Fixed) -> Fixed:
        """Gradient of the loss by x, given that by y."""

    async def weight_grad(self, p: Protocol, saved: Saved, dy: Fixed) -> dict[str, PartialGrad]:
        """Gradients of the loss by each parameter, summed over the batch, not reduced yet."""
        return {}

    def children(self) -> Sequence[Layer]:
        """The layers that this one is made of."""
        return ()

    @property
    def couples_rows(self) -> bool:
        """In training: does the result for one row depend on the others?"""
        return any(child.couples_rows for child in self.children())


def walk(layers: Sequence[Layer]) -> Iterator[Layer]:
    """All leaf layers, those inside composites included, in order. These hold the parameters, buffers and
    working_bits.
    """
    for layer in layers:
        inner = layer.children()
        if inner:
            yield from walk(inner)
        else:
            yield layer


def full_names(layer: Layer, grads: Mapping[str, PartialGrad]) -> dict[str, PartialGrad]:
    """What `weight_grad` gave, by `layer.parameter`. A composite names its inner layers' gradients so by itself."""
    return dict(grads) if layer.children() else {f"{layer.name}.{key}": grad for key, grad in grads.items()}


async def with_factors_shown(p: Protocol, leaf: Layer, named: Mapping[str, Fixed]) -> dict[str, Fixed]:
    """Parameters of a leaf layer by `layer.parameter`, its factors ready for all micro-batches. See `Protocol.show`."""
    factors = {f"{leaf.name}.{key}" for key in leaf.factors}
    return {
        name: Fixed(await p.show(value.data), value.fraction_bits) if name in factors else value
        for name, value in named.items()
    }


def first_trained(layers: Sequence[Layer]) -> int:
    """The index of the first layer with weights (len if none): nobody needs gradients of its input or before it."""
    trained = (i for i, layer in enumerate(layers) if any(leaf.parameters or leaf.initial for leaf in walk([layer])))
    return next(trained, len(layers))


def replica(layer: Layer) -> Layer:
    """The layer with the weights that it has now, whatever becomes of the original's. Buffers stay common to both."""
    new = copy.copy(layer)
    new.parameters = dict(layer.parameters)
    for name, value in vars(layer).items():
        if isinstance(value, list) and value and all(isinstance(inner, Layer) for inner in value):
            setattr(new, name, [replica(inner) for inner in value])
    return new


def parameters(layers: Sequence[Layer]) -> dict[str, Fixed]:
    """All parameters by `layer.parameter`, as torch's state dict names them."""
    return {f"{layer.name}.{key}": value for layer in walk(layers) for key, value in layer.parameters.items()}


def set_parameters(layers: Sequence[Layer], values: dict[str, Fixed]) -> None:
    """Replace the parameters that are in `values`. Tensors are replaced, never written to: a forward pass may hold
    them.
    """
    for layer in walk(layers):
        for key in layer.parameters:
            full = f"{layer.name}.{key}"
            if full in values:
                layer.parameters[key] = values[full]
