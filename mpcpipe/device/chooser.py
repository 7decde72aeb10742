"""Which tile? The model sorts, a few are timed where there is a device, and the answer is kept on disk.

Only speed depends on it for ring elements. Sums of float32 are taken in the tile's order, so their last bits do, too.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from mpcpipe.device import cache
from mpcpipe.errors import KernelError

TIMED = 6
VERSION = 1

Choice = TypeVar("Choice")


class Tuner:
    """Answers remembered by key: in this process, and in a file of the cache for each device and build."""

    def __init__(self, device: str, time_us: Callable[[Callable[[], None]], float] | None) -> None:
        """`device` names the device and the library; `time_us` times a launch, None where times mean nothing."""
        self._device = device
        self._time_us = time_us
        self._memory: dict[str, str] | None = None
        self._lock = threading.Lock()

    @property
    def file(self) -> Path:
        """Where answers are kept."""
        return cache.root() / f"tiles-{re.sub(r'[^A-Za-z0-9_.-]+', '-', self._device)}.json"

    def choose(
        self, key: str, choices: Sequence[Choice], name: Callable[[Choice], str], run: Callable[[Choice], None]
    ) -> Choice:
        """One of `choices`, best first as the model has it; `run` starts it on the caller's tensors."""
        if self._time_us is None or len(choices) == 1:
            return choices[0]
        with self._lock:
            known = self._read()
            names = {name(choice): choice for choice in choices}
            if known.get(key) in names:
                return names[known[key]]
            timed = {each: self._time_us(partial(run, names[each])) for each in list(names)[:TIMED]}
            best = min(timed, key=timed.__getitem__)
            known[key] = best
            self._write(key, best)
            return names[best]

    def _read(self) -> dict[str, str]:
        if self._memory is None:
            self._memory = read_choices(self.file)
        return self._memory

    def _write(self, key: str, best: str) -> None:
        # A cache that cannot be written costs time at the next start, and nothing else.
        with contextlib.suppress(KernelError, OSError), cache.locked():
            cache.write_atomically(self.file, {"version": VERSION, "choices": {**read_choices(self.file), key: best}})


def read_choices(file: Path) -> dict[str, str]:
    """The answers in `file`; none if it is not there, damaged, somebody else's, or another version's."""
    try:
        cache.require_own(file)
        content = json.loads(file.read_text())
    except (OSError, ValueError, KernelError):
        return {}
    if not isinstance(content, dict) or content.get("version") != VERSION:
        return {}
    choices = content.get("choices")
    return {str(key): str(best) for key, best in choices.items()} if isinstance(choices, dict) else {}


class InTurn(Tuner):
    """Takes every choice once, then again from the first: so that a check runs all of them."""

    def __init__(self) -> None:
        """No device, no file."""
        super().__init__("", None)
        self._turn = 0

    def choose(
        self, key: str, choices: Sequence[Choice], name: Callable[[Choice], str], run: Callable[[Choice], None]
    ) -> Choice:
        """The next one."""
        self._turn += 1
        return choices[self._turn % len(choices)]
