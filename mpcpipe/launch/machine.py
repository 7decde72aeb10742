"""Starting all parties of a job on this machine: one process each, watched until the last one has ended.

    launcher ── listening socket, job, event pipe ──> party 0
             ──                                   ──> party 1      parties talk to each other over loopback
             ──                                   ──> party 2
    launcher <── events (progress, report, failure) ── each

The launcher opens no data file. Sockets are opened here and inherited, so no port can be taken in between. Anybody on
the machine can connect to them, though, and without TLS could say to be a party: so all processes get a secret of the
run in their environment, which (other than a command line) only this user can read.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mpcpipe.errors import Interrupted, MpcpipeError, PeerLost
from mpcpipe.launch.addresses import of_worker
from mpcpipe.launch.ranks import Seat, Seating
from mpcpipe.runtime.events import Event, Lines

TOGETHER = "MPCPIPE_TOGETHER"
"""Where in the environment the secret is."""

GRACE_S = 2.5
"""After the first failure, what the other parties get to report and end by themselves."""


@dataclass(frozen=True, kw_only=True)
class PartyOptions:
    """How one party of a job is to be started; travels to its process as JSON."""

    job: str
    overrides: tuple[str, ...] = ()
    party: int = 0
    worker: int | None = None
    """Which of the party's workers, where each is a process; None: all of them, as threads."""
    channel_fds: tuple[int, ...] = ()
    """By worker, the connection to it (-1 to itself)."""
    addresses: tuple[tuple[str, int], ...] = ()
    listener_fd: int | None = None
    events_fd: int | None = None
    launcher_pid: int | None = None
    run_folder: str | None = None
    local_parties: int = 1
    model_digest: bool = False
    insecure_keys: int | None = None
    resume: str | None = None
    """The folder of the run to go on with."""

    def pack(self) -> str:
        """As one command line argument."""
        return json.dumps(self.__dict__)

    @classmethod
    def unpack(cls, text: str) -> PartyOptions:
        """The inverse of `pack`."""
        given = json.loads(text)
        given["overrides"] = tuple(given["overrides"])
        given["channel_fds"] = tuple(given["channel_fds"])
        given["addresses"] = tuple((host, port) for host, port in given["addresses"])
        return cls(**given)


@dataclass
class Party:
    """One running party, or a worker of one, as the launcher sees it. leads: its report is the party's."""

    number: int
    name: str
    log: Path
    leads: bool
    process: subprocess.Popen[bytes]
    events: int
    lines: Lines = field(default_factory=Lines)
    report: dict[str, Any] | None = None
    failure: Event | None = None
    ended_here: bool = False
    """The launcher had to end it, because it did not end by itself."""


