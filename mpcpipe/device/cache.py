"""The user's folder for built libraries and chosen tiles: nobody else may write there, since what lies there is run.

~/.cache/mpcpipe/kernels/        0700 (or $MPCPIPE_CACHE/kernels, or $XDG_CACHE_HOME/mpcpipe/kernels)
    lock                         flock: held while somebody builds, let go by the system if they die
    building-...                 unfinished; swept away by whoever holds the lock next
    cuda-sm_90-3f2a.../          a finished build, renamed into place as a whole
    tiles-....json               which tile was fastest
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpcpipe.errors import KernelError

UNFINISHED = "building-"


def root() -> Path:
    """Where the folder is to be, without looking."""
    named = os.environ.get("MPCPIPE_CACHE")
    if named:
        return Path(named) / "kernels"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "mpcpipe" / "kernels"


def folder() -> Path:
    """The folder, made if it is not there. Raises KernelError unless it is this user's alone to write."""
    path = root()
    try:
        for part in (path.parent, path):
            if not part.exists():
                part.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    part.mkdir(mode=0o700)
    except OSError as failure:
        raise KernelError(
            f"the folder {path} for built kernels cannot be made: {failure.strerror}; "
            "set MPCPIPE_CACHE to a folder of your own"
        ) from failure
    for part in (path.parent, path):
        require_own(part)
    return path


def require_own(path: Path) -> None:
    """Raises KernelError if somebody else owns `path` or may write to it, or if it is a link."""
    found = path.lstat()
    advice = "remove it, or set MPCPIPE_CACHE to a folder of your own: libraries from there are run"
    if stat.S_ISLNK(found.st_mode):
        raise KernelError(f"{path} is a link, which kernels are not taken from; {advice}")
    if found.st_uid != os.geteuid():
        raise KernelError(f"{path} belongs to user {found.st_uid}, not to you ({os.geteuid()}); {advice}")
    if found.st_mode & 0o022:
        raise KernelError(f"others may write to {path} (mode {stat.S_IMODE(found.st_mode):04o}); {advice}")


@contextlib.contextmanager
def locked() -> Iterator[Path]:
    """The folder, for one builder at a time. What a builder that died has left is swept away."""
    path = folder()
    # Not inherited by compilers: the lock is free as soon as this process is gone, whatever they still do.
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        for left in path.glob(f"{UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield path
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def unfinished(inside: Path) -> Iterator[Path]:
    """A new folder to build in, removed at the end unless `publish` has renamed it."""
    path = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=inside))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def publish(built: Path, name: str) -> Path:
    """Renames a finished folder into place, all or nothing. Needs the lock."""
    for file in built.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    place = built.parent / name
    if place.exists():  # a damaged one, or --force
        shutil.rmtree(place)
    built.rename(place)
    return place


def write_atomically(path: Path, content: Any) -> None:
    """JSON into `path`; a reader sees the old or the new, never half."""
    handle, temporary = tempfile.mkstemp(prefix=UNFINISHED, dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(content, file, indent=1)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def clean() -> list[str]:
    """Removes all builds and tiles. Returns their names."""
    if not root().exists():
        return []
    with locked() as path:
        names = sorted(entry.name for entry in path.iterdir() if entry.name != "lock")
        for name in names:
            entry = path / name
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    return names
