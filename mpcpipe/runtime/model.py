"""From a job to the model that is trained: the torch module, its secure layers, and the way back."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from mpcpipe.nn.chain import Chain, state_dict
from mpcpipe.nn.fixed import Fixed
from mpcpipe.nn.layers import Layer, walk
from mpcpipe.nn.layers.base import set_parameters, with_factors_shown
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.rounds import Operation, gather
from mpcpipe.ring.fixed import FixedPoint


def start_weights(chain: Chain, p: Protocol, fixed: FixedPoint) -> None:
    """Give every layer its initial weights, which are public, as shares."""
    buffers = {"running_mean", "running_var"}
    for layer in walk(chain.layers):
        for key, value in layer.initial.items():
            share = Fixed(p.public(fixed.encode(value, f"initial {layer.name}.{key}")), fixed.fraction_bits)
            (layer.buffers if key in buffers else layer.parameters)[key] = share


async def ready_weights(chain: Chain, p: Protocol) -> None:
    """What an update does with new weights, for those of the start: see `Protocol.show`."""

    async def one(leaf: Layer) -> None:
        named = {f"{leaf.name}.{key}": value for key, value in leaf.parameters.items()}
        set_parameters([leaf], await with_factors_shown(p.at(f"start/{leaf.name}"), leaf, named))

    await gather(*[one(leaf) for leaf in walk(chain.layers)])


def secrets(layers: tuple[Layer, ...]) -> dict[tuple[str, str], Fixed]:
    """Every secret tensor of the model, by (layer, name): parameters and running statistics."""
    return {
        (layer.name, key): value for layer in walk(layers) for key, value in (layer.parameters | layer.buffers).items()
    }


async def reveal_model(p: Protocol, chain: Chain, to: int) -> dict[tuple[str, str], torch.Tensor] | None:
    """Open every weight to party `to`, all in one round. Returns them there as float64, None elsewhere."""
    named = secrets(chain.layers)
    operations: list[Operation[torch.Tensor | None]] = [
        p.reveal(value.data, to, f"model {layer}.{key}") for (layer, key), value in named.items()
    ]
    opened = await gather(*operations)
    if p.party != to:
        return None
    return {
        name: FixedPoint(p.ring, value.fraction_bits).decode(tensor)
        for (name, value), tensor in zip(named.items(), opened, strict=True)
    }


def save_model(path: Path, chain: Chain, values: dict[tuple[str, str], torch.Tensor], steps: int) -> None:
    """Write the revealed model so that the original torch module loads it: `load_state_dict(load_file(path))`."""
    state = {key: value.contiguous() for key, value in state_dict(chain, values, steps).items()}
    save_file(state, path, metadata={"format": "pt"})


def save_shares(path: Path, chain: Chain) -> None:
    """Write this party's shares of the model, readable by its user only. Useless without the other parties'.

    A dealer has none, and writes nothing.
    """
    named = secrets(chain.layers)
    if any(value.data.is_meta for value in named.values()):
        return
    path.touch(mode=0o600)
    bits = {f"{layer}.{key}": str(value.fraction_bits) for (layer, key), value in named.items()}
    save_file({f"{layer}.{key}": value.data.contiguous() for (layer, key), value in named.items()}, path, metadata=bits)
    path.chmod(0o600)