class Failure(MpcpipeError):
    """The run failed; carries the exit code of the first cause."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run_local(
    options: PartyOptions,
    names: Sequence[str],
    log_folder: Path,
    on_event: Callable[[Event], None],
    seating: Seating | None = None,
) -> list[dict[str, Any]]:
    """Run every party of the job here; returns their reports in order. `seating`, where workers are processes: of all.

    Raises `Failure` with the cause that the parties report and its exit code, `Interrupted` after Ctrl-C. No process is
    left.
    """
    seats = [Seat(number) for number in range(len(names))]
    if seating is not None:
        seats = [seating.seat(rank) for rank in range(seating.world)]
    listeners = {seat: socket.create_server(("127.0.0.1", 0), backlog=128) for seat in seats}
    addresses = {seat: ("127.0.0.1", listener.getsockname()[1]) for seat, listener in listeners.items()}
    together = {TOGETHER: secrets.token_hex(32)}
    return _run(options, names, seats, listeners, addresses, log_folder, on_event, seating, together)


def run_one(
    options: PartyOptions,
    names: Sequence[str],
    log_folder: Path,
    on_event: Callable[[Event], None],
    seating: Seating,
) -> list[dict[str, Any]]:
    """Run one party's workers here, each a process: `options.party`, at `options.addresses` and the ports above. As
    `run_local`."""
    from mpcpipe.link.mesh import listen

    own = [Seat(options.party, worker) for worker in range(seating.workers)]
    addresses = {
        Seat(party, worker): place
        for worker in range(seating.workers)
        for party, place in enumerate(of_worker(options.addresses, worker))
    }
    listeners: dict[Seat, socket.socket] = {}
    try:
        for seat in own:
            listeners[seat] = listen(addresses[seat])
    except MpcpipeError:
        _close(listeners.values(), ())
        raise
    return _run(options, names, own, listeners, addresses, log_folder, on_event, seating, {})


def _run(
    options: PartyOptions,
    names: Sequence[str],
    seats: Sequence[Seat],
    listeners: Mapping[Seat, socket.socket],
    addresses: Mapping[Seat, tuple[str, int]],
    log_folder: Path,
    on_event: Callable[[Event], None],
    seating: Seating | None,
    environment: Mapping[str, str],
) -> list[dict[str, Any]]:
    channels = _channels(seats)
    parties: list[Party] = []
    try:
        with _interruptible(parties) as interrupted:
            for seat in seats:
                if interrupted:
                    break
                started = replace(
                    options,
                    party=seat.party,
                    worker=seat.worker,
                    addresses=tuple(addresses[Seat(number, seat.worker)] for number in range(len(names))),
                    listener_fd=listeners[seat].fileno(),
                    channel_fds=tuple(channel.fileno() if channel else -1 for channel in channels[seat]),
                    launcher_pid=os.getpid(),
                    local_parties=len(seats),
                )
                name = names[seat.party] if seating is None else seating.name(seat)
                log = log_folder / f"{names[seat.party]}{f'.{seat.worker}' if seat.worker else ''}.log"
                parties.append(_start(started, name, log, environment))
            _close(listeners.values(), channels.values())
            _watch(parties, on_event)
        if interrupted:
            raise Interrupted("stopped by Ctrl-C; all parties have ended")
    finally:
        _close(listeners.values(), channels.values())
        for party in parties:
            party.ended_here = party.process.poll() is None
            party.process.kill()
            party.process.wait()
            os.close(party.events)
    _raise_cause(parties)
    return [party.report for party in parties if party.report is not None and party.leads]


def _channels(seats: Sequence[Seat]) -> dict[Seat, list[socket.socket | None]]:
    """For each worker process, a connection to each other one of its party, by number."""
    ends: dict[Seat, list[socket.socket | None]] = {
        seat: [None] * sum(other.party == seat.party for other in seats if seat.worker is not None) for seat in seats
    }
    for one, other in itertools.combinations([seat for seat in seats if seat.worker is not None], 2):
        if one.party == other.party:
            assert one.worker is not None and other.worker is not None
            ends[one][other.worker], ends[other][one.worker] = socket.socketpair()
    return ends


def _close(listeners: Iterable[socket.socket], channels: Iterable[Iterable[socket.socket | None]]) -> None:
    for sock in itertools.chain(listeners, *channels):
        if sock is not None:
            sock.close()


def _start(options: PartyOptions, name: str, log_file: Path, environment: Mapping[str, str]) -> Party:
    read, write = os.pipe()
    try:
        described = replace(options, events_fd=write)
        with log_file.open("wb") as log, _held_back(signal.SIGINT):
            process = subprocess.Popen(  # noqa: S603  nothing of it is the user's but what mpcpipe itself reads
                [sys.executable, "-m", "mpcpipe.launch.start", described.pack()],
                pass_fds=[
                    fd for fd in (options.listener_fd, write, *options.channel_fds) if fd is not None and fd >= 0
                ],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the launcher only, which tells the parties once
            )
    finally:
        os.close(write)
    return Party(options.party, name, log_file, not options.worker, process, read)


@contextmanager
def _held_back(number: signal.Signals) -> Iterator[None]:
    """Processes started here get the signal only once they ask for it: Python itself would answer with a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _interruptible(parties: list[Party]) -> Iterator[list[int]]:
    """Ctrl-C and termination: the first asks the parties to stop, the second ends them."""
    seen: list[int] = []

    def stop(number: int, _: object) -> None:
        seen.append(number)
        for party in parties:
            if party.process.poll() is None:
                party.process.send_signal(signal.SIGINT if len(seen) == 1 else signal.SIGKILL)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(parties: list[Party], on_event: Callable[[Event], None]) -> None:
    """Hand on events until every party has ended; after a failure only for so long."""
    deadline: float | None = None
    with selectors.DefaultSelector() as selector:
        for party in parties:
            selector.register(party.events, selectors.EVENT_READ, party)
        while selector.get_map():
            ready = selector.select(0.2 if deadline is None else max(0.0, min(0.2, deadline - time.monotonic())))
            for key, _ in ready:
                party = key.data
                data = os.read(party.events, 1 << 16)
                if not data:
                    selector.unregister(party.events)
                    party.process.wait()
                    if party.process.returncode and deadline is None:
                        deadline = time.monotonic() + GRACE_S
                for event in party.lines.feed(data):
                    if event["event"] == "done":
                        party.report = event["report"]
                    elif event["event"] == "failed":
                        party.failure = event
                        deadline = deadline or time.monotonic() + GRACE_S
                    on_event(event)
            if deadline is not None and (time.monotonic() > deadline or _one_is_lost(parties)):
                return


def _one_is_lost(parties: list[Party]) -> bool:
    """Whether all parties but one say that they have lost another: then there is nobody left to wait for."""
    told = [party.failure["kind"] for party in parties if party.failure is not None]
    return len(told) == len(parties) - 1 > 0 and set(told) == {"PeerLost"}


def _raise_cause(parties: list[Party]) -> None:
    """The headline of a failed run: a party that died without a word, else what the one said who knows most."""
    told = [party.failure for party in parties if party.failure is not None]
    died = [p for p in parties if p.failure is None and p.report is None and not p.ended_here]
    if died and all(failure["kind"] in ("PeerLost", "MpcpipeError") for failure in told):
        party, code = died[0], died[0].process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise Failure(f"{party.name} {how}, and with it the run. Its log: {party.log}", PeerLost.exit_code)
    if told:
        first = min(
            (party for party in parties if party.failure is not None), key=lambda one: _is_hearsay(one, parties)
        )
        assert first.failure is not None
        raise Failure(first.failure["message"], first.failure["exit_code"])


def _is_hearsay(told: Party, parties: list[Party]) -> bool:
    """Whether it was another party's failure: what parties tell each other begins with the name of who failed."""
    assert told.failure is not None
    others = (party.name for party in parties if party is not told)
    return str(told.failure["message"]).startswith(tuple(f"{name}: " for name in others))
