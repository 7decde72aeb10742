"""Handing micro-batches from stage to stage within a party: a cut costs no round, only this."""

from __future__ import annotations

import threading
import time
from typing import Any

Key = tuple[str, int, int]  # ("F" or "B", the stage that takes it, micro-batch)


class Handover:
    """A shelf that workers of one party put values on and take them from, once each. No copy is made.

    With a value travels the giver's round clock, so that rounds are counted along the whole way.
    """

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._shelf: dict[Key, tuple[Any, int]] = {}
        self._failure: BaseException | None = None

    def put(self, key: Key, value: Any, clock: int) -> None:
        """Leave `value` for the stage that `key` names."""
        with self._ready:
            assert key not in self._shelf, f"{key} was not taken"
            self._shelf[key] = (value, clock)
            self._ready.notify_all()

    def take(self, key: Key) -> tuple[Any, int, float]:
        """Wait for what `key` names; returns it, the giver's clock, and the seconds waited. Raises what `fail` was given."""
        began = time.perf_counter()
        with self._ready:
            while key not in self._shelf:
                if self._failure is not None:
                    raise self._failure
                self._ready.wait()
            value, clock = self._shelf.pop(key)
        return value, clock, time.perf_counter() - began

    def fail(self, error: BaseException) -> None:
        """Wake up everybody who waits, with this error."""
        with self._ready:
            self._failure = error
            self._ready.notify_all()
