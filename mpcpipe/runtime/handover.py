"""What the workers of one party wait for: each other's values and finished actions. A cut costs no round, only this."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

from mpcpipe.link.base import Turn
from mpcpipe.plan.actions import Done


class Handover:
    """A shelf of values, and a list of what has been carried out. Nothing is copied.

    With a value and with a finished action travels the giver's round clock, so that rounds are counted along the whole
    way.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._shelf: dict[Any, Any] = {}
        self._done: dict[Done, int] = {}
        self._evidence: dict[Done, Any] = {}
        self._failure: BaseException | None = None

    def put(self, key: Any, value: Any) -> None:
        """Leave `value` for whoever takes `key`."""
        with self._changed:
            self._shelf[key] = value

    def take(self, key: Any) -> Any:
        """What was left under `key`, which must be there: wait for the action that leaves it first."""
        with self._changed:
            return self._shelf.pop(key)

    def finish(self, done: Iterable[Done], clock: int, evidence: Any = None) -> None:
        """Actions have been carried out; `clock` is the round clock of who did, `evidence` its `Protocol.evidence`."""
        with self._changed:
            for one in done:
                self._done[one] = clock
                self._evidence[one] = evidence
            self._changed.notify_all()

    def wait(self, needs: Iterable[Done], turn: Turn | None = None) -> tuple[int, float]:
        """Wait until all of `needs` are done: the largest of their clocks, the seconds waited. Raises what `fail` got.

        Whoever has to wait gives up its `turn` for so long.
        """
        needs = list(needs)
        began = time.perf_counter()
        with self._changed:
            ready = all(need in self._done for need in needs)
        if turn is None or ready:
            return self._wait(needs, began)
        turn.release()
        try:
            return self._wait(needs, began)
        finally:
            turn.acquire()

    def _wait(self, needs: list[Done], began: float) -> tuple[int, float]:
        with self._changed:
            while any(need not in self._done for need in needs):
                if self._failure is not None:
                    raise self._failure
                self._changed.wait()
            clock = max((self._done[need] for need in needs), default=0)
        return clock, time.perf_counter() - began

    def evidence_of(self, needs: Iterable[Done]) -> list[Any]:
        """What came with each of `needs`, which must be done."""
        with self._changed:
            return [self._evidence[need] for need in needs]

    def forget(self) -> None:
        """Start a new list; nobody may be at work."""
        with self._changed:
            assert not self._shelf, "a value was left that nobody took"
            self._done.clear()
            self._evidence.clear()

    def fail(self, error: BaseException) -> None:
        """Wake up everybody who waits, with this error."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
