"""The real command line as processes, each with a deadline; when one fails, with all that its parties said."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import mpcpipe

ROOT = Path(mpcpipe.__file__).parent.parent
DEADLINE_S = 90.0
"""For anything that is expected to happen: generous, because many processes share the cores."""


class Run:
    """One `mpcpipe ...`, started. Its run folders are under `folder`/runs; leave it with `close`, whatever happened."""

    def __init__(
        self,
        folder: Path,
        *arguments: str | Path,
        path: Sequence[Path] = (),
        program: Sequence[str] = (sys.executable, "-m", "mpcpipe"),
        **variables: str,
    ) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
        environment["PYTHONPATH"] = os.pathsep.join(map(str, [*path, ROOT]))
        self.folder = folder
        self.process = subprocess.Popen(
            [*program, *map(str, arguments)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._changed = threading.Condition()
        self._said: dict[str, list[str]] = {"out": [], "err": []}
        self._readers = [
            threading.Thread(target=self._read, args=(stream, name), daemon=True)
            for stream, name in ((self.process.stdout, "out"), (self.process.stderr, "err"))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: object, name: str) -> None:
        for line in stream:  # type: ignore[attr-defined]
            with self._changed:
                self._said[name].append(line)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def out(self) -> str:
        """The standard output so far."""
        return "".join(self._said["out"])

    @property
    def err(self) -> str:
        """The standard error so far."""
        return "".join(self._said["err"])

    def logs(self) -> dict[str, str]:
        """What each party's process wrote, by the log's name."""
        return {path.name: path.read_text() for path in sorted(self.folder.glob("runs/*/*.log"))}

    def story(self) -> str:
        """Everything that was said, for the message of a failed test."""
        logs = "".join(f"\n--- {name}\n{text}" for name, text in self.logs().items())
        return f"exit code {self.process.returncode}\n--- stdout\n{self.out}--- stderr\n{self.err}{logs}"

    def until(self, said: Callable[[str], bool], deadline_s: float = DEADLINE_S) -> None:
        """Wait until a line of the standard error makes `said` true."""
        ends_at_s = time.monotonic() + deadline_s
        with self._changed:
            while not any(map(said, self._said["err"])):
                left_s = ends_at_s - time.monotonic()
                assert self.process.poll() is None and left_s > 0, self.story()
                self._changed.wait(min(left_s, 0.5))

    def until_training(self) -> None:
        """Wait until some steps are done (the job must reveal its losses)."""
        self.until(lambda line: line.startswith("step 2/"))

    def finish(self, deadline_s: float = DEADLINE_S) -> int:
        """The exit code; a failure of the test if it does not come in time."""
        try:
            self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.close()
            raise AssertionError(f"not finished after {deadline_s:g} s\n{self.story()}") from None
        for reader in self._readers:
            reader.join(10)
        return self.process.returncode

    def ok(self, deadline_s: float = DEADLINE_S) -> Run:
        """Wait for success."""
        assert self.finish(deadline_s) == 0, self.story()
        return self

    def parties(self, count: int = 3) -> dict[int, int]:
        """Process ids of the running parties, by number, once all are there."""
        ends_at_s = time.monotonic() + DEADLINE_S
        while True:
            found = {}
            for pid in children(self.process.pid):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"mpcpipe.launch.start" in words:
                    found[json.loads(words[words.index(b"mpcpipe.launch.start") + 1])["party"]] = pid
            if len(found) == count:
                return found
            assert self.process.poll() is None and time.monotonic() < ends_at_s, self.story()
            os.sched_yield()

    def close(self) -> None:
        """End whatever is left."""
        if self.process.poll() is None:
            self.process.kill()  # its parties go with it
        self.process.wait()
        for reader in self._readers:
            reader.join(10)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def children(pid: int) -> list[int]:
    """Process ids of the children of a process."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class Watched:
    """Processes that are to be gone by a deadline; made while they are there, so that no id can mean another one."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._open = {pid: os.pidfd_open(pid) for pid in pids}

    def gone(self, deadline_s: float = 10.0) -> bool:
        """Whether all have ended, waiting for it at most so long. Call it once."""
        ends_at_s = time.monotonic() + deadline_s
        ended = True
        for descriptor in self._open.values():
            left_s = max(0.0, ends_at_s - time.monotonic())
            ended = ended and bool(select.select([descriptor], [], [], left_s)[0])
            os.close(descriptor)
        return ended


def free_ports(count: int) -> list[int]:
    """Consecutive ports of this machine that nobody listens at.

    Below those that the system gives to outgoing connections: one of them could be taken before its party listens.
    """
    at = 20000 + os.getpid() * 64 % 12000
    while True:
        ports = list(range(at, at + count))
        with contextlib.ExitStack() as held:
            try:
                for port in ports:
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
                return ports
            except OSError:
                at = 20000 + (at + count - 20000) % 12000


def free_hosts(count: int = 3) -> str:
    """--hosts for so many parties of this machine."""
    return ",".join(f"127.0.0.1:{port}" for port in free_ports(count))


def stop(pid: int) -> None:
    """Freeze a process, as a machine that hangs."""
    os.kill(pid, signal.SIGSTOP)
