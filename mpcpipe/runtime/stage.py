"""A stage: some consecutive layers of the model, and what each micro-batch leaves in them between forward and backward.

    forward   x  ──> layer ──> layer ──> y          keeps what the gradients need, by micro-batch
    backward  dx <── layer <── layer <── dy         keeps each layer's dy
    weights          dW         dW                  sums of local products over micro-batches, not reduced
    update           W          W                   one reduction a layer and step, all layers side by side

Every use of a layer has a scope of its own, (step, layer, micro-batch, direction), whichever stage it is in: that is
why the result does not depend on the cut. Several workers (slots) may be in a stage at once, with different
micro-batches; an update happens when no micro-batch of its step is under way any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mpcpipe.nn.fixed import Fixed, PartialGrad
from mpcpipe.nn.layers import Layer, walk
from mpcpipe.nn.layers.base import first_trained, replica, set_parameters, with_factors_shown
from mpcpipe.nn.optim import Optimizer
from mpcpipe.nn.pieces import Passage, add_to, join, passages, runs, split
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.rounds import Operation, Overlap, gather


@dataclass(frozen=True)
class At:
    """Which micro-batch of which step (from 1)."""

    step: int
    microbatch: int


async def infer(layers: Sequence[Layer], p: Protocol, scope: str, x: Fixed) -> Fixed:
    """What the layers make of x in evaluation mode; keeps nothing."""
    for layer in layers:
        x, _ = await layer.forward(p.at(f"{scope}/{layer.name}/F"), x, False)
    return x


class Stage:
    """Consecutive layers with their optimizers. `first` says that nobody needs the gradient of its input.

    keep: how many former versions of the weights stay at hand, for schedules that do not wait for an update.
    pieces: in how many pieces a micro-batch goes through large layers (`nn.pieces`). overlap: one of them computes
    while another's messages travel; otherwise they share their rounds. The result is the same.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        make_optimizer: Callable[[], Optimizer],
        first: bool,
        keep: int = 0,
        pieces: int = 1,
        overlap: bool = True,
    ) -> None:
        self.layers = list(layers)
        self.keep, self.pieces, self.overlap = keep, pieces, overlap
        self.spared = first_trained(self.layers) if first else -1
        self.updates = 0
        self._base = 0
        self.optimizers = {leaf.name: make_optimizer() for leaf in walk(self.layers) if leaf.parameters}
        self._former: dict[int, list[Layer]] = {}
        self._in_flight: dict[At, list[list[Passage]]] = {}
        self._grads: dict[int, dict[str, PartialGrad]] = {}
        self._lock = threading.Lock()

    def begin(self) -> None:
        """A schedule begins: from now on versions count from here."""
        self._base = self.updates
        self._former.clear()

    def _version(self, version: int | None) -> list[Layer]:
        if version is None or self._base + version == self.updates:
            return self.layers
        return self._former[self._base + version]

    async def forward(self, p: Protocol, at: At, x: Fixed, version: int | None = None) -> Fixed:
        """The result of the stage for one micro-batch, in training mode, with the weights after `version` updates
        since `begin`."""
        layers, kept = self._version(version), []
        for run in runs(layers, x.shape, self.pieces):
            mine = passages(layers[run.first : run.end], run.first, run.pieces, at.microbatch)
            both = zip(mine, split(x, run.pieces), strict=True)
            x = join(await self._together([one.forward(p, at.step, part) for one, part in both]))
            kept.append(mine)
        self._in_flight[at] = kept
        return x

    async def input_grad(self, p: Protocol, at: At, dy: Fixed) -> Fixed | None:
        """The gradient of the stage's input; None for the first stage, which stops at its first layer with weights."""
        for mine in reversed(self._in_flight[at]):
            both = zip(mine, split(dy, len(mine)), strict=True)
            dxs = await self._together([one.input_grad(p, at.step, part, self.spared) for one, part in both])
            if dxs[0] is None:
                return None
            dy = join(dxs)
        return None if self.spared >= 0 else dy

    async def weight_grad(self, p: Protocol, at: At) -> None:
        """Add the micro-batch's gradients of the weights to the step's. Forgets the micro-batch."""
        for mine in self._in_flight.pop(at):
            for grads in await self._together([one.weight_grad(p, at.step) for one in mine]):
                with self._lock:
                    add_to(self._grads.setdefault(at.step, {}), grads)

    async def _together(self, pieces: Sequence[Operation[Any]]) -> list[Any]:
        """The results of all pieces."""
        if len(pieces) > 1 and self.overlap:
            return await Overlap(pieces)
        return await gather(*pieces)

    async def update(self, p: Protocol, step: int, learning_rate: float, batch_size: int) -> None:
        """New weights from the step's gradients. All layers side by side: the rounds of one."""
        sums = self._grads.pop(step, {})
        if self.keep:
            self._former[self.updates] = [replica(layer) for layer in self.layers]
            self._former.pop(self.updates - self.keep, None)

        async def one(leaf: Layer) -> None:
            named = {f"{leaf.name}.{key}": value for key, value in leaf.parameters.items()}
            grads = {name: sums[name] for name in named if name in sums}
            at = p.at(f"{step}/{leaf.name}/U")
            new = await self.optimizers[leaf.name].step(at, named, grads, learning_rate, batch_size)
            set_parameters([leaf], await with_factors_shown(at, leaf, new))

        await gather(*[one(leaf) for leaf in walk(self.layers) if leaf.name in self.optimizers])
        self.updates += 1
