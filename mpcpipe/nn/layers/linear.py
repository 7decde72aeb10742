"""Layers with weights that are one bilinear operation: Linear and Conv2d.

Forward: one product joined with its truncation, the bias added to the product before it is reduced. Gradient of the
input: one such product. Gradients of the weights: local products, reduced once a step by the optimizer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from mpcpipe.nn.fixed import Fixed, PartialGrad, kept, product, summed
from mpcpipe.nn.layers.base import Layer, Saved
from mpcpipe.protocol.base import Protocol
from mpcpipe.ring.bilinear import Bilinear, Conv2dInputGrad, Conv2dWeightGrad, MatMul, Pair, Shape
from mpcpipe.ring.bilinear import Conv2d as ConvOp


@dataclass
class Operands:
    """What the gradients of a bilinear layer need: both arguments of its product, as the forward pass saw them; and dy
    as input_grad saw it, if it came first.
    """

    x: Fixed
    weight: Fixed
    dy: Fixed | None = None


class Weighted(Layer, ABC):
    """y = op(x, weight) + bias.

    Cost: forward 3 rounds (2 for up to 2^14 results), one product; input_grad as many, one product; weight_grad no
    round, one local product.
    """

    factors: ClassVar[tuple[str, ...]] = ("weight",)

    def __init__(self, name: str, bias: bool) -> None:
        super().__init__(name)
        self.has_bias = bias

    @abstractmethod
    def _op(self) -> Bilinear:
        """(x, weight) -> y."""

    @abstractmethod
    def _input_op(self, x: Shape) -> Bilinear:
        """(dy, weight) -> dx."""

    @abstractmethod
    async def _weight_product(self, p: Protocol, x: Fixed, dy: Fixed) -> PartialGrad:
        """The gradient of the weight."""

    @abstractmethod
    def _bias(self) -> Fixed | None:
        """The bias, shaped to be added to y: (1, out, 1, 1...)."""

    async def forward(self, p: Protocol, x: Fixed, training: bool) -> tuple[Fixed, Saved]:
        """y at `working_bits`. 2 or 3 rounds."""
        weight = self.parameters["weight"]
        if training:
            x, weight = kept(p, x), kept(p, weight)
        y = await product(p, self._op(), x, weight, self.working_bits, self._bias())
        return y, Operands(x, weight)

    async def input_grad(self, p: Protocol, saved: Saved, dy: Fixed) -> Fixed:
        """dx at `working_bits`. 2 or 3 rounds."""
        saved.dy = kept(p, dy)
        return await product(p, self._input_op(saved.x.shape), saved.dy, saved.weight, self.working_bits)

    async def weight_grad(self, p: Protocol, saved: Saved, dy: Fixed) -> dict[str, PartialGrad]:
        """Partials. No round."""
        grads = {"weight": await self._weight_product(p, saved.x, dy if saved.dy is None else saved.dy)}
        if self.has_bias:
            dims = tuple(d for d in range(len(dy.shape)) if d != 1)
            grads["bias"] = PartialGrad(p.partial(summed(dy, dims).data), dy.fraction_bits)
        return grads


class Linear(Weighted):
    """torch.nn.Linear for x (batch, in_features). weight (out_features, in_features), bias (out_features,)."""

    def __init__(self, name: str, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(name, bias)
        self.in_features, self.out_features = in_features, out_features

    def output_shape(self, shape: Shape) -> Shape:
        """(batch, out_features)."""
        if len(shape) != 2 or shape[1] != self.in_features:
            raise ValueError(f"{self.name} takes (batch, {self.in_features}), not {tuple(shape)}")
        return (shape[0], self.out_features)

    def _op(self) -> Bilinear:
        return MatMul(transpose_b=True)

    def _input_op(self, x: Shape) -> Bilinear:
        return MatMul()

    async def _weight_product(self, p: Protocol, x: Fixed, dy: Fixed) -> PartialGrad:
        z = await p.multiply(MatMul(transpose_a=True), dy.data, x.data)
        return PartialGrad(z, dy.fraction_bits + x.fraction_bits)

    def _bias(self) -> Fixed | None:
        return self.parameters["bias"].reshape(1, -1) if self.has_bias else None


class Conv2d(Weighted):
    """torch.nn.Conv2d for x (batch, in_channels, height, width). weight (out, in / groups, kh, kw), bias (out,)."""

    def __init__(
        self,
        name: str,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(name, bias)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.conv = ConvOp(stride, padding, dilation, groups)
        self.weight_shape: Shape = (out_channels, in_channels // groups, *kernel_size)

    def output_shape(self, shape: Shape) -> Shape:
        """(batch, out_channels, height', width')."""
        if len(shape) != 4 or shape[1] != self.in_channels:
            raise ValueError(f"{self.name} takes (batch, {self.in_channels}, height, width), not {tuple(shape)}")
        return self.conv.shape(shape, self.weight_shape)

    def _op(self) -> Bilinear:
        return self.conv

    def _input_op(self, x: Shape) -> Bilinear:
        return Conv2dInputGrad(self.conv, x)

    async def _weight_product(self, p: Protocol, x: Fixed, dy: Fixed) -> PartialGrad:
        z = await p.multiply(Conv2dWeightGrad(self.conv, self.weight_shape), x.data, dy.data)
        return PartialGrad(z, dy.fraction_bits + x.fraction_bits)

    def _bias(self) -> Fixed | None:
        return self.parameters["bias"].reshape(1, -1, 1, 1) if self.has_bias else None
