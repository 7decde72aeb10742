"""Turns at computing: of a party's workers only so many compute at a time as it has cores; first come, first served.

If all workers of a busy machine are served evenly, equal ones stay in step: all compute, then all wait for the network,
and nothing overlaps. In turns, one computes while another's messages travel.
"""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """A semaphore that serves in order. `acquire` before computing, `release` before waiting for anything else."""

    def __init__(self, cores: int) -> None:
        self._lock = threading.Lock()
        self._free = cores
        self._queue: deque[threading.Lock] = deque()

    def acquire(self) -> None:
        """Wait for a turn."""
        with self._lock:
            if self._free and not self._queue:
                self._free -= 1
                return
            mine = threading.Lock()
            mine.acquire()
            self._queue.append(mine)
        mine.acquire()

    def release(self) -> None:
        """Let the next one."""
        with self._lock:
            if self._queue:
                self._queue.popleft().release()
            else:
                self._free += 1
