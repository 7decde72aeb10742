"""What a job will do and make known, in words and figures, worked out without any data: for `mpcpipe check`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mpcpipe.data.batches import Batches
from mpcpipe.data.owners import Owner
from mpcpipe.job.model import build_chain
from mpcpipe.job.schema import Job, Source
from mpcpipe.nn.chain import Chain
from mpcpipe.nn.layers import Layer, walk
from mpcpipe.protocol.base import Opening
from mpcpipe.protocol.registry import protocol_named
from mpcpipe.ring.bilinear import Shape
from mpcpipe.runtime.openings import MODEL_DIGEST, RIGHT_ANSWERS, expected_openings

TO_ALL = "all parties"


@dataclass(frozen=True)
class LayerRow:
    """One layer of the converted model: its result's shape without the batch, and its number of secret values."""

    name: str
    kind: str
    output_shape: Shape
    parameters: int


@dataclass(frozen=True)
class Owned:
    """Some rows that one party has: what ("features", "labels" or both), how many, and its own name for where."""

    party: str
    what: str
    train_rows: int
    test_rows: int
    source: str


@dataclass(frozen=True)
class Described:
    """A job, worked out."""

    layers: tuple[LayerRow, ...]
    owned: tuple[Owned, ...]
    steps: int
    steps_per_epoch: int
    train_rows: int
    test_rows: int
    openings: tuple[Opening, ...]
    kept: tuple[str, ...] = ()


def describe(job: Job, model_digest: bool = False) -> Described:
    """Convert the model and count. Opens no data file. Errors: JobError, ModelError."""
    _, chain = build_chain(job)
    batches = Batches(job)
    return Described(
        layers=layer_rows(chain),
        owned=owned_by(job),
        steps=batches.steps,
        steps_per_epoch=batches.steps_per_epoch,
        train_rows=batches.train_rows,
        test_rows=batches.test_rows,
        openings=tuple(expected_openings(job, chain, batches.steps_per_epoch, model_digest)),
        kept=tuple(kept_in_words(job, chain, batches.steps)),
    )


def kept_in_words(job: Job, chain: Chain, steps: int) -> list[str]:
    """What checkpoints put on disk, where, and how protected: a sentence each; none without checkpoints."""
    c = job.checkpoint
    if not c.every:
        return []
    kind = protocol_named(job.protocol.name)
    weights = sum(value.numel() for (_, key), value in chain.initial().items() if not key.startswith("running_"))
    moments = 2 if job.train.optimizer == "adam" else int(job.train.momentum > 0)
    values = sum(value.numel() for value in chain.initial().values()) + weights * moments
    nbytes = values * kind.components * job.protocol.ring_bits // 8
    place = f"checkpoints/NAME in {'the run folder' if c.dir is None else f'a folder of the run in {c.dir}'}"
    who = "each party" if kind.dealer is None else f"each party but {job.parties.names[kind.dealer]}, which has none,"
    said = [
        f"every {c.every} steps ({steps // c.every} times), {who} writes its own shares of {values:,} values "
        f"(model and optimizer), {nbytes:,} bytes, to {place}; the last {c.keep} stay"
    ]
    if c.key_file is None:
        said.append("in plain, for its user only (mode 600): the files of several parties together are the model")
    else:
        said.append(
            f"encrypted (AES-256-GCM) with the key in {c.key_file}; step, party and the job's digest stay readable"
        )
    return said


def layer_rows(chain: Chain) -> tuple[LayerRow, ...]:
    """A row a layer, in order; a residual block is one layer."""
    return tuple(
        LayerRow(
            layer.name, _kind(layer), shape, sum(v.numel() for leaf in walk([layer]) for v in leaf.initial.values())
        )
        for layer, shape in zip(chain.layers, chain.output_shapes, strict=True)
    )


def _kind(layer: Layer) -> str:
    inside = [type(leaf).__name__ for leaf in walk(layer.children())]
    return f"{type(layer).__name__}({', '.join(inside)})" if inside else type(layer).__name__


def owned_by(job: Job) -> tuple[Owned, ...]:
    """Who has which data, in the order of the job."""
    d = job.data

    def rows(span: tuple[int, int] | None) -> int:
        return span[1] - span[0] if span else 0

    if d.rows:
        return tuple(
            Owned(part.owner, "features and labels", rows(part.train), rows(part.test), _place(part.features))
            for part in d.rows
        )
    return tuple(
        Owned(source.owner or "", what, rows(d.train), rows(d.test), _place(source))
        for what, source in (("features", d.features), ("labels", d.labels))
        if source is not None
    )


def _place(source: Source) -> str:
    if source.source is None:
        return "(its owner's job says)"
    return f"{source.source} {Path(source.path).name}" if source.path else source.source


def own_data(job: Job, party: int) -> list[str]:
    """Read the data of `party` (its own files, nobody else's) and say what was found. Errors: DataError, RangeError."""
    found = []
    for part, what, rows in Owner(job, party).held():
        key = f"data.rows[{part}].{what}" if job.data.rows else f"data.{what}"
        found.append(f"{key}: {_found(rows, what, job)}")
    return found


def _found(rows: torch.Tensor, what: str, job: Job) -> str:
    if what == "labels":
        return f"{len(rows)} rows, all of 0 to {job.data.classes - 1}"
    shape = " x ".join(str(size) for size in rows.shape[1:])
    largest = float(rows.abs().max())
    return f"{len(rows)} rows of {shape}; the largest magnitude is {largest:.3g}, below {job.protocol.limit:g}"


def in_words(openings: Sequence[Opening], names: Sequence[str], test_rows: int) -> list[str]:
    """The openings in groups, a sentence each; nothing is left out."""
    rest = list(openings)
    said: list[str] = []

    def take(belongs: Callable[[Opening], bool]) -> list[Opening]:
        taken = [opening for opening in rest if belongs(opening)]
        rest[:] = [opening for opening in rest if not belongs(opening)]
        return taken

    for to in sorted({opening.to for opening in openings if opening.to is not None}):
        if model := take(lambda o, to=to: o.to == to and o.why.startswith("model ")):  # type: ignore[misc]
            said.append(f"the trained model ({_tensors(model)}), to {names[to]}")
    if right := take(lambda o: o.why == RIGHT_ANSWERS and o.to is None):
        times = "once" if len(right) == 1 else f"{len(right)} times"
        said.append(f"the {RIGHT_ANSWERS} of {test_rows} test rows, {times}, to {TO_ALL}")
    if losses := take(lambda o: o.why.startswith("loss of step ") and o.to is None):
        said.append(f"the mean loss of {_steps(losses)}, to {TO_ALL}")
    if digest := take(lambda o: o.why == MODEL_DIGEST and o.to is None):
        said.append(f"the trained model ({_tensors(digest)}), to {TO_ALL}, for --model-digest")
    said += [
        f"{opening.why} {list(opening.shape)}, to {TO_ALL if opening.to is None else names[opening.to]}"
        for opening in rest
    ]
    return said


def _tensors(openings: Sequence[Opening]) -> str:
    numbers = sum(math.prod(opening.shape) for opening in openings)
    return f"{len(openings)} tensors, {numbers:,} numbers"


def _steps(losses: Sequence[Opening]) -> str:
    steps = [opening.why.rpartition(" ")[2] for opening in losses]
    if len(steps) <= 3:
        return f"step{'s' if len(steps) > 1 else ''} {', '.join(steps)}"
    return f"{len(steps)} steps ({', '.join(steps[:2])}, ... {steps[-1]})"
