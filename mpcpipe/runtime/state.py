"""All that a training has after a step: every secret tensor, and what its optimizers know.

Names do not depend on the cut: `model/LAYER.PARAMETER`, running statistics among them, and `optimizer/LAYER/...`. What
else a step depends on is worked out from the job and the step's number: the order of rows, dropout masks, the learning
rate.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mpcpipe.checkpoint.shard import Shard
from mpcpipe.errors import CheckpointError
from mpcpipe.nn.chain import Chain
from mpcpipe.nn.fixed import Fixed
from mpcpipe.nn.layers import Layer, walk
from mpcpipe.nn.layers.base import set_parameters, with_factors_shown
from mpcpipe.nn.optim import Optimizer
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.rounds import Operation, gather
from mpcpipe.runtime.model import secrets
from mpcpipe.runtime.stage import Stage


def kept(chain: Chain, stages: Sequence[Stage]) -> dict[str, Fixed]:
    """Every secret tensor, by name."""
    named = {f"model/{layer}.{key}": value for (layer, key), value in secrets(chain.layers).items()}
    for leaf, optimizer in optimizers(stages).items():
        named |= {f"optimizer/{leaf}/{name}": value for name, value in optimizer.state.items()}
    return named


def restore(shard: Shard, p: Protocol, chain: Chain, stages: Sequence[Stage]) -> None:
    """Put what a shard holds where it was. CheckpointError if it is of another model."""
    record = shard.record
    blank = {name: torch.empty(shape, dtype=p.ring.dtype, device="meta") for name, shape in record.blank.items()}
    values = {name: Fixed(tensor, record.fraction_bits[name]) for name, tensor in (blank | dict(shard.tensors)).items()}
    shapes = {f"model/{layer}.{key}": value for (layer, key), value in chain.initial().items()}
    for name, initial in shapes.items():
        found = values.get(name)
        if found is None or found.shape != tuple(initial.shape) or found.data.dtype != p.ring.dtype:
            raise CheckpointError(f"the checkpoint of step {record.step} does not fit the model: see {name}")
    for layer in walk(chain.layers):
        for own in (layer.parameters, layer.buffers):
            own.update({key: values[f"model/{layer.name}.{key}"] for key in own})
    for leaf, optimizer in optimizers(stages).items():
        prefix = f"optimizer/{leaf}/"
        optimizer.state = {name.removeprefix(prefix): v for name, v in values.items() if name.startswith(prefix)}
        optimizer.public = dict(record.public.get(leaf, {}))


async def refreshed(p: Protocol, step: int, chain: Chain, stages: Sequence[Stage]) -> None:
    """New shares for every secret tensor, and the factors shown under new masks.

    Security, Cost: those of `Protocol.refresh`, all tensors side by side; then of `Protocol.show`.
    """

    async def new(name: str, value: Fixed) -> Fixed:
        return Fixed(await p.at(f"refresh {step}/{name}").refresh(value.data), value.fraction_bits)

    places: list[tuple[dict[str, Fixed], str]] = []
    operations: list[Operation[Fixed]] = []
    for layer in walk(chain.layers):
        for own in (layer.parameters, layer.buffers):
            for key, value in own.items():
                places.append((own, key))
                operations.append(new(f"{layer.name}.{key}", value))
    for leaf, optimizer in optimizers(stages).items():
        for key, value in optimizer.state.items():
            places.append((optimizer.state, key))
            operations.append(new(f"{leaf}/{key}", value))
    for (own, key), value in zip(places, await gather(*operations), strict=True):
        own[key] = value

    async def shown(leaf: Layer) -> None:
        named = {f"{leaf.name}.{key}": value for key, value in leaf.parameters.items()}
        set_parameters([leaf], await with_factors_shown(p.at(f"refresh {step}/{leaf.name}/show"), leaf, named))

    await gather(*[shown(leaf) for leaf in walk(chain.layers)])


def optimizers(stages: Sequence[Stage]) -> dict[str, Optimizer]:
    """Each layer's, by its name: the cut does not show."""
    return {leaf: optimizer for stage in stages for leaf, optimizer in stage.optimizers.items()}
