"""The operations of the interface, as cases that every suite runs: arguments, expected value, declared cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mpcpipe.protocol.base import Cost, Protocol
from mpcpipe.protocol.rounds import Operation
from mpcpipe.ring.bilinear import (
    MATMUL,
    MUL,
    Bilinear,
    Conv2d,
    Conv2dInputGrad,
    Conv2dWeightGrad,
    MatMul,
)

CONV = Conv2d(stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2)

BILINEAR: dict[str, tuple[Bilinear, tuple[int, ...], tuple[int, ...]]] = {
    "mul": (MUL, (5, 7), (5, 7)),
    "mul broadcast": (MUL, (5, 7), (7,)),
    "mul one": (MUL, (1,), (1,)),
    "matmul": (MATMUL, (4, 6), (6, 3)),
    "matmul transposed": (MatMul(transpose_a=True, transpose_b=True), (6, 4), (3, 6)),
    "conv2d": (CONV, (2, 4, 6, 7), (6, 2, 3, 2)),
    "conv2d input grad": (Conv2dInputGrad(CONV, (2, 4, 6, 7)), (2, 6, 3, 5), (6, 2, 3, 2)),
    "conv2d weight grad": (Conv2dWeightGrad(CONV, (6, 2, 3, 2)), (2, 4, 6, 7), (2, 6, 3, 5)),
}

SIZES = (0, 1, 2, 3, 4, 63, 64, 65, 192, 193, 200, 1000)


@dataclass(frozen=True)
class Case:
    """One interactive operation on n elements."""

    run: Callable[[Protocol, dict[str, Any]], Operation[Any]]
    cost: Callable[[Protocol, int], Cost]


def _bits(p: Protocol, given: dict[str, Any]) -> Any:
    return given["bits"][p.party]


# Given: x, y shares, value of party 1, bits, selectors; one entry a party.
OPERATIONS: dict[str, Case] = {
    "share": Case(
        lambda p, g: p.share(g["value"] if p.party == 1 else None, 1, tuple(g["value"].shape)),
        lambda p, n: p.costs.share(n),
    ),
    "reveal to one": Case(lambda p, g: p.reveal(g["x"][p.party], 1, "test"), lambda p, n: p.costs.reveal(n, False)),
    "reveal to all": Case(lambda p, g: p.reveal(g["x"][p.party], None, "test"), lambda p, n: p.costs.reveal(n, True)),
    "multiply": Case(
        lambda p, g: p.multiply(MUL, g["x"][p.party], g["y"][p.party]), lambda p, n: p.costs.multiply(MUL, (n,), (n,))
    ),
    "reduce": Case(lambda p, g: p.reduce(g["z"][p.party]), lambda p, n: p.costs.reduce(n)),
    "reduce and truncate": Case(lambda p, g: p.reduce(g["z"][p.party], 3), lambda p, n: p.costs.reduce(n, 3)),
    "reduce and truncate by 17": Case(lambda p, g: p.reduce(g["z"][p.party], 17), lambda p, n: p.costs.reduce(n, 17)),
    "truncate": Case(lambda p, g: p.truncate(g["x"][p.party], 5), lambda p, n: p.costs.truncate(n, 5)),
    "nonnegative": Case(lambda p, g: p.nonnegative(g["x"][p.party]), lambda p, n: p.costs.nonnegative(n)),
    "to_ring": Case(lambda p, g: p.to_ring(g["bits"][p.party]), lambda p, n: p.costs.to_ring(n)),
    "select": Case(lambda p, g: p.select(g["bits"][p.party], g["x"][p.party]), lambda p, n: p.costs.select(n)),
    "select_again": Case(
        lambda p, g: p.select_again(g["selector"][p.party], g["x"][p.party]), lambda p, n: p.costs.select_again(n)
    ),
}


def uniform(n: int, bound_bits: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """n integers, uniform in [-2^bound_bits, 2^bound_bits), with the edges among them where there is room."""
    bound = 1 << bound_bits
    drawn = torch.randint(-bound, bound, (n,), generator=torch.Generator().manual_seed(seed))
    edges = torch.tensor([0, 1, -1, bound - 1, -bound][:n])
    drawn[: edges.numel()] = edges
    return drawn.to(dtype)
