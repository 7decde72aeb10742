"""Layers without weights that work element by element: ReLU, Flatten, Dropout."""

from __future__ import annotations

import hashlib

import torch

from mpcpipe.nn.fixed import DEFERRED_BITS, Fixed, at_most
from mpcpipe.nn.layers.base import Layer, Saved
from mpcpipe.protocol.base import Protocol
from mpcpipe.ring.bilinear import Shape

COMPARED_BITS = 2
"""Fraction bits above the working precision that a comparison still takes: they come off the range of what it
compares.
"""


class ReLU(Layer):
    """max(x, 0): the sign, then a selection by it; the way back selects by the same bits.

    Cost: forward `nonnegative` and `select`, 9 rounds under replicated3 with 32 compared bits; backward
    `select_again`, 2 rounds.
    Input with more than `working_bits` + 2 fraction bits is truncated first (2 rounds).
    """

    def output_shape(self, shape: Shape) -> Shape:
        """The same."""
        return shape

    async def forward(self, p: Protocol, x: Fixed, training: bool) -> tuple[Fixed, Saved]:
        """y, and the selector."""
        x = await at_most(p, x, self.working_bits + COMPARED_BITS, self.working_bits)
        bits = await p.nonnegative(x.data)
        y, selector = await p.select(bits, x.data)
        return Fixed(y, x.fraction_bits), selector

    async def input_grad(self, p: Protocol, saved: Saved, dy: Fixed) -> Fixed:
        """dy where x was not negative."""
        return Fixed(await p.select_again(saved, dy.data), dy.fraction_bits)


class Flatten(Layer):
    """(batch, ...) -> (batch, features). Local."""

    def output_shape(self, shape: Shape) -> Shape:
        """(batch, product of the rest)."""
        return (shape[0], torch.Size(shape[1:]).numel())

    async def forward(self, p: Protocol, x: Fixed, training: bool) -> tuple[Fixed, Saved]:
        """x reshaped; saves its shape."""
        return x.reshape(x.shape[0], -1), x.shape

    async def input_grad(self, p: Protocol, saved: Saved, dy: Fixed) -> Fixed:
        """dy in the shape of x."""
        return dy.reshape(*saved)


def public_mask(seed: int, scope: str, shape: Shape, p: float) -> torch.Tensor:
    """0 with probability p, else 1 (int64), the same for all who know seed and scope: SHAKE-256 of both, 16 bits an
    element.
    """
    numel = torch.Size(shape).numel()
    stream = hashlib.shake_256(f"dropout|{seed}|{scope}".encode()).digest(2 * numel)
    words = torch.frombuffer(bytearray(stream), dtype=torch.uint8).view(-1, 2).to(torch.int64)
    return (words[:, 0] * 256 + words[:, 1] >= round(p * 65536)).to(torch.int64).reshape(shape)


class Dropout(Layer):
    """torch.nn.Dropout with a mask that everybody may know: it depends on `seed` and the scope, never on data.

    The factor 1 / (1 - p) is a public integer over at most 2^8, so it only adds fraction bits. Cost: none (a
    truncation when the input already has more than `working_bits` fraction bits and p is not 1/2).
    """

    def __init__(self, name: str, p: float, seed: int = 0) -> None:
        super().__init__(name)
        if not 0 <= p < 1:
            raise ValueError(f"{name}: the dropped share is in [0, 1), not {p}")
        self.p, self.seed = p, seed
        self._shift = next((s for s in range(DEFERRED_BITS) if (2**s / (1 - p)).is_integer()), DEFERRED_BITS)

    def output_shape(self, shape: Shape) -> Shape:
        """The same."""
        return shape

    async def _scaled(self, p: Protocol, x: Fixed, factor: torch.Tensor) -> Fixed:
        y = Fixed(p.ring.wrap(x.data * factor), x.fraction_bits + self._shift)
        return await at_most(p, y, self.working_bits + DEFERRED_BITS, self.working_bits)

    async def forward(self, p: Protocol, x: Fixed, training: bool) -> tuple[Fixed, Saved]:
        """x times mask / (1 - p) in training, else x."""
        if not training or self.p == 0:
            return x, None
        factor = public_mask(self.seed, p.scope, x.shape, self.p) * round(2**self._shift / (1 - self.p))
        factor = factor.to(dtype=x.data.dtype, device=x.data.device)
        return await self._scaled(p, x, factor), factor

    async def input_grad(self, p: Protocol, saved: Saved, dy: Fixed) -> Fixed:
        """dy times the same."""
        return dy if saved is None else await self._scaled(p, dy, saved)
