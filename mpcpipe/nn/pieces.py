"""A micro-batch in pieces: large layers are worked on so many rows at a time, one piece computing while another's
messages travel.

    conv ── relu ── pool │ conv ── relu │ pool ── linear ── ...
    ══════ pieces ══════ │ ═══ pieces ══│ ─── whole ────────

A piece has scopes of its own, and with them masks of its own: the number of pieces is part of what is computed, as that
of micro-batches is, and whether they overlap is not. Small results stay whole, where a piece would be all rounds and no
bytes, and so do layers for which rows are not independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch

from mpcpipe.nn.fixed import Fixed, PartialGrad
from mpcpipe.nn.grain import pieces_for
from mpcpipe.nn.layers.base import Layer, Saved, full_names
from mpcpipe.protocol.base import Protocol
from mpcpipe.ring.bilinear import Shape


@dataclass(frozen=True)
class Run:
    """Layers `first` to `end` (without it), which are worked on in so many pieces."""

    first: int
    end: int
    pieces: int


def row_numel(layer: Layer, shape: Shape) -> int:
    """Elements of a row of the layer's result, which has this shape without its rows, for `pieces_for`."""
    return 0 if layer.couples_rows else torch.Size(shape).numel()


def runs(layers: Sequence[Layer], shape: Shape, wanted: int) -> list[Run]:
    """The layers for an input of this shape, neighbours with the same number of pieces together."""
    counts = []
    for layer in layers:
        shape = layer.output_shape(shape)
        counts.append(pieces_for(shape[0] * row_numel(layer, shape[1:]), shape[0], wanted))
    found, first = [], 0
    for pieces, group in groupby(counts):
        end = first + len(list(group))
        found.append(Run(first, end, pieces))
        first = end
    return found


def split(x: Fixed, pieces: int) -> list[Fixed]:
    """Its rows in pieces, the larger ones first."""
    if pieces == 1:
        return [x]
    return [Fixed(piece.contiguous(), x.fraction_bits) for piece in x.data.tensor_split(pieces, 1)]


def join(pieces: Sequence[Fixed]) -> Fixed:
    """The inverse."""
    if len(pieces) == 1:
        return pieces[0]
    (bits,) = {piece.fraction_bits for piece in pieces}
    return Fixed(torch.cat([piece.data for piece in pieces], 1), bits)


@dataclass
class Passage:
    """One piece in some consecutive layers: what each kept, and the gradient of each one's result.

    layers: as they were in the forward pass. first: number of the first in its stage. name: of the piece, for scopes.
    """

    layers: Sequence[Layer]
    first: int
    name: str
    saved: list[Saved] = field(default_factory=list)
    dys: list[Fixed] = field(default_factory=list)

    async def forward(self, p: Protocol, step: int, x: Fixed) -> Fixed:
        """The last layer's result, in training mode."""
        for layer in self.layers:
            x, saved = await layer.forward(p.at(f"{step}/{layer.name}/{self.name}/F"), x, True)
            self.saved.append(saved)
        return x

    async def input_grad(self, p: Protocol, step: int, dy: Fixed, spared: int) -> Fixed | None:
        """The gradient of the first layer's input. None where that is of no use: up to layer `spared`."""
        for index in reversed(range(len(self.layers))):
            layer, at = self.layers[index], self.first + index
            if at < spared:
                return None
            self.dys.insert(0, dy)
            if at == spared and not layer.children():
                return None
            dy = await layer.input_grad(p.at(f"{step}/{layer.name}/{self.name}/B"), self.saved[index], dy)
        return dy

    async def weight_grad(self, p: Protocol, step: int) -> dict[str, PartialGrad]:
        """The gradients of the weights, by `layer.parameter`."""
        first = len(self.layers) - len(self.dys)
        found: dict[str, PartialGrad] = {}
        for layer, saved, dy in zip(self.layers[first:], self.saved[first:], self.dys, strict=True):
            grads = await layer.weight_grad(p.at(f"{step}/{layer.name}/{self.name}/W"), saved, dy)
            found |= full_names(layer, grads)
        return found


def passages(layers: Sequence[Layer], first: int, pieces: int, microbatch: int) -> list[Passage]:
    """One for each piece of a micro-batch, before anything is computed."""
    names = [str(microbatch)] if pieces == 1 else [f"{microbatch}.{piece}" for piece in range(pieces)]
    return [Passage(layers, first, name) for name in names]


def add_to(sums: dict[str, PartialGrad], grads: Mapping[str, PartialGrad]) -> None:
    """The gradients of one more piece or micro-batch."""
    for name, grad in grads.items():
        sums[name] = sums[name] + grad if name in sums else grad
