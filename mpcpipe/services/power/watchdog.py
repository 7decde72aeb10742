"""Waits for the end of the process that changed a GPU, and puts the GPU back if that process did not.

Started by the guard before its first write. It holds the GPU's lock, so nobody else gets at the GPU in between.

    python -m mpcpipe.services.power.watchdog FOLDER UUID PID STARTED      and "done" on its standard input
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

from mpcpipe.errors import PowerError
from mpcpipe.services.power.guard import restore_entry
from mpcpipe.services.power.journal import Journal, started

ATTEMPTS, BETWEEN_S = 5, 1.0
"""A GPU that is being reset, or a driver that is busy, may take a moment."""


def owner_has_ended_well(pid: int, pid_started: int, stdin: int) -> bool:
    """Wait. True: it said "done"; False: it is gone without a word.

    The end of the standard input alone tells nothing where a child of the owner has inherited its other end, so the
    process itself is watched, too.
    """
    try:
        owner = os.pidfd_open(pid)
    except ProcessLookupError:
        owner = None
    except (AttributeError, OSError):  # another system, or a kernel without it: the standard input has to do
        return b"done" in _to_end(stdin)
    if owner is None or started(pid) != pid_started:
        return b"done" in _rest(stdin)
    said = b""
    poll = select.poll()
    poll.register(owner, select.POLLIN)
    poll.register(stdin, select.POLLIN | select.POLLHUP)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if stdin in ready:
            new = os.read(stdin, 64)
            said += new
            if b"done" in said:
                return True
            if not new:
                poll.unregister(stdin)
        if owner in ready:
            return b"done" in said + _rest(stdin)


def _rest(stdin: int) -> bytes:
    """What is there without waiting."""
    os.set_blocking(stdin, False)
    try:
        return os.read(stdin, 64)
    except OSError:
        return b""


def _to_end(stdin: int) -> bytes:
    said = b""
    while new := os.read(stdin, 64):
        said += new
    return said


def main(words: list[str]) -> int:
    """0: nothing to do, or all put back; 1: the journal is still there."""
    folder, uuid, pid, pid_started = words
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # its work begins when others are told to end
    if owner_has_ended_well(int(pid), int(pid_started), sys.stdin.fileno()):
        return 0
    journal = Journal(uuid, Path(folder))
    for attempt in range(ATTEMPTS):
        try:
            entry = journal.read()
            if entry is None:
                return 0
            restore_entry(journal, entry)
        except PowerError as error:
            print(f"power watchdog: {error}", file=sys.stderr, flush=True)
            if attempt + 1 < ATTEMPTS:
                time.sleep(BETWEEN_S)
        else:
            print(
                f"power watchdog: process {pid} ended without putting {entry.name} back as it was; done",
                file=sys.stderr,
                flush=True,
            )
            return 0
    print("power watchdog: gave up; run `mpcpipe power restore`", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
