"""Who holds what: x = x_0 + x_1 + x_2 + x_3, and party p lacks x_p.

    component      x_0        x_1        x_2        x_3
    known to      1 2 3      0 2 3      0 1 3      0 1 2        a stream is held by the same three
    two at once     x_0 + x_1: 2 3        x_2 + x_3: 0 1        each *half* of a value is known to two parties

A share is (3, *shape): party p's components p+1, p+2, p+3 (modulo 4), in this order.
"""

from __future__ import annotations

from abc import ABC
from functools import cache
from typing import ClassVar

import torch

from mpcpipe.protocol.base import Protocol
from mpcpipe.random.tape import Holders

Pair = tuple[int, int]
PAIRS: tuple[Pair, ...] = ((0, 2), (2, 1), (1, 3), (3, 0), (0, 1), (2, 3))
"""All pairs of parties. Who stands first sends the larger half where a value cannot be cut evenly: of the pairs with
parties of both halves everybody once.
"""
RECEIVERS: dict[Pair, Pair] = {
    **{pair: (pair[0] ^ 1, pair[1] ^ 1) for pair in PAIRS[:4]},
    **{(0, 1): (2, 3), (2, 3): (0, 1), (1, 0): (3, 2), (3, 2): (1, 0)},
}
"""Of what the first and the second party of a pair send."""
CROSSING: tuple[Pair, ...] = tuple((i, j) for i in (0, 1) for j in (2, 3))
"""Components of different halves, (i, j); products of them are known to the two parties that lack neither."""


@cache  # of few arguments, and asked for hundreds of times a step
def others(*parties: int) -> tuple[int, ...]:
    """The parties that are not among `parties`, rising."""
    return tuple(party for party in range(4) if party not in parties)


@cache
def knowing(i: int, j: int) -> Pair:
    """The two parties that hold both x_i and x_j, as they stand in PAIRS."""
    return next(pair for pair in PAIRS if i not in pair and j not in pair)


def stands(party: int, component: int) -> int:
    """Where a component stands in a party's shares. It lacks the one of its own number."""
    if component == party:
        raise ValueError(f"party {party} has no component {component}")
    return (component - party - 1) % 4


class Roles(Protocol, ABC):
    """What the operations of replicated4 have in common: where components stand, and which half a party knows."""

    name: ClassVar[str] = "replicated4"
    party_counts: ClassVar[tuple[int, ...]] = (4,)
    components: ClassVar[int] = 3
    promise: ClassVar[str] = (
        "4 parties, malicious with abort: any one of them may do whatever it likes, and is found out before anything "
        "that depends on it is opened"
    )

    def index(self, component: int) -> int:
        """Where a component stands in this party's shares."""
        return stands(self.party, component)

    def stands(self, peer: int) -> int:
        """Where the summand that this party and `peer` know stands in this party's partials."""
        return stands(self.party, peer)

    @property
    def partner(self) -> int:
        """Who knows the same half."""
        return self.party ^ 1

    @property
    def half(self) -> Pair:
        """The components of the half that this party knows."""
        return (2, 3) if self.party < 2 else (0, 1)

    def own_half(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The two components of the half that this party knows, of a share."""
        i, j = self.half
        return x[self.index(i)], x[self.index(j)]

    @staticmethod
    def without(component: int) -> Holders:
        """The holders of a component, and of the stream that masks what the party without it receives."""
        return others(component)
