"""Another cap for a run that goes on: a file in its folder, which the power service looks at every 0.1 s.

    mpcpipe power cap 150 ──> RUN/power.alice.cap ──> service ──> RUN/power.alice.jsonl: {"cap_w": 150, "asked": ...}

The file is replaced as a whole and stays: nothing is lost where the service is slow, or the run goes on later. Whoever
may write into the run's folder may change the cap, and nobody else.
"""

from __future__ import annotations

import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from mpcpipe.errors import PowerError

OFF = "off"
_MOST_BYTES = 64


@dataclass(frozen=True)
class Wanted:
    """cap_w: None is no cap. asked: the moment at which the file was written, by which the answer names it."""

    cap_w: float | None
    asked: int


def cap_of(text: str) -> float | None:
    """Watts, `150` or `150W`; None for `off`. Errors: PowerError for anything else."""
    word = text.strip()
    if word.lower() == OFF:
        return None
    try:
        cap_w = float(word[:-1] if word[-1:] in ("W", "w") else word)
    except ValueError:
        cap_w = math.nan
    if not 0 < cap_w < 1e5:
        raise PowerError(f"a cap of {word!r}: watts above 0, such as 150, or {OFF}")
    return cap_w


def file_of(folder: Path, party: str) -> Path:
    """Where the cap that is wanted of a party stands."""
    return folder / f"power.{party}.cap"


def want(folder: Path, party: str, cap_w: float | None) -> Wanted:
    """Write it. Errors: PowerError where the folder cannot be written."""
    file = file_of(folder, party)
    new = file.with_suffix(f".cap{os.getpid()}")
    try:
        new.write_text(f"{OFF if cap_w is None else f'{cap_w:g}'}\n")
        asked = new.stat().st_mtime_ns
        new.replace(file)
    except OSError as error:
        raise PowerError(f"{file} cannot be written: {error.strerror}") from error
    return Wanted(cap_w, asked)


class Watched:
    """The file of one party, as the service sees it."""

    def __init__(self, folder: Path, party: str) -> None:
        self.file = file_of(folder, party)
        self._seen: tuple[int, int] | None = None

    def new(self) -> Wanted | None:
        """What is wanted since the last look; None: nothing new. Errors: PowerError, once, for a file that says no cap,
        or is not this user's."""
        try:
            found = os.stat(self.file, follow_symlinks=False)
        except OSError:
            return None
        seen = found.st_mtime_ns, found.st_ino
        if seen == self._seen:
            return None
        self._seen = seen
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            raise PowerError(f"{self.file} is not a file of this user's; it is not followed")
        try:
            with self.file.open("rb") as file:
                text = file.read(_MOST_BYTES).decode("utf-8", "replace")
        except OSError as error:
            raise PowerError(f"{self.file} cannot be read: {error.strerror}") from error
        try:
            return Wanted(cap_of(text), found.st_mtime_ns)
        except PowerError as error:
            raise PowerError(f"{self.file}: {error}; the cap stays as it was") from error
