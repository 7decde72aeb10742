"""Layers made of layers: the residual block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpcpipe.nn.fixed import DEFERRED_BITS, Fixed, PartialGrad, added, at_most
from mpcpipe.nn.layers.base import Layer, Saved, full_names
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.rounds import gather
from mpcpipe.ring.bilinear import Shape


def _inner(p: Protocol, layer: Layer) -> Protocol:
    return p.at(f"{p.scope}/{layer.name}")


async def _forward(p: Protocol, layers: Sequence[Layer], x: Fixed, training: bool) -> tuple[Fixed, list[Any]]:
    kept = []
    for layer in layers:
        x, saved = await layer.forward(_inner(p, layer), x, training)
        kept.append(saved)
    return x, kept


async def _input_grad(
    p: Protocol, layers: Sequence[Layer], kept: Sequence[Any], dy: Fixed
) -> tuple[Fixed, list[Fixed]]:
    """The gradient of the chain's input, and of each layer's output."""
    outer = []
    for layer, saved in zip(reversed(layers), reversed(kept), strict=True):
        outer.append(dy)
        dy = await layer.input_grad(_inner(p, layer), saved, dy)
    return dy, outer[::-1]


class Residual(Layer):
    """body(x) + shortcut(x), side by side in the same rounds. An empty shortcut is x itself.

    The inner layers own their parameters; `walk` finds them. `weight_grad` gives their gradients as `layer.parameter`,
    after `input_grad` has been called with the same `saved`.
    """

    def __init__(self, name: str, body: Sequence[Layer], shortcut: Sequence[Layer] = ()) -> None:
        super().__init__(name)
        if not body:
            raise ValueError(f"{name}: a residual block needs a body")
        self.body, self.shortcut = list(body), list(shortcut)

    def children(self) -> Sequence[Layer]:
        """Body, then shortcut."""
        return [*self.body, *self.shortcut]

    def output_shape(self, shape: Shape) -> Shape:
        """Of the body, which must be that of the shortcut."""
        shapes = []
        for chain in (self.body, self.shortcut):
            inner = shape
            for layer in chain:
                inner = layer.output_shape(inner)
            shapes.append(tuple(inner))
        if shapes[0] != shapes[1]:
            raise ValueError(f"{self.name} adds {shapes[0]} to {shapes[1]}")
        return shapes[0]

    async def _sum(self, p: Protocol, x: Fixed, y: Fixed) -> Fixed:
        bits = self.body[0].working_bits
        return await at_most(p, added(p, x, y), bits + DEFERRED_BITS, bits)

    async def forward(self, p: Protocol, x: Fixed, training: bool) -> tuple[Fixed, Saved]:
        """The sum of both."""
        (y, body), (z, shortcut) = await gather(
            _forward(p, self.body, x, training), _forward(p, self.shortcut, x, training)
        )
        return await self._sum(p, y, z), {"body": body, "shortcut": shortcut}

    async def input_grad(self, p: Protocol, saved: Saved, dy: Fixed) -> Fixed:
        """The sum of both ways back. Notes in `saved` what each inner layer's weight gradient needs."""
        (dx, body), (dz, shortcut) = await gather(
            _input_grad(p, self.body, saved["body"], dy), _input_grad(p, self.shortcut, saved["shortcut"], dy)
        )
        saved["grads"] = [*body, *shortcut]
        return await self._sum(p, dx, dz)

    async def weight_grad(self, p: Protocol, saved: Saved, dy: Fixed) -> dict[str, PartialGrad]:
        """The inner layers' gradients, by `layer.parameter` with the layer's full name."""
        if "grads" not in saved:
            raise ValueError(
                f"{self.name}: the way back (input_grad) comes before the weight gradients of a residual block"
            )
        found: dict[str, PartialGrad] = {}
        for layer, kept, dz in zip(self.children(), [*saved["body"], *saved["shortcut"]], saved["grads"], strict=True):
            grads = await layer.weight_grad(_inner(p, layer), kept, dz)
            found |= full_names(layer, grads)
        return found
