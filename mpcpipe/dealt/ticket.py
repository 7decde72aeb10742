"""A store's ticket: the small file without which a store is worth nothing, and which can be used once.

    OUT/alice/ticket        one JSON line (what the store is), then the key, then a tag of the line under the key
    OUT/bob/ticket
    OUT/bob/0.dealt ...     corrections, a file for each worker (`dealt.records`); only party 1 is sent any

    ticket  ── rename ──>  used      by the run that uses the store, before it draws anything; the key goes with it

Renaming is one atomic step on disk, and synced before the key is read: of two runs one gets the ticket, and after a
crash, whenever it comes, there is none. Then the key is wiped from the file. Who copies a folder beforehand can use it
twice: a file cannot prevent that, so keep no copies.

Security: the key makes all masks of one party's stream with the dealer. Mode 0600, folders 0700.
"""

from __future__ import annotations

import hmac
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpcpipe.errors import StoreError
from mpcpipe.random.keys import KEY_BYTES

VERSION = 2
TICKET, USED = "ticket", "used"
_MOST_BYTES = 1 << 20
_TAG_BYTES = 32


@dataclass(frozen=True)
class Ticket:
    """What a store is. job: what its parties agree on, as it was dealt for; records, nbytes: of each worker's file."""

    store: str
    party: int
    name: str
    job: Mapping[str, str]
    records: tuple[int, ...]
    nbytes: tuple[int, ...]

    def pack(self, key: bytes) -> bytes:
        """The file."""
        line = json.dumps({"mpcpipe store": VERSION, **asdict(self)}).encode() + b"\n"
        return line + key + _tag(key, line)


def _tag(key: bytes, line: bytes) -> bytes:
    return hmac.digest(key, b"mpcpipe ticket" + line, "sha256")


def write_new(path: Path, data: bytes) -> None:
    """A new file for its user only, synced."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """What was made or renamed in `folder` stays so, whatever happens to the machine."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def look(folder: Path) -> Ticket:
    """What the store in `folder` is; it stays as it is.

    Errors: StoreError if there is none, it was used, others may read it, or it is damaged.
    """
    return _read(folder, folder / TICKET)[0]


def claim(folder: Path, expected: Ticket) -> bytes:
    """Use the store, now and never again; returns its key.

    Errors: StoreError as `look`, and if it is not the one that `look` found.
    """
    used = folder / USED
    try:
        # `link` instead of a plain rename, which would replace what another run left there.
        os.link(folder / TICKET, used)
        os.unlink(folder / TICKET)
        sync_folder(folder)
    except (FileExistsError, FileNotFoundError):
        raise _used(folder) from None
    except OSError as error:
        raise StoreError(
            f"the store {folder} cannot be marked as used: {error.strerror}. It must be on a disk that this user may "
            "write to"
        ) from error
    ticket, key = _read(folder, used)
    _wipe(used, ticket)
    if ticket != expected:
        raise StoreError(f"the store {folder} was exchanged for another one while this run began; deal a new one")
    return key


def _wipe(used: Path, ticket: Ticket) -> None:
    said = json.dumps({"mpcpipe store": VERSION, "store": ticket.store, "used": True}).encode() + b"\n"
    with used.open("r+b") as file:
        file.write(bytes(used.stat().st_size))
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        file.write(said)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def _used(folder: Path) -> StoreError:
    return StoreError(
        f"the store {folder} was used by another run, and its masks must never be used again: deal a new one with "
        "`mpcpipe deal`"
    )


def _read(folder: Path, path: Path) -> tuple[Ticket, bytes]:
    if path.name == TICKET and (folder / USED).exists():
        raise _used(folder)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            mode = os.fstat(descriptor).st_mode
            content = os.read(descriptor, _MOST_BYTES) if stat.S_ISREG(mode) else b""
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise StoreError(f"there is no dealer's store in {folder}: `mpcpipe deal` makes one") from None
    except OSError as error:
        raise StoreError(f"the store {folder} cannot be read: {error.strerror}") from error
    if mode & 0o077:
        raise StoreError(
            f"others than its owner may read the key of the store {folder} (mode {mode & 0o777:o}): deal a new one, "
            "and keep its mode of 0600"
        )
    return _unpacked(folder, content)


def _unpacked(folder: Path, content: bytes) -> tuple[Ticket, bytes]:
    line, newline, rest = content.partition(b"\n")
    try:
        said: dict[str, Any] = json.loads(line)
        version = said.pop("mpcpipe store")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise _damaged(folder, "its ticket is none") from None
    if version != VERSION:
        raise StoreError(
            f"the store {folder} is of version {version}, and this mpcpipe reads version {VERSION}: deal a new one"
        )
    key, tag = rest[:KEY_BYTES], rest[KEY_BYTES:]
    if len(key) != KEY_BYTES or len(tag) != _TAG_BYTES or not hmac.compare_digest(tag, _tag(key, line + newline)):
        raise _damaged(folder, "its ticket was changed or cut off")
    try:
        return Ticket(**said | {"records": tuple(said["records"]), "nbytes": tuple(said["nbytes"])}), key
    except (KeyError, TypeError):
        raise _damaged(folder, "its ticket lacks something") from None


def _damaged(folder: Path, why: str) -> StoreError:
    return StoreError(f"the store {folder} is damaged: {why}. Deal a new one with `mpcpipe deal`")
