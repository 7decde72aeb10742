"""Corrections on disk: what the dealer would send to party 1, round after round of one worker.

    16 bytes    magic and version
    records     4 bytes length, then AES-128-GCM of the parts of one round, with a tag of 16 bytes

    key of the file   HKDF-SHA256(the store's key, store and worker)
    nonce             the record's number
    bound to it       the round's label

So a record opens at its place only: one that was changed, moved, cut off or of another store, worker or round does not.
Lengths are those that the reader's own program expects; nothing is allocated by what a file says.

Source: NIST SP 800-38D (GCM), RFC 5869 (HKDF).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mpcpipe.errors import StoreError
from mpcpipe.link.base import Part
from mpcpipe.random.keys import hkdf

MAGIC = b"mpcpipe dealt \x01\n"
_LENGTH_BYTES, _TAG_BYTES = 4, 16


def file_of(folder: Path, worker: int) -> Path:
    """Where a worker's corrections are."""
    return folder / f"{worker}.dealt"


def _cipher(key: bytes, store: str, worker: int) -> AESGCM:
    return AESGCM(hkdf(key, bytes.fromhex(store), f"mpcpipe dealt {worker}".encode(), 16))


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")


class Writer:
    """Writes a worker's file. Call `finish`."""

    def __init__(self, folder: Path, worker: int, key: bytes, store: str) -> None:
        self._cipher = _cipher(key, store, worker)
        descriptor = os.open(file_of(folder, worker), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = open(descriptor, "wb")  # noqa: SIM115  closed by `finish`
        self._file.write(MAGIC)
        self.records, self.nbytes = 0, len(MAGIC)

    def write(self, label: str, parts: Sequence[torch.Tensor]) -> None:
        """The parts of one round."""
        raw = [part.contiguous().view(torch.uint8) for part in parts]
        data = raw[0] if len(raw) == 1 else torch.cat(raw)
        sealed = self._cipher.encrypt(_nonce(self.records), data.numpy().data, label.encode())
        self._file.write(len(sealed).to_bytes(_LENGTH_BYTES, "little"))
        self._file.write(sealed)
        self.records += 1
        self.nbytes += _LENGTH_BYTES + len(sealed)

    def finish(self) -> None:
        """Everything is on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def close(self) -> None:
        """Give up the file."""
        self._file.close()


class Reader:
    """Reads a worker's file, from the first record to the last. records, nbytes: what the ticket says of it."""

    def __init__(self, folder: Path, worker: int, key: bytes, store: str, records: int) -> None:
        self.path = file_of(folder, worker)
        self._cipher = _cipher(key, store, worker)
        self._records, self._read = records, 0
        self._file = open(self.path, "rb")  # noqa: SIM115  closed by `close`
        self._file.seek(len(MAGIC))

    def read(self, label: str, expected: Sequence[Part]) -> list[torch.Tensor]:
        """The parts of the next round, which must be `label`.

        Errors: StoreError if there are no more, or the record is not what the dealer wrote for this round.
        """
        if self._read == self._records:
            raise StoreError(
                f"the store {self.path.parent} has run dry at {label!r}: it was dealt for fewer steps than this run "
                "takes. Deal a new one, for the job as it is now"
            )
        nbytes = sum(part.nbytes for part in expected)
        size = int.from_bytes(self._file.read(_LENGTH_BYTES), "little")
        sealed = self._file.read(nbytes + _TAG_BYTES) if size == nbytes + _TAG_BYTES else b""
        try:
            data = bytearray(self._cipher.decrypt(_nonce(self._read), sealed, label.encode()))
        except InvalidTag:
            raise StoreError(
                f"{self.path} is damaged: its record {self._read + 1} of {self._records} is not what the dealer wrote "
                f"for {label!r}. Nothing of it was used for that; deal a new store"
            ) from None
        self._read += 1
        return _parts(data, expected)

    def close(self) -> None:
        """No more."""
        self._file.close()


def _parts(data: bytearray, expected: Sequence[Part]) -> list[torch.Tensor]:
    parts, start = [], 0
    for part in expected:
        parts.append(
            torch.frombuffer(data, dtype=part.dtype, count=part.numel, offset=start)
            if part.numel
            else torch.empty(0, dtype=part.dtype)
        )
        start += part.nbytes
    # Parts of one buffer may begin at any byte, and kernels want whole words.
    return [part if part.data_ptr() % part.element_size() == 0 else part.clone() for part in parts]


def check_file(folder: Path, worker: int, nbytes: int) -> None:
    """StoreError unless a worker's file is there, whole and of this version. Its records are checked as they come."""
    path = file_of(folder, worker)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise StoreError(f"the store {folder} lacks {path.name}: {error.strerror}. Copy all of its files") from error
    if size != nbytes or magic != MAGIC:
        raise StoreError(
            f"{path} is damaged: it has {size} bytes, and the dealer wrote {nbytes}. Copy the store again, or deal a "
            "new one"
        )
