"""Secure numbers in tests: from torch to shares of every party and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mpcpipe.nn.fixed import Fixed, PartialGrad
from mpcpipe.nn.layers import Layer, walk
from mpcpipe.protocol.additive2 import Additive2
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.plaintext import Plaintext
from mpcpipe.protocol.replicated3 import Replicated3
from mpcpipe.protocol.replicated4 import Replicated4
from mpcpipe.ring.fixed import FixedPoint
from tests import simulate

F = 16
UNIT = 2.0**-F
KINDS = [Plaintext, Replicated3, Additive2, Replicated4]


def parties(kind: type[Protocol], k: int = 64) -> list[Protocol]:
    """All parties over Z_2^k, 32 compared bits."""
    return simulate.parties(kind, k, 32)


def secret(ps: list[Protocol], value: torch.Tensor, bits: int = F) -> list[Fixed]:
    """Shares of `value`, one Fixed a party."""
    encoded = FixedPoint(ps[0].ring, bits).encode(value, "test")
    fresh = [p.at(f"secret{len(ps[0].tape.used)}") for p in ps]
    return [Fixed(x, bits) for x in simulate.share(fresh, encoded)]


def opened(ps: list[Protocol], values: list[Fixed]) -> torch.Tensor:
    """The numbers, as float64."""
    bits = {value.fraction_bits for value in values}
    assert len(bits) == 1
    fresh = [p.at(f"opened{len(ps[0].tape.used)}") for p in ps]
    raw = simulate.reveal(fresh, [value.data for value in values])
    return FixedPoint(ps[0].ring, bits.pop()).decode(raw)


def reduced(ps: list[Protocol], grads: list[PartialGrad]) -> torch.Tensor:
    """The sum that a partial gradient stands for."""
    fresh = [p.at(f"reduced{len(ps[0].tape.used)}") for p in ps]
    out = simulate.together(fresh, lambda p: p.reduce(grads[p.party].data)).results
    return opened(ps, [Fixed(x, g.fraction_bits) for x, g in zip(out, grads, strict=True)])


def run(ps: list[Protocol], scope: str, operation: Callable[[Protocol], Any]) -> simulate.Outcome:
    """operation(p) at every party, in `scope`."""
    return simulate.together([p.at(scope) for p in ps], operation)


def give(ps: list[Protocol], models: list[list[Layer]], values: dict[str, torch.Tensor], buffers: bool = False) -> None:
    """Share torch's parameters (or buffers) into each party's copy of the layers."""
    for copies in zip(*[list(walk(model)) for model in models], strict=True):
        for full, value in values.items():
            name, _, key = full.rpartition(".")
            if name == copies[0].name:
                for layer, held in zip(copies, secret(ps, value.detach()), strict=True):
                    (layer.buffers if buffers else layer.parameters)[key] = held


def right_rounds(kind: type[Protocol], measured: int, under_replicated3: int) -> bool:
    """Whether `measured` is what this protocol should take, given what replicated3 takes.

    Others truncate a product in up to 3 rounds where replicated3 truncates few elements in 2.
    """
    if kind is Plaintext:
        return measured == 0
    return measured == under_replicated3 if kind is Replicated3 else 0 < measured <= 1.5 * under_replicated3
