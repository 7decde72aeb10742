"""What a party sends, no faster than its line takes it: so that a small message finds no queue of large ones.

    without    large, large, large ──> sockets' buffers, megabytes of them ──> line      a small one waits for all that
    with       large, large, large ──> a chunk of each in turn ──> line                  a small one goes at once

The line's queue is in the kernel, and often in a router, where nobody can pass; here it is with whoever sends, where
small frames need not wait. One pacer a process: all its links share the line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SMALL_BYTES = 16 << 10
"""Frames up to here are not held back; they count, so that large ones make up for them."""
# Long enough that waking up for each costs little, short enough for links to take turns.
_CHUNK_S = 8e-3
_CHUNK_BYTES = (32 << 10, 1 << 20)


class Pacer:
    """`rate_bytes_per_s`: of the line, in one direction. Thread-safe."""

    def __init__(
        self,
        rate_bytes_per_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        if rate_bytes_per_s <= 0:
            raise ValueError(f"a line's rate is positive, not {rate_bytes_per_s} bytes a second")
        self.rate_bytes_per_s = rate_bytes_per_s
        least, most = _CHUNK_BYTES
        self.chunk_bytes = min(most, max(least, int(_CHUNK_S * rate_bytes_per_s)))
        self._clock, self._sleep = clock, sleep
        self._free_at_s = clock()
        self._lock = threading.Lock()

    def book(self, nbytes: int) -> float:
        """So many bytes more are to leave; returns in how many seconds it is their turn.

        What was not used for longer than a chunk takes is lost, so that no burst fills the line's queue.
        """
        with self._lock:
            now_s = self._clock()
            start_s = max(self._free_at_s, now_s - self.chunk_bytes / self.rate_bytes_per_s)
            self._free_at_s = start_s + nbytes / self.rate_bytes_per_s
            return max(0.0, start_s - now_s)

    def hold(self, nbytes: int) -> None:
        """Wait until it is the turn of so many bytes."""
        seconds = self.book(nbytes)
        if seconds:
            self._sleep(seconds)
