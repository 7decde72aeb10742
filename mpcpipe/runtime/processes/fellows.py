"""The other workers of this party, where each is a process: hand-over between them, orders of the first, and failures.

            worker 0 (leads) ── run, layers, collect, end ──> worker 1, worker 2 ...
            worker i  <── values, finished actions ──> worker j          each two have a channel of their own

Whoever fails tells all others, and the loss of a channel is a failure that names who is gone.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mpcpipe.errors import MpcpipeError, PeerLost, by_name
from mpcpipe.plan.actions import Done, Schedule
from mpcpipe.runtime.handover import Handover
from mpcpipe.runtime.processes.channel import Channel


class Fellows(Handover):
    """What the workers of one party leave for each other, for the one whose process this is: worker `index`.

    channels: to each other worker. names: of all, for errors. `watch` says who is told of a failure besides.
    """

    def __init__(self, index: int, channels: Mapping[int, Channel], names: Sequence[str], schedule: Schedule) -> None:
        super().__init__()
        self.index, self.names = index, list(names)
        self._owner = {stage: number for number, worker in enumerate(schedule.workers) for stage in worker.stages}
        self._channels = dict(channels)
        self._orders: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._on_failure: list[Callable[[BaseException], None]] = []
        self._told = False
        self._left: set[int] = set()
        self._round = 0
        for number, channel in self._channels.items():
            channel.start(f"hear {self.names[number]}", self._hears(number), self._misses(number))

    @property
    def others(self) -> list[int]:
        """The other workers' numbers."""
        return sorted(self._channels)

    # Values and finished actions, as every hand-over has them

    def put(self, key: Any, value: Any) -> None:
        """Leave `value` for whoever takes `key`, a (direction, stage, micro-batch)."""
        owner = self._owner[key[1]]
        if owner == self.index:
            super().put(key, value)
        else:
            self._send(owner, ("put", key, value))

    def finish(self, done: Iterable[Done], clock: int, evidence: Any = None) -> None:
        """Actions have been carried out, here: all others hear of it."""
        done = list(done)
        super().finish(done, clock, evidence)
        for other in self._channels:
            self._send(other, ("done", self._round, done, clock, evidence))

    def forget(self) -> None:
        """Start a new list. What others still say of the last one is dropped: nobody here waited for it."""
        with self._changed:
            super().forget()
            self._round += 1

    def fail(self, error: BaseException) -> None:
        """This worker goes no further: tell all others, and wake whoever waits here."""
        first, self._told = not self._told, True
        super().fail(error)
        if first:
            known = isinstance(error, MpcpipeError)
            said = str(error) if known else f"{self.names[self.index]}: stopped by an unexpected {type(error).__name__}"
            for channel in self._channels.values():
                with contextlib.suppress(OSError):
                    channel.send(("failed", type(error).__name__, said))
        self._orders.put((self.index, error))

    # Orders

    def watch(self, on_failure: Callable[[BaseException], None]) -> None:
        """Call `on_failure` with the error of another worker, when it comes: from the thread that hears of it."""
        self._on_failure.append(on_failure)
        if self._failure is not None:
            on_failure(self._failure)

    def tell(self, worker: int, order: Any) -> None:
        """An order of the first worker, or the answer to it."""
        self._send(worker, ("order", order))

    def hear(self) -> tuple[int, Any]:
        """Wait for the next order or answer: from whom, and what. Raises the failure of any worker."""
        sender, order = self._orders.get()
        if isinstance(order, BaseException):
            self._orders.put((sender, order))
            raise order
        return sender, order

    def answers(self) -> dict[int, Any]:
        """One answer of each other worker."""
        found: dict[int, Any] = {}
        while len(found) < len(self._channels):
            sender, answer = self.hear()
            found[sender] = answer
        return found

    def close(self) -> None:
        """The end of the work: from here on, the loss of a channel is no failure."""
        for channel in self._channels.values():
            with contextlib.suppress(OSError):
                channel.send(("bye",))
        for channel in self._channels.values():
            channel.close()

    def _heard(self, round_: int, done: list[Done], clock: int, evidence: Any) -> None:
        with self._changed:
            if round_ == self._round:
                super().finish(done, clock, evidence)

    def _send(self, worker: int, message: Any) -> None:
        try:
            self._channels[worker].send(message)
        except OSError as error:
            lost = self._gone(worker)
            self._fails(lost)
            raise (self._failure or lost) from error

    def _gone(self, worker: int) -> PeerLost:
        return PeerLost(f"{self.names[worker]} went away: its connection ended without a goodbye")

    def _fails(self, error: BaseException) -> None:
        if self._failure is not None:
            return
        self.fail(error)
        for tell in self._on_failure:
            tell(error)

    def _misses(self, worker: int) -> Callable[[], None]:
        def end() -> None:
            if worker not in self._left:
                self._fails(self._gone(worker))

        return end

    def _hears(self, worker: int) -> Callable[[Any], None]:
        def take(message: Any) -> None:
            kind, *rest = message
            if kind == "put":
                super(Fellows, self).put(*rest)
            elif kind == "done":
                self._heard(*rest)
            elif kind == "failed":
                name, said = rest
                self._fails(by_name(name)(said))
            elif kind == "bye":
                self._left.add(worker)
            else:
                self._orders.put((worker, rest[0]))

        return take
