"""One party's folder of checkpoints, in which a file is either whole or not there, whenever the machine stops.

    step-00000020.SESSION.safetensors     (or .sealed) this party's shares after step 20
    step-00000020.SESSION.complete        every party has said that it has its file of that step and session
    lock                                  held by the run that uses the folder

A file is written beside its place, synced, and moved there; then the folder is synced. Older files go only once a newer
step is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from mpcpipe.checkpoint.shard import Shard, read
from mpcpipe.errors import CheckpointError

_NAME = re.compile(r"step-(\d{8,})\.([0-9a-f]{16})\.(safetensors|sealed|complete)")
_DRAFT = ".draft"

Identity = tuple[int, str]
"""Step, and the session's first 16 hexadecimal digits."""


def identity_of(shard: Shard) -> Identity:
    """As in the file's name."""
    return shard.record.step, shard.record.session[:16]


class Store:
    """The folder of one party's checkpoints; made if need be, for its user only. Close it.

    key: 32 bytes to seal new files with and to open old ones. CheckpointError if another run uses the folder.
    """

    def __init__(self, folder: Path, key: bytes | None = None) -> None:
        self.folder, self._key = folder, key
        with _disk(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise CheckpointError(f"another run uses the checkpoints in {folder}: end it first") from None
        with _disk(folder):
            for draft in folder.glob(f"*{_DRAFT}"):  # of a run that was killed
                draft.unlink()

    def close(self) -> None:
        """Let other runs use the folder. May be called twice."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # reading

    def shards(self) -> dict[Identity, Path]:
        """The files of shares that are there, the newest step first."""
        found = {self._identity(path): path for path in self._files(".safetensors", ".sealed")}
        return dict(sorted(found.items(), reverse=True))

    def complete(self) -> list[Identity]:
        """What all parties are known to have, the newest step first."""
        return sorted((self._identity(path) for path in self._files(".complete")), reverse=True)

    def read(self, identity: Identity) -> Shard:
        """One of `shards`. CheckpointError if it is damaged or does not open."""
        path = self.shards()[identity]
        shard = read(path, self._key)
        if identity_of(shard) != identity:
            raise CheckpointError(f"the checkpoint {path} cannot be used: it was renamed")
        return shard

    # writing

    def write(self, shard: Shard) -> int:
        """Put a shard on disk, for good before this returns. Its size in bytes."""
        path = self._path(identity_of(shard), "safetensors" if self._key is None else "sealed")
        self._put(path, lambda file: shard.write(file, self._key))
        return path.stat().st_size

    def mark(self, identity: Identity, parties: list[str]) -> None:
        """All parties have this one."""
        content = json.dumps({"step": identity[0], "session": identity[1], "parties": parties}).encode()
        self._put(self._path(identity, "complete"), lambda file: file.write(content))

    def prune(self, keep: list[Identity]) -> None:
        """Remove all but these, a marker before its shares."""
        with _disk(self.folder):
            for path in (*self._files(".complete"), *self._files(".safetensors", ".sealed")):
                if self._identity(path) not in keep:
                    path.unlink()
            self._sync()

    def _put(self, path: Path, write: Callable[[BinaryIO], object]) -> None:
        draft = path.with_name(path.name + _DRAFT)
        with _disk(self.folder):
            try:
                descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    write(file)
                    file.flush()
                    os.fsync(descriptor)
                os.replace(draft, path)
            except OSError:
                draft.unlink(missing_ok=True)
                raise
            self._sync()

    def _sync(self) -> None:
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _path(self, identity: Identity, kind: str) -> Path:
        return self.folder / f"step-{identity[0]:08d}.{identity[1]}.{kind}"

    def _files(self, *kinds: str) -> list[Path]:
        return [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name) and path.suffix in kinds]

    @staticmethod
    def _identity(path: Path) -> Identity:
        found = _NAME.fullmatch(path.name)
        assert found is not None, "one of `_files`"
        return int(found[1]), found[2]


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """A disk that is full or a folder that is not ours, as a CheckpointError."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"checkpoints cannot be kept in {folder}: {error.strerror}. The last complete one is untouched: "
            "make room, or say checkpoint.dir, and go on with --resume"
        ) from error
