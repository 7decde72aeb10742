"""Encryption at rest: a stream of bytes in chunks, each AES-256-GCM.

    8 bytes    magic
    4 bytes    length of the header, little-endian
    header     JSON, readable by everybody, bound to every chunk: party, step, job, a salt
    chunks     1 MiB each and a last one, each with its tag of 16 bytes

    key of the file   HKDF-SHA256(key, salt of the file, "mpcpipe checkpoint")
    nonce of a chunk  its number (11 bytes) | 1 if it is the last, else 0

So no key meets a nonce twice, however many files one key seals; a chunk that is missing, moved, cut off or of another
file does not open.

Source: NIST SP 800-38D (GCM), RFC 5869 (HKDF); the nonces are the STREAM construction of Hoang, Reyhanitabar, Rogaway
and Vizar, CRYPTO 2015.
Security: authenticated encryption under the key. Size, party, step and the job's digest stay readable.
"""

from __future__ import annotations

import json
import secrets
from typing import Any, BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mpcpipe.errors import CheckpointError
from mpcpipe.random.keys import hkdf

MAGIC = b"mpcpipe\x01"
CHUNK_BYTES = 1 << 20
TAG_BYTES = 16
SALT_BYTES = 32
MOST_HEADER_BYTES = 1 << 16


class Sealer:
    """Writes a sealed stream to a file. `header` is what stays readable; call `finish` at the end."""

    def __init__(self, file: BinaryIO, key: bytes, header: dict[str, Any]) -> None:
        salt = secrets.token_bytes(SALT_BYTES)
        self._bound = json.dumps(header | {"salt": salt.hex()}).encode()
        self._cipher = AESGCM(_file_key(key, salt))
        self._file = file
        self._waiting = bytearray()
        self._chunks = 0
        file.write(MAGIC + len(self._bound).to_bytes(4, "little") + self._bound)

    def write(self, data: bytes | memoryview) -> None:
        """The next bytes of the stream."""
        view = memoryview(data)
        while len(view):
            if len(self._waiting) == CHUNK_BYTES:  # not before there is something behind it: the last one is marked
                self._seal(last=False)
            taken = view[: CHUNK_BYTES - len(self._waiting)]
            self._waiting += taken
            view = view[len(taken) :]

    def finish(self) -> None:
        """The last chunk."""
        self._seal(last=True)

    def _seal(self, last: bool) -> None:
        self._file.write(self._cipher.encrypt(_nonce(self._chunks, last), bytes(self._waiting), self._bound))
        self._chunks += 1
        self._waiting.clear()


class Opener:
    """Reads a sealed stream: a `codec.Source`. `header` is what everybody can read.

    Errors: CheckpointError for anything that the key did not seal as it is.
    """

    def __init__(self, file: BinaryIO, key: bytes) -> None:
        self.header, self._bound = read_header(file)
        try:
            salt = bytes.fromhex(self.header["salt"])
        except (KeyError, TypeError, ValueError):
            raise CheckpointError("it is damaged: its header has no salt") from None
        self._file = file
        self._cipher = AESGCM(_file_key(key, salt))
        here = file.tell()
        self._sealed_left = file.seek(0, 2) - here
        file.seek(here)
        self._open = memoryview(b"")
        self._chunks = 0

    def left(self) -> int:
        """How many bytes there are still."""
        whole, rest = divmod(self._sealed_left, CHUNK_BYTES + TAG_BYTES)
        return len(self._open) + whole * CHUNK_BYTES + max(0, rest - TAG_BYTES)

    def fill(self, target: memoryview) -> None:
        """Fill all of `target` with the next bytes."""
        while len(target):
            if not self._open:
                self._next()
            count = min(len(target), len(self._open))
            target[:count] = self._open[:count]
            self._open, target = self._open[count:], target[count:]

    def _next(self) -> None:
        size = min(self._sealed_left, CHUNK_BYTES + TAG_BYTES)
        sealed = self._file.read(size)
        self._sealed_left -= size
        try:
            if len(sealed) <= TAG_BYTES:
                raise InvalidTag
            opened = self._cipher.decrypt(_nonce(self._chunks, not self._sealed_left), sealed, self._bound)
        except InvalidTag:
            raise CheckpointError("it does not open: checkpoint.key_file is another key, or it was changed") from None
        self._chunks += 1
        self._open = memoryview(opened)


def is_sealed(file: BinaryIO) -> bool:
    """Whether the file, from its beginning, is a sealed stream. Leaves the position there."""
    found = file.read(len(MAGIC)) == MAGIC
    file.seek(0)
    return found


def read_header(file: BinaryIO) -> tuple[dict[str, Any], bytes]:
    """What is readable of a sealed file without its key, as a dict and as it stands there."""
    start = file.read(len(MAGIC) + 4)
    size = int.from_bytes(start[len(MAGIC) :], "little")
    bound = file.read(min(size, MOST_HEADER_BYTES))
    try:
        if start[: len(MAGIC)] != MAGIC or len(bound) != size:
            raise ValueError("cut off")
        header = json.loads(bound)
        if not isinstance(header, dict):
            raise ValueError("no header")
    except (ValueError, RecursionError):
        raise CheckpointError("it is damaged: its header cannot be read") from None
    return header, bound


def _file_key(key: bytes, salt: bytes) -> bytes:
    return hkdf(key, salt, b"mpcpipe checkpoint")


def _nonce(chunk: int, last: bool) -> bytes:
    return chunk.to_bytes(11, "big") + bytes([last])
