"""What a GPU was before anybody changed it, on disk before the first change, and the lock that makes one owner.

    $XDG_STATE_HOME/mpcpipe/power/          (~/.local/state by default; for its user only, 0700)
        GPU-5f3a....lock                    flock: held while somebody owns the GPU, by the watchdog to the very end
        GPU-5f3a....json                    0600: the device, its owner, the original, the knobs that were touched

A journal that is left behind means that its owner died and nobody restored: the next owner does, or `mpcpipe power
restore`. The lock file stays; only the lock on it matters.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpcpipe.errors import PowerError
from mpcpipe.services.power.device import KNOBS, Original

FORMAT = 1


def state_folder() -> Path:
    """Where journals and locks are; made if it is not there, for this user only."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    folder = Path(base) / "mpcpipe" / "power"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise PowerError(
            f"{folder} cannot be made: {error.strerror}. Without a journal no clock is changed; set XDG_STATE_HOME to "
            "a folder that can be written"
        ) from error
    return folder


def _file_name(uuid: str) -> str:
    return re.sub(r"[^\w.-]", "_", uuid)


@dataclass(frozen=True)
class Entry:
    """A journal's content. touched: knobs that have been, or are about to be, written. pid_started: so that a process
    id that is used again is not taken for the owner."""

    uuid: str
    spec: str
    name: str
    pid: int
    pid_started: int
    at_unix_s: float
    original: Original
    touched: tuple[str, ...] = ()

    @property
    def owner_lives(self) -> bool:
        """Is the process that wrote it still there?"""
        return started(self.pid) == self.pid_started != 0


class Journal:
    """The file of one device, in `folder`. Written as a whole, synced, then put in place."""

    def __init__(self, uuid: str, folder: Path) -> None:
        self.path = folder / f"{_file_name(uuid)}.json"

    def write(self, entry: Entry) -> None:
        """Replace the content; it is on disk when this returns. Errors: PowerError."""
        plain: dict[str, Any] = {
            "format": FORMAT,
            **{name: getattr(entry, name) for name in ("uuid", "spec", "name", "pid", "pid_started", "at_unix_s")},
            "original": entry.original.to_dict(),
            "touched": list(entry.touched),
        }
        try:
            # A file of this kind is 0600 from its first moment.
            with tempfile.NamedTemporaryFile("w", dir=self.path.parent, prefix=".", delete=False) as file:
                json.dump(plain, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            Path(file.name).replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise PowerError(
                f"the journal {self.path} cannot be written: {error.strerror}; no clock is changed without it"
            ) from error

    def touch(self, entry: Entry, knob: str) -> Entry:
        """Note, before the write, that a knob is about to be written."""
        if knob in entry.touched:
            return entry
        entry = replace(entry, touched=(*entry.touched, knob))
        self.write(entry)
        return entry

    def read(self) -> Entry | None:
        """The content; None: there is none. Errors: PowerError if it is damaged or another user could have written it,
        for it says what is set on a device."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PowerError(f"the journal {self.path} cannot be read: {error.strerror}") from error
        with os.fdopen(descriptor) as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
                raise PowerError(
                    f"the journal {self.path} is not this user's alone (owner {status.st_uid}, mode "
                    f"{stat.S_IMODE(status.st_mode):o}); it is not trusted. Look at it, then remove it"
                )
            text = file.read()
        try:
            plain = json.loads(text)
            if plain["format"] != FORMAT:
                raise ValueError(f"its format is {plain['format']}")
            touched = tuple(knob for knob in plain["touched"] if knob in KNOBS)
            return Entry(
                str(plain["uuid"]),
                str(plain["spec"]),
                str(plain["name"]),
                int(plain["pid"]),
                int(plain["pid_started"]),
                float(plain["at_unix_s"]),
                Original.from_dict(plain["original"]),
                touched,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise PowerError(
                f"the journal {self.path} is damaged: {error}. Reset the GPU by hand (nvidia-smi -rgc -rmc), then "
                "remove the file"
            ) from error

    def remove(self) -> None:
        """All is as it was."""
        self.path.unlink(missing_ok=True)


def new_entry(uuid: str, spec: str, name: str, original: Original) -> Entry:
    """An entry of this process, nothing touched yet."""
    return Entry(uuid, spec, name, os.getpid(), started(os.getpid()), time.time(), original)


def journals(folder: Path) -> Iterator[Journal]:
    """All that are there."""
    for path in sorted(folder.glob("[!.]*.json")):
        yield Journal(path.stem, folder)


def started(pid: int) -> int:
    """When a process began, in ticks since the machine did; 0: there is none, or its system does not tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    state, *rest = text.rpartition(")")[2].split()
    return 0 if state in "ZX" else int(rest[18])


class Lock:
    """One owner a GPU: an flock by its UUID. A child that inherits `descriptor` holds it on."""

    def __init__(self, uuid: str, folder: Path) -> None:
        self.uuid, self.path = uuid, folder / f"{_file_name(uuid)}.lock"
        self.descriptor: int | None = None

    def acquire(self) -> None:
        """Take it, or say who has it. Errors: PowerError."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(descriptor, 64, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise PowerError(
                f"the GPU {self.uuid} is controlled by another process already"
                f"{f' (process {owner})' if owner else ''}; one GPU has one owner. This one only observes"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self.descriptor = descriptor

    def release(self) -> None:
        """Let the next one. The file stays."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None
