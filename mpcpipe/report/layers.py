"""Bytes and rounds of every layer, from a dry run: exact, since what a party sends depends on shapes only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpcpipe.plan.cost import ChainCosts, cost
from mpcpipe.plan.trace import Recorded
from mpcpipe.protocol.base import Cost


@dataclass(frozen=True)
class LayerCost:
    """One layer (or sharing the features, or the loss) in one step.

    Payload bytes that the first party sends in the whole step; rounds of one micro-batch, one after another (those of
    the update are once a step). stage: None for what is not of a stage's layers.
    """

    name: str
    kind: str
    stage: int | None
    forward_bytes: int
    forward_rounds: int
    backward_bytes: int
    backward_rounds: int
    update_bytes: int
    update_rounds: int

    @property
    def sent_bytes(self) -> int:
        """In all directions."""
        return self.forward_bytes + self.backward_bytes + self.update_bytes


def layer_costs(
    costs_of: Callable[[int], ChainCosts], rows: Sequence[int], kinds: Sequence[str], firsts: Sequence[int]
) -> tuple[LayerCost, ...]:
    """A line for the features, each layer and the loss.

    costs_of: the dry run of a micro-batch of so many rows. rows: of each micro-batch. kinds: of the layers, in words.
    firsts: the first layer of each stage.
    """
    found = {count: costs_of(count) for count in sorted(set(rows))}
    names = [recorded.name for recorded in found[rows[0]].layers]
    said = ["shared by its owner", *kinds, "and its gradient"]
    lines = []
    for index, name in enumerate(names):
        of = {count: costs.layers[index] for count, costs in found.items()}
        layer = index - 1
        inside = 0 <= layer < len(kinds)
        stage = sum(first <= layer for first in firsts) - 1 if inside else None
        forward = [_sums(of[count], "F") for count in rows]
        backward = [_sums(of[count], "IW") for count in rows]
        update = _sums(of[rows[0]], "U")
        lines.append(
            LayerCost(
                name,
                said[index],
                stage,
                sum(c.sent_bytes for c in forward),
                max(c.rounds for c in forward),
                sum(c.sent_bytes for c in backward),
                max(c.rounds for c in backward),
                update.sent_bytes,
                update.rounds,
            )
        )
    return tuple(lines)


def _sums(recorded: Recorded, directions: str) -> Cost:
    return sum((cost(recorded.traces.get(direction, ())) for direction in directions), Cost())
