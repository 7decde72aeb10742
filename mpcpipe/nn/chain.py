"""A converted model: secure layers in a row, and the way back to the torch module that they came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from mpcpipe.nn.layers import Layer, walk
from mpcpipe.ring.bilinear import Shape


@dataclass(frozen=True)
class Chain:
    """Secure layers, each taking the result of the one before.

    input_shape and output_shapes (one a layer) are without the batch. template: the original state dict in its order,
    as meta tensors (shape and dtype, no values). kept: its entries that are not secret (`num_batches_tracked`, unused
    buffers).
    """

    layers: tuple[Layer, ...]
    input_shape: Shape
    output_shapes: tuple[Shape, ...]
    template: Mapping[str, torch.Tensor]
    kept: Mapping[str, torch.Tensor]

    @property
    def output_shape(self) -> Shape:
        """Shape of the last layer's result, without the batch."""
        return self.output_shapes[-1]

    def initial(self) -> dict[tuple[str, str], torch.Tensor]:
        """The values from which the weights and running statistics start, by (layer name, parameter)."""
        return {(layer.name, key): value for layer in walk(self.layers) for key, value in layer.initial.items()}


def state_dict(chain: Chain, values: Mapping[tuple[str, str], torch.Tensor], steps: int = 0) -> dict[str, torch.Tensor]:
    """Revealed values, by (layer name, parameter), as a state dict that the original module loads with strict=True.

    `steps` is the number of training steps since the conversion, added to the batches that BatchNorm has counted.
    A value that is absent, unknown or of another shape is a ValueError.
    """
    found = {f"{layer}.{key}": value for (layer, key), value in values.items()}
    if unknown := sorted(set(found) - (set(chain.template) - set(chain.kept))):
        raise ValueError(f"the model has no {unknown[0]!r}")
    state: dict[str, torch.Tensor] = {}
    for key, like in chain.template.items():
        if key in chain.kept:
            counted = steps if key.endswith("num_batches_tracked") else 0
            state[key] = chain.kept[key] + counted if counted else chain.kept[key].clone()
            continue
        if key not in found:
            raise ValueError(f"the values lack {key!r}")
        if found[key].shape != like.shape:
            raise ValueError(f"{key} has shape {tuple(found[key].shape)}; the model's is {tuple(like.shape)}")
        state[key] = found[key].to(like.dtype)
    return state
