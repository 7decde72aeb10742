"""What one party keeps of one step, and the file that it becomes.

plain     NAME.safetensors: the tensors, and the record as JSON text among the metadata, with a SHA-256 of everything
sealed    NAME.sealed: the same stream, encrypted (`checkpoint.sealed`)

The SHA-256 finds damage, not intent: whoever can write to a plain file can make a new one. Sealing finds both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from mpcpipe.checkpoint import codec
from mpcpipe.checkpoint.sealed import Opener, Sealer, is_sealed
from mpcpipe.errors import CheckpointError
from mpcpipe.job.digest import apart, digest

FORMAT = "1"
RECORD, CHECKSUM = "mpcpipe.checkpoint", "mpcpipe.sha256"


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a checkpoint is of; nothing in it is secret.

    job: the keys that a job which goes on from here must have, with their values (`runtime.checkpoints.bound_keys`).
    fraction_bits: of each tensor. blank: shapes of the tensors that this party has no values of (a dealer).
    public: the optimizers' public numbers by layer. right, losses: what was opened so far, for the report.
    """

    step: int
    session: str
    party: str
    job: Mapping[str, str]
    fraction_bits: Mapping[str, int]
    blank: Mapping[str, list[int]] = field(default_factory=dict)
    public: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    right: tuple[int, int] | None = None
    losses: Mapping[int, float] = field(default_factory=dict)
    format: str = FORMAT

    @property
    def identity(self) -> tuple[int, str]:
        """Step and session: files of several parties with the same belong together."""
        return self.step, self.session

    def text(self) -> str:
        """As JSON; numbers come back bit for bit."""
        return json.dumps(asdict(self))

    @staticmethod
    def of(text: str) -> Record:
        """The inverse. CheckpointError for anything else."""
        try:
            given = json.loads(text)
            if given["format"] != FORMAT:
                raise CheckpointError(
                    f"its format is {given['format']!r}; this mpcpipe reads {FORMAT!r}: use the mpcpipe that wrote it"
                )
            given["losses"] = {int(step): float(loss) for step, loss in given["losses"].items()}
            given["right"] = None if given["right"] is None else (int(given["right"][0]), int(given["right"][1]))
            record = Record(**given)
            if type(record.step) is not int or record.step < 0 or len(bytes.fromhex(record.session)) < 8:
                raise ValueError("no step of a session")
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise CheckpointError("its record cannot be read") from error
        return record


@dataclass(frozen=True)
class Shard:
    """One party's checkpoint: its shares by name (components, *shape), and the record of them."""

    record: Record
    tensors: Mapping[str, torch.Tensor] = field(repr=False)

    def write(self, file: BinaryIO, key: bytes | None) -> None:
        """Into an empty file; sealed under `key` (32 bytes) if there is one."""
        text = self.record.text()
        texts = {RECORD: text, CHECKSUM: _checksum(text, self.tensors)}
        if key is None:
            for piece in codec.encoded(self.tensors, texts):
                file.write(piece)
            return
        record = self.record
        readable = {"step": record.step, "session": record.session, "party": record.party, "job": digest(record.job)}
        sealer = Sealer(file, key, readable)
        for piece in codec.encoded(self.tensors, texts):
            sealer.write(piece)
        sealer.finish()


def read(path: Path, key: bytes | None) -> Shard:
    """The shard in a file, every bit of it as it was written. CheckpointError, which names the file, if it is not, or
    if it is plain and there is a key.
    """
    try:
        with path.open("rb") as file:
            if not is_sealed(file):
                if key is not None:  # else whoever can write here could put a file of its own in a sealed one's place
                    raise CheckpointError("it is not encrypted, and the job has a checkpoint.key_file")
                return _shard(_Plain(file))
            if key is None:
                raise CheckpointError("it is encrypted, and the job has no checkpoint.key_file")
            opener = Opener(file, key)
            shard = _shard(opener)
            said = {name: opener.header.get(name) for name in ("step", "session", "party", "job")}
            record = shard.record
            if said != {
                "step": record.step,
                "session": record.session,
                "party": record.party,
                "job": digest(record.job),
            }:
                raise CheckpointError("it is damaged: its header is of another checkpoint")
            return shard
    except OSError as error:
        raise CheckpointError(f"the checkpoint {path} cannot be read: {error.strerror}") from error
    except CheckpointError as error:
        raise CheckpointError(f"the checkpoint {path} cannot be used: {error}") from error


def check_owner(record: Record, party: str, job: Mapping[str, str], path: Path) -> None:
    """CheckpointError if the record is of another party or of another job; it names the first key that differs."""
    if record.party != party:
        raise CheckpointError(
            f"the checkpoint {path} is {record.party}'s, and this party is {party}: every party goes on from its own"
        )
    different = apart(record.job, job)
    if different is not None:
        raise CheckpointError(
            f"the checkpoint {path} is of another job: {different}. Go on with the job that was started, or start "
            "this one anew"
        )


class _Plain:
    """An ordinary file as a `codec.Source`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = file.seek(0, 2)
        file.seek(0)

    def fill(self, target: memoryview) -> None:
        if len(target) and cast(Any, self._file).readinto(target) != len(target):
            raise CheckpointError("it is cut off")
        self._left -= len(target)

    def left(self) -> int:
        return self._left


def _shard(source: codec.Source) -> Shard:
    tensors, texts = codec.decoded(source)
    text = texts.get(RECORD, "")
    if not text:
        raise CheckpointError("it is no checkpoint: it has no record of one")
    if texts.get(CHECKSUM) != _checksum(text, tensors):
        raise CheckpointError("it is damaged: its checksum is another than it says")
    record = Record.of(text)
    if set(tensors) | set(record.blank) != set(record.fraction_bits):
        raise CheckpointError("it is damaged: its record is of other tensors")
    return Shard(record, tensors)


def _checksum(text: str, tensors: Mapping[str, torch.Tensor]) -> str:
    found = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"\0{name} {tuple(tensor.shape)} {tensor.dtype}\0".encode())
        found.update(codec.raw(tensor.contiguous()))
    return found.hexdigest()
