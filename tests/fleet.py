"""All parties of a job as real processes that are there at once: forked from one that has torch loaded.

What a party does is the product's own `run_for_launcher`; only the start of the interpreter is saved. A party can be
killed at any moment, also upon an event that it tells of.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mpcpipe.job.load import load
from mpcpipe.launch.machine import PartyOptions
from mpcpipe.runtime.events import Event, Lines

DEADLINE_S = 60.0

# Forking this process itself would fork whatever threads and locks earlier tests have left in it.
STARTS = multiprocessing.get_context("forkserver")
STARTS.set_forkserver_preload(["mpcpipe.launch.party", "tests.fleet", "tests.warm"])


def _party(
    packed: str, listener: socket.socket, channels: Sequence[socket.socket | None], events: Connection, log: str
) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    from mpcpipe.launch.party import run_for_launcher

    options = PartyOptions.unpack(packed)
    given = options.__dict__ | {
        "listener_fd": listener.detach(),
        "channel_fds": tuple(-1 if channel is None else channel.detach() for channel in channels),
        "events_fd": events.fileno(),
    }
    code = run_for_launcher(PartyOptions(**given))
    sys.stderr.flush()
    os._exit(code)  # what multiprocessing does at an exit is not the product's


class Fleet:
    """The parties of one run, in the folder `run`; leave it with `close`. overrides: each party's own come last.

    workers: if not 0, each party has so many processes; process i of party p is number p * workers + i.
    """

    def __init__(
        self,
        job: Path,
        run: Path,
        overrides: Sequence[str] = (),
        resume: Path | None = None,
        insecure_keys: int | None = 7,
        own: dict[int, Sequence[str]] | None = None,
        resumes: dict[int, Path | None] | None = None,
        digest: bool = True,
        workers: int = 0,
    ) -> None:
        names = load(job, overrides).parties.names
        run.mkdir(parents=True, exist_ok=True)
        self.run = run
        self.events: list[Event] = []
        each = max(1, workers)
        self._lines = [Lines() for _ in range(len(names) * each)]
        self._selector = selectors.DefaultSelector()
        listeners = [socket.create_server(("127.0.0.1", 0), backlog=128) for _ in self._lines]
        addresses = [("127.0.0.1", listener.getsockname()[1]) for listener in listeners]
        channels: list[list[socket.socket | None]] = [[None] * workers for _ in self._lines]
        for first in range(0, len(self._lines), each):
            for one, other in itertools.combinations(range(each), 2):
                channels[first + one][other], channels[first + other][one] = socket.socketpair()
        self.processes = []
        for number, listener in enumerate(listeners):
            party, worker = divmod(number, each)
            goes_on = (resumes or {}).get(party, resume)
            options = PartyOptions(
                job=str(job),
                overrides=(*overrides, *(own or {}).get(party, ())),
                party=party,
                worker=worker if workers else None,
                addresses=tuple(addresses[worker::each]),
                run_folder=str(run),
                local_parties=len(listeners),
                model_digest=digest,
                insecure_keys=insecure_keys,
                resume=None if goes_on is None else str(goes_on),
            )
            read, write = STARTS.Pipe(duplex=False)
            process = STARTS.Process(
                target=_party,
                args=(options.pack(), listener, channels[number], write, str(run / f"{names[party]}.{worker}.log")),
                daemon=True,
            )
            process.start()
            write.close()
            self._selector.register(read, selectors.EVENT_READ, number)
            self.processes.append(process)
        for opened in itertools.chain(listeners, *channels):
            if opened is not None:
                opened.close()

    def kill(self, number: int) -> None:
        """SIGKILL for a process: a party, or one of its workers."""
        self.processes[number].kill()

    def until(self, stops: Callable[[Event], bool], deadline_s: float = DEADLINE_S) -> Event | None:
        """Take events until one makes `stops` true; None if all parties ended before."""
        ends_at_s = time.monotonic() + deadline_s
        while self.alive():
            left_s = ends_at_s - time.monotonic()
            assert left_s > 0, self.story()
            found = next(filter(stops, self.take(left_s)), None)
            if found is not None:
                return found
        return None

    def alive(self) -> bool:
        """Whether a party may still tell something."""
        return bool(self._selector.get_map())

    def take(self, wait_s: float) -> list[Event]:
        """The next events, waiting for them at most so long."""
        found: list[Event] = []
        for key, _ in self._selector.select(wait_s):
            reader: Any = key.fileobj
            data = os.read(reader.fileno(), 1 << 16)
            if not data:
                self._selector.unregister(reader)
                reader.close()
            found += self._lines[key.data].feed(data)
        self.events += found
        return found

    def finish(self, deadline_s: float = DEADLINE_S) -> list[int | None]:
        """Wait for all; their exit codes."""
        self.until(lambda event: False, deadline_s)
        for process in self.processes:
            process.join(10)
        return [process.exitcode for process in self.processes]

    def ok(self) -> dict[str, Any]:
        """Wait for all to end well; the first party's report."""
        codes = self.finish()
        assert codes == [0] * len(self.processes), self.story()
        done = [event for event in self.events if event["event"] == "done" and event["party"] == 0]
        return next(event["report"] for event in done if event["report"])

    def failures(self) -> dict[int, str]:
        """What the parties said that failed."""
        return {event["party"]: event["message"] for event in self.events if event["event"] == "failed"}

    def story(self) -> str:
        """Everything that was said, for the message of a failed test."""
        logs = "".join(f"\n--- {log.name}\n{log.read_text()}" for log in sorted(self.run.glob("*.log")))
        return f"exit codes {[p.exitcode for p in self.processes]}, {self.events[-8:]}{logs}"

    def close(self) -> None:
        """End whatever is left."""
        for process in self.processes:
            process.kill()
            process.join(10)
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
