"""Which rows make up each batch: a public plan that all parties work out alike, without any data.

    epoch's order --cut--> batches --looked up--> pieces: (owner, part, that owner's rows)

With columns, a batch is one piece of features and one of labels, of the same rows. With rows, its rows are scattered
over the owners: each shares its own piece, the pieces are put one behind the other, and `order` puts the rows back into
the batch's order, so that micro-batches are mixed too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from mpcpipe.errors import JobError
from mpcpipe.job.schema import Data, Job, Rows


@dataclass(frozen=True)
class Piece:
    """Rows that one party puts into a batch.

    owner: its number; part: which [[data.rows]] (0 for columns); rows: int64 (n,), numbers in the owner's source.
    """

    owner: int
    part: int
    rows: torch.Tensor


@dataclass(frozen=True)
class Batch:
    """features and labels: pieces to put one behind the other, then `order` (int64 (size,)) where there are several.

    order[i] is the place of the batch's row i among the pieces' rows. None: they are in order.
    """

    size: int
    features: tuple[Piece, ...]
    labels: tuple[Piece, ...]
    order: torch.Tensor | None = None


@dataclass(frozen=True)
class _Part:
    """Consecutive numbers of the plan, and the rows of a source that they stand for: int64 (n,)."""

    features_owner: int
    labels_owner: int
    rows: torch.Tensor

    @property
    def count(self) -> int:
        return len(self.rows)


def permutation(purpose: str, seed: int, rows: int) -> torch.Tensor:
    """A public random order of `rows` rows: int64 (rows,).

    The order of 64-bit words from SHAKE-256, so that all parties have the same whatever their versions of torch.
    """
    stream = bytearray(hashlib.shake_256(f"{purpose}|{seed}|{rows}".encode()).digest(8 * rows))
    return torch.argsort(torch.frombuffer(stream, dtype=torch.int64), stable=True)


class Batches:
    """All batches of a job. Training drops the rest of an epoch, so that all steps cost the same; tests keep it."""

    def __init__(self, job: Job) -> None:
        self.seed, self.batch_size = job.train.seed, job.train.batch_size
        self.test_batch_size = job.evaluate.batch_size or job.train.batch_size
        self._train, self._test = _parts(job, "train"), _parts(job, "test")
        self.steps_per_epoch = self.train_rows // self.batch_size
        self.epochs = job.train.epochs
        total = self.epochs * self.steps_per_epoch
        self.steps = min(job.train.steps or total, total)
        if not self.steps_per_epoch:
            raise JobError(f"train.batch_size: is {self.batch_size}, but there are {self.train_rows} rows to train on")

    @property
    def train_rows(self) -> int:
        """Rows to train on, of all owners."""
        return sum(part.count for part in self._train)

    @property
    def test_rows(self) -> int:
        """Rows to test on, of all owners."""
        return sum(part.count for part in self._test)

    def train_rows_of(self, index: torch.Tensor) -> Batch:
        """Any rows to train on, by their numbers over all owners: a micro-batch, say."""
        return _batch(self._train, index)

    def test_rows_of(self, index: torch.Tensor) -> Batch:
        """Any rows to test on, likewise."""
        return _batch(self._test, index)

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of an epoch (from 0), shuffled by the public seed."""
        order = permutation(f"epoch {number}", self.seed, self.train_rows)
        for first in range(0, self.steps_per_epoch * self.batch_size, self.batch_size):
            yield _batch(self._train, order[first : first + self.batch_size])

    def training(self) -> Iterator[tuple[int, int, Batch]]:
        """(step, epoch, batch) of the whole training, both counted from 0."""
        step = 0
        for number in range(self.epochs):
            for batch in self.epoch(number):
                if step == self.steps:
                    return
                yield step, number, batch
                step += 1

    def test(self) -> Iterator[Batch]:
        """The test rows in order; the last batch may be smaller."""
        yield from self._in_order(self._test, self.test_batch_size)

    def everything(self) -> Iterator[Batch]:
        """All training rows in order, batch by batch: for sharing them once at the start. The last may be smaller."""
        yield from self._in_order(self._train, self.batch_size)

    def index(self, number: int) -> Iterator[torch.Tensor]:
        """For rows shared once: the positions in `everything` of the rows of each batch of an epoch."""
        order = permutation(f"epoch {number}", self.seed, self.train_rows)
        for first in range(0, self.steps_per_epoch * self.batch_size, self.batch_size):
            yield order[first : first + self.batch_size]

    @staticmethod
    def _in_order(parts: tuple[_Part, ...], size: int) -> Iterator[Batch]:
        rows = sum(part.count for part in parts)
        for first in range(0, rows, size):
            yield _batch(parts, torch.arange(first, min(first + size, rows)))


def _parts(job: Job, which: str) -> tuple[_Part, ...]:
    """Who has the rows for `which` ("train" or "test"), one behind the other."""
    d = job.data
    if d.rows:
        return tuple(
            _Part(job.number(part.owner), job.number(part.owner), _rows(part, which, f"part {i}", d.shuffle))
            for i, part in enumerate(d.rows)
        )
    assert d.features is not None and d.features.owner is not None, "checked by job.load"
    assert d.labels is not None and d.labels.owner is not None, "checked by job.load"
    return (_Part(job.number(d.features.owner), job.number(d.labels.owner), _rows(d, which, "part 0", d.shuffle)),)


def needed(spans: Data | Rows) -> int:
    """How many rows of a source train and test use, from its first."""
    return max(span[1] for span in (spans.train, spans.test, (0, 0)) if span is not None)


def _rows(spans: Data | Rows, which: str, part: str, shuffle: int | None) -> torch.Tensor:
    first, last = getattr(spans, which) or (0, 0)
    if shuffle is None:
        return torch.arange(first, last)
    return permutation(f"rows of {part}", shuffle, needed(spans))[first:last]


def _batch(parts: tuple[_Part, ...], index: torch.Tensor) -> Batch:
    """The batch of the rows `index`, numbers over all parts."""
    features, labels, places = [], [], []
    start = 0
    for number, part in enumerate(parts):
        mine = ((index >= start) & (index < start + part.count)).nonzero()[:, 0]
        if len(mine):
            rows = part.rows[index[mine] - start]
            features.append(Piece(part.features_owner, number, rows))
            labels.append(Piece(part.labels_owner, number, rows))
            places.append(mine)
        start += part.count
    order = torch.argsort(torch.cat(places)) if len(places) > 1 else None
    return Batch(len(index), tuple(features), tuple(labels), order)
