"""How rows become shares: each owner shares its piece of a batch, then the pieces are put into the batch's order.

columns   features ── alice ──> share        labels ── bob ──> share
rows      rows of alice ──> share ─┐
          rows of bob   ──> share ─┴─> put together in the public order of the batch
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import one_hot

from mpcpipe.data.batches import Batch, Piece
from mpcpipe.data.owners import Owner
from mpcpipe.nn.fixed import Fixed
from mpcpipe.protocol.base import Protocol, Share
from mpcpipe.protocol.rounds import Operation, gather
from mpcpipe.ring.bilinear import Shape
from mpcpipe.ring.fixed import FixedPoint

Look = Callable[[torch.Tensor], Batch]
"""Row numbers over all owners -> who shares which of them."""


class Feed:
    """Shares of the rows that a step asks for. `owner` is this party's own data: nobody else's is there."""

    def __init__(self, look: Look, count: int, owner: Owner, fixed: FixedPoint, shape: Shape, classes: int) -> None:
        self.count = count
        self._look, self._owner, self._fixed = look, owner, fixed
        self._shape, self._classes = tuple(shape), classes
        self.kept: tuple[Fixed, Fixed] | None = None
        """Shares of the features and labels of all rows, once they were shared."""

    async def features(self, p: Protocol, rows: torch.Tensor) -> Fixed:
        """The features of `rows` (n,), in their order: (n, *shape). Cost: one `share`, or nothing once all are kept."""
        if self.kept is not None:
            return Fixed(self.kept[0].data[:, rows], self.kept[0].fraction_bits)
        batch = self._look(rows)

        def mine(piece: Piece) -> torch.Tensor:
            return self._fixed.encode(self._owner.features(piece), "features")

        data = await self._assemble(p, batch, batch.features, mine, self._shape)
        return Fixed(data, self._fixed.fraction_bits)

    async def labels(self, p: Protocol, rows: torch.Tensor) -> Fixed:
        """The labels of `rows` as one-hot integers (no fraction bits): (n, classes). Cost: as `features`."""
        if self.kept is not None:
            return Fixed(self.kept[1].data[:, rows], 0)
        batch = self._look(rows)

        def mine(piece: Piece) -> torch.Tensor:
            return one_hot(self._owner.labels(piece), self._classes).to(self._fixed.ring.dtype)

        return Fixed(await self._assemble(p, batch, batch.labels, mine, (self._classes,)), 0)

    async def keep_all(self, p: Protocol) -> None:
        """Share every row now; from then on, rows are taken from the shares."""
        rows = torch.arange(self.count)
        features, labels = await gather(
            self.features(p.at(f"{p.scope}/features"), rows), self.labels(p.at(f"{p.scope}/labels"), rows)
        )
        self.kept = features, labels

    async def _assemble(
        self,
        p: Protocol,
        batch: Batch,
        pieces: tuple[Piece, ...],
        mine: Callable[[Piece], torch.Tensor],
        shape: Shape,
    ) -> Share:
        shared: list[Operation[Share]] = [
            p.share(mine(piece) if piece.owner == p.party else None, piece.owner, (len(piece.rows), *shape))
            for piece in pieces
        ]
        parts = await gather(*shared)
        whole = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return whole if batch.order is None else whole[:, batch.order]
