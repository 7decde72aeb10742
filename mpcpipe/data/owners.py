"""What one party has of the data. The files of others are never opened, nor need they be there."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mpcpipe.data import sources
from mpcpipe.data.batches import Batch, Piece, needed
from mpcpipe.errors import DataError
from mpcpipe.job.schema import Job, Source
from mpcpipe.ring.fixed import FixedPoint
from mpcpipe.ring.ring import Ring


class Owner:
    """The rows of party `party`, in memory. Errors while they are read: DataError, RangeError."""

    def __init__(self, job: Job, party: int) -> None:
        self.party = party
        name = job.parties.names[party]
        self._features: dict[int, torch.Tensor] = {}
        self._labels: dict[int, torch.Tensor] = {}
        # What `encode` would refuse later is refused here: its sentence goes to all parties, with a value.
        d, protocol = job.data, job.protocol
        limit = FixedPoint(Ring(protocol.ring_bits), protocol.fraction_bits, protocol.limit).bound

        def read_features(part: int, source: Source, key: str, rows: int) -> None:
            self._features[part] = sources.features(source, key, d.shape, rows, limit)

        def read_labels(part: int, source: Source, key: str, rows: int) -> None:
            self._labels[part] = sources.labels(source, key, d.classes, rows)

        for i, part in enumerate(d.rows):
            if part.owner == name:
                rows = needed(part)
                read_features(i, part.features, f"data.rows[{i}].features", rows)
                read_labels(i, part.labels, f"data.rows[{i}].labels", rows)
        rows = needed(d)
        if d.features is not None and d.features.owner == name:
            read_features(0, d.features, "data.features", rows)
        if d.labels is not None and d.labels.owner == name:
            read_labels(0, d.labels, "data.labels", rows)

    def features(self, piece: Piece) -> torch.Tensor:
        """float32 (n, *shape): the piece's features, which this party must own."""
        return self._own(self._features, piece)

    def labels(self, piece: Piece) -> torch.Tensor:
        """int64 (n,): the piece's labels, which this party must own."""
        return self._own(self._labels, piece)

    def held(self) -> Iterator[tuple[int, str, torch.Tensor]]:
        """(part, "features" or "labels", all rows of it that were read), of everything that this party has."""
        for what, parts in (("features", self._features), ("labels", self._labels)):
            for part, rows in parts.items():
                yield part, what, rows

    def _own(self, parts: dict[int, torch.Tensor], piece: Piece) -> torch.Tensor:
        if piece.owner != self.party or piece.part not in parts:
            raise DataError(f"party {self.party} does not have the rows of party {piece.owner}")
        return parts[piece.part][piece.rows]


def in_the_clear(owners: list[Owner], batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Features (size, *shape) and labels (size,) of a batch, put together from all owners' rows.

    Security: whoever can call this has everybody's data. It is for the clear twin, where all parties run on one
    machine.
    """
    x = torch.cat([owners[piece.owner].features(piece) for piece in batch.features])
    y = torch.cat([owners[piece.owner].labels(piece) for piece in batch.labels])
    return (x, y) if batch.order is None else (x[batch.order], y[batch.order])
