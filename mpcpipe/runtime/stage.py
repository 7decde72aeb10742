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
from dataclasses import dataclass, field

from mpcpipe.nn.fixed import Fixed, PartialGrad
from mpcpipe.nn.layers import Layer, walk
from mpcpipe.nn.layers.base import Saved, first_trained, full_names, replica, set_parameters, with_factors_shown
from mpcpipe.nn.optim import Optimizer
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.rounds import gather


@dataclass(frozen=True)
class At:
    """Which micro-batch of which step (from 1)."""

    step: int
    microbatch: int


@dataclass
class InFlight:
    """One micro-batch inside a stage: its layers, what each kept, and the gradient of each layer's result."""

    layers: Sequence[Layer]
    saved: list[Saved] = field(default_factory=list)
    dys: list[Fixed] = field(default_factory=list)


async def infer(layers: Sequence[Layer], p: Protocol, scope: str, x: Fixed) -> Fixed:
    """What the layers make of x in evaluation mode; keeps nothing."""
    for layer in layers:
        x, _ = await layer.forward(p.at(f"{scope}/{layer.name}/F"), x, False)
    return x


class Stage:
    """Consecutive layers with their optimizers. `first` says that nobody needs the gradient of its input.

    keep: how many former versions of the weights stay at hand, for schedules that do not wait for an update.
    """

    def __init__(
        self, layers: Sequence[Layer], make_optimizer: Callable[[], Optimizer], first: bool, keep: int = 0
    ) -> None:
        self.layers = list(layers)
        self.keep = keep
        self.spared = first_trained(self.layers) if first else -1
        self.updates = 0
        self._base = 0
        self.optimizers = {leaf.name: make_optimizer() for leaf in walk(self.layers) if leaf.parameters}
        self._former: dict[int, list[Layer]] = {}
        self._in_flight: dict[At, InFlight] = {}
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
        kept = InFlight(self._version(version))
        for layer in kept.layers:
            x, saved = await layer.forward(p.at(f"{at.step}/{layer.name}/{at.microbatch}/F"), x, True)
            kept.saved.append(saved)
        self._in_flight[at] = kept
        return x

    async def input_grad(self, p: Protocol, at: At, dy: Fixed) -> Fixed | None:
        """The gradient of the stage's input; None for the first stage, which stops at its first layer with weights."""
        kept = self._in_flight[at]
        for index in reversed(range(len(kept.layers))):
            if index < self.spared:
                return None
            layer = kept.layers[index]
            kept.dys.insert(0, dy)
            if index == self.spared and not layer.children():
                return None
            dy = await layer.input_grad(p.at(f"{at.step}/{layer.name}/{at.microbatch}/B"), kept.saved[index], dy)
        return None if self.spared >= 0 else dy

    async def weight_grad(self, p: Protocol, at: At) -> None:
        """Add the micro-batch's gradients of the weights to the step's. Forgets the micro-batch."""
        kept = self._in_flight.pop(at)
        first = len(kept.layers) - len(kept.dys)
        for layer, saved, dy in zip(kept.layers[first:], kept.saved[first:], kept.dys, strict=True):
            grads = await layer.weight_grad(p.at(f"{at.step}/{layer.name}/{at.microbatch}/W"), saved, dy)
            with self._lock:
                sums = self._grads.setdefault(at.step, {})
                for name, grad in full_names(layer, grads).items():
                    sums[name] = sums[name] + grad if name in sums else grad

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
