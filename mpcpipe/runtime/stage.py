"""A stage: some consecutive layers of the model, and what each micro-batch leaves in them between forward and backward.

    forward   x  ──> layer ──> layer ──> y          keeps what the gradients need, by micro-batch
    backward  dx <── layer <── layer <── dy         keeps each layer's dy
    weights          dW         dW                  sums of local products over micro-batches, not reduced
    update           W          W                   one reduction a layer and step, all layers side by side

Every use of a layer has a scope of its own, (step, layer, micro-batch, direction), whichever stage it is in: that is
why the result does not depend on the cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mpcpipe.nn.fixed import Fixed, PartialGrad
from mpcpipe.nn.layers import Layer, walk
from mpcpipe.nn.layers.base import Saved, set_parameters
from mpcpipe.nn.optim import Optimizer
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.rounds import gather


@dataclass
class InFlight:
    """One micro-batch inside a stage: what each layer kept, and the gradient of each layer's result."""

    saved: list[Saved] = field(default_factory=list)
    dys: list[Fixed] = field(default_factory=list)


class Stage:
    """Consecutive layers with their optimizers. `first` says that nobody needs the gradient of its input."""

    def __init__(self, layers: Sequence[Layer], make_optimizer: Callable[[], Optimizer], first: bool) -> None:
        self.layers = list(layers)
        self.first = first
        self.optimizers = {leaf.name: make_optimizer() for leaf in walk(self.layers) if leaf.parameters}
        self.in_flight: dict[int, InFlight] = {}
        self.grads: dict[str, dict[str, PartialGrad]] = {}

    async def infer(self, p: Protocol, scope: str, x: Fixed) -> Fixed:
        """The result in evaluation mode; keeps nothing."""
        for layer in self.layers:
            x, _ = await layer.forward(p.at(f"{scope}/{layer.name}/F"), x, False)
        return x

    async def forward(self, p: Protocol, step: int, microbatch: int, x: Fixed) -> Fixed:
        """The result of the stage for one micro-batch, in training mode."""
        kept = InFlight()
        for layer in self.layers:
            x, saved = await layer.forward(p.at(f"{step}/{layer.name}/{microbatch}/F"), x, True)
            kept.saved.append(saved)
        self.in_flight[microbatch] = kept
        return x

    async def input_grad(self, p: Protocol, step: int, microbatch: int, dy: Fixed) -> Fixed | None:
        """The gradient of the stage's input; None for the first stage, whose first layer is spared."""
        kept = self.in_flight[microbatch]
        dx: Fixed | None = dy
        for index in reversed(range(len(self.layers))):
            layer = self.layers[index]
            assert dx is not None
            kept.dys.insert(0, dx)
            if index == 0 and self.first and not layer.children():
                return None
            dx = await layer.input_grad(p.at(f"{step}/{layer.name}/{microbatch}/B"), kept.saved[index], dx)
        return dx

    async def weight_grad(self, p: Protocol, step: int, microbatch: int) -> None:
        """Add the micro-batch's gradients of the weights to the step's. Forgets the micro-batch."""
        kept = self.in_flight.pop(microbatch)
        for layer, saved, dy in zip(self.layers, kept.saved, kept.dys, strict=True):
            grads = await layer.weight_grad(p.at(f"{step}/{layer.name}/{microbatch}/W"), saved, dy)
            for name, grad in _by_leaf(layer, grads):
                sums = self.grads.setdefault(name[0], {})
                sums[name[1]] = sums[name[1]] + grad if name[1] in sums else grad

    async def update(self, p: Protocol, step: int, learning_rate: float, batch_size: int) -> None:
        """New weights from the step's gradients. All layers side by side: the rounds of one."""

        async def one(leaf: Layer) -> None:
            named = {f"{leaf.name}.{key}": value for key, value in leaf.parameters.items()}
            grads = {f"{leaf.name}.{key}": grad for key, grad in self.grads[leaf.name].items()}
            at = p.at(f"{step}/{leaf.name}/U")
            new = await self.optimizers[leaf.name].step(at, named, grads, learning_rate, batch_size)
            set_parameters([leaf], new)

        await gather(*[one(leaf) for leaf in walk(self.layers) if leaf.name in self.grads])
        self.grads = {}


def _by_leaf(layer: Layer, grads: dict[str, PartialGrad]) -> Iterable[tuple[tuple[str, str], PartialGrad]]:
    """((leaf name, parameter), gradient): a composite names its inner layers' gradients `layer.parameter`."""
    for key, grad in grads.items():
        leaf, _, parameter = key.rpartition(".")
        yield (leaf or layer.name, parameter), grad
