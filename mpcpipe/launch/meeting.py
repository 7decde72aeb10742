"""How the ranks that a launcher started tell each other where they are, and connect those that belong to one party.

    every rank: its machine, its address there       ──exchange──>  which ranks share a machine
    every rank: where it listens, for the parties and for its own party's other workers  ──exchange──>  connections

What is exchanged is no secret, and proves nothing: who is who, TLS says where the job pins certificates.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import shutil
import socket
import ssl
import struct
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mpcpipe.errors import AuthError, ConnectError, UsageError
from mpcpipe.job.schema import Job
from mpcpipe.launch.environment import Launched
from mpcpipe.launch.identity import identity_of
from mpcpipe.launch.ranks import Seat, Seating
from mpcpipe.link.fabric import Fabric
from mpcpipe.link.mesh import listen
from mpcpipe.link.pinned import context
from mpcpipe.link.secure import require_loopback
from mpcpipe.link.tls import Connection, TlsSocket

HOST_VARIABLE = "MPCPIPE_HOST"
_WHO = struct.Struct("<I16s")
# A caller has this long to say which worker it is.
_GREETING_S = 10.0


class Meeting(Protocol):
    """What all ranks have in common from the start. Everybody calls the same, in the same order."""

    rank: int
    world: int

    def exchange(self, text: str) -> list[str]:
        """What every rank says here, by rank."""
        ...

    def close(self) -> None:
        """Leave, when all is done."""
        ...


def meet(found: Launched, job: Job) -> Meeting:
    """The meeting of all ranks. Errors: UsageError for a link that this launcher does not go with, ConnectError."""
    kind, by = job.link.kind, found.by
    if kind == "torch" and by == "mpirun":
        raise UsageError(
            'link.kind is "torch", and mpirun started this process: start it with torchrun, or say link.kind = "mpi"'
        )
    if kind == "mpi" and by == "torchrun":
        raise UsageError(
            'link.kind is "mpi", and torchrun started this process: start it with mpirun, or say link.kind = "torch"'
        )
    if by == "mpirun" or kind == "mpi":
        from mpcpipe.link.mpi import Mpi

        mpi = Mpi()
        if mpi.world != found.world:
            raise UsageError(
                f"{by} started {found.world} ranks, and MPI knows {mpi.world}: mpirun and the MPI library that mpi4py "
                "loads belong to two installations (with Slurm: srun --mpi=pmix)"
            )
        return mpi
    from mpcpipe.link.distributed import Store

    assert found.meeting is not None
    open_here = found.rank == 0 and not found.store
    return Store(*found.meeting, found.rank, found.world, job.run.connect_s, open_here)


def check_place(job: Job, machines: Sequence[Machine]) -> None:
    """AuthError if frames would travel in the clear between machines, and the job does not allow it."""
    several = len({machine.key for machine in machines}) > 1
    if job.link.kind != "tcp" and several and not job.parties.insecure_plaintext:
        raise AuthError(
            f'link.kind = "{job.link.kind}" does not encrypt, the ranks are on several machines, and whoever reads '
            'along sees every share: take link.kind = "tcp" with parties.fingerprints, or say '
            "parties.insecure_plaintext = true for a network that you trust"
        )


def fabric_of(meeting: Meeting, job: Job, seating: Seating) -> Fabric | None:
    """What the frames of this rank's workers travel over; None for TCP."""
    if job.link.kind == "tcp":
        return None
    worker = seating.seat(meeting.rank).worker or 0
    ranks = [seating.rank(party, worker) for party in range(len(seating.names))]
    if job.link.kind == "mpi":
        from mpcpipe.link.mpi import Mpi

        assert isinstance(meeting, Mpi)
        return meeting.fabric(ranks)
    from mpcpipe.link.distributed import Store, TorchFabric

    assert isinstance(meeting, Store)
    return TorchFabric(meeting, ranks, job.run.connect_s)


# Machines


@dataclass(frozen=True)
class Machine:
    """Where a rank is. key: the same for two ranks that can talk over the loopback address; host: for the others."""

    key: str
    name: str
    host: str


def machines(meeting: Meeting, found: Launched, environment: Mapping[str, str]) -> list[Machine]:
    """Of every rank."""
    own = Machine(_key(), socket.gethostname(), _host(found, environment))
    return [Machine(*json.loads(said)) for said in meeting.exchange(json.dumps([own.key, own.name, own.host]))]


def _key() -> str:
    """One boot of one kernel, and one network of it (a container may have its own)."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/net"))
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:32]


def _host(found: Launched, environment: Mapping[str, str]) -> str:
    """By which address other machines reach this one: as said, else that of the network in which rank 0 or the launcher
    is."""
    if environment.get(HOST_VARIABLE):
        return environment[HOST_VARIABLE]
    towards = found.meeting[0] if found.meeting is not None else socket.gethostname()
    with contextlib.suppress(OSError):
        family, kind, _, _, address = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing: asks for the route
            return str(probe.getsockname()[0])
    return socket.gethostname()


def hosts_of(where: Sequence[Machine]) -> list[str]:
    """At which address each rank listens, where its users say none."""
    alone = len({one.key for one in where}) == 1
    return ["127.0.0.1" if alone else one.host for one in where]


# Connections


@dataclass(frozen=True)
class Places:
    """Where everybody listens, by rank, and this rank's own listening sockets."""

    addresses: list[tuple[str, int]]
    listener: socket.socket
    channels: list[Any]
    channel_listener: socket.socket | None


@contextlib.contextmanager
def places(
    meeting: Meeting,
    job: Job,
    seating: Seating,
    where: Sequence[Machine],
    given: tuple[tuple[str, int], ...] | None,
) -> Iterator[Places]:
    """Listen, and hear where all others do. `given`: each party's address, if its users say it."""
    seat, machine = seating.seat(meeting.rank), where[meeting.rank]
    address = (hosts_of(where)[meeting.rank], 0)
    if given is not None:
        address = given[seat.party] if seat.worker is None else (given[seat.party][0], 0)
    listener = listen(address)
    folder = Path(tempfile.mkdtemp(prefix="mpcpipe-"))  # mode 0700
    channel_listener: socket.socket | None = None
    channel: Any = None
    try:
        if seat.worker is not None:
            if _together(seating, where, seat.party):
                path = str(folder / "channel")
                channel_listener = socket.socket(socket.AF_UNIX)
                channel_listener.bind(path)
                channel_listener.listen(64)
                channel = path
            else:
                channel_listener = listen((machine.host, 0))
                channel = [machine.host, channel_listener.getsockname()[1]]
        own = json.dumps([address[0], listener.getsockname()[1], channel])
        said = [json.loads(text) for text in meeting.exchange(own)]
        yield Places([(text[0], text[1]) for text in said], listener, [text[2] for text in said], channel_listener)
    finally:
        if channel_listener is not None:
            channel_listener.close()
        shutil.rmtree(folder, ignore_errors=True)


def _together(seating: Seating, where: Sequence[Machine], party: int) -> bool:
    ranks = [seating.rank(party, worker) for worker in range(seating.workers)]
    return len({where[rank].key for rank in ranks}) == 1


def channels(meeting: Meeting, job: Job, seating: Seating, found: Places) -> dict[int, Connection]:
    """Connections to this party's other workers, by number: the higher number calls.

    All of them know a token that the first worker's rank made: so a process that is no rank of this job does not take
    part by chance. That nobody does on purpose is for the folder's mode on one machine, and for TLS between several.
    """
    seat = seating.seat(meeting.rank)
    tokens = meeting.exchange(secrets.token_hex(16))
    if seat.worker is None:
        return {}
    token = bytes.fromhex(tokens[seating.rank(seat.party)])
    until = time.monotonic() + job.run.connect_s
    made: dict[int, Connection] = {}
    assert found.channel_listener is not None
    try:
        for other in range(seat.worker):
            place = found.channels[seating.rank(seat.party, other)]
            sock = _secured(_call(place, until), job, seat, until, server=False)
            sock.sendall(_WHO.pack(seat.worker, token))
            made[other] = sock
        while len(made) < seating.workers - 1:
            found.channel_listener.settimeout(max(0.01, until - time.monotonic()))
            caller = found.channel_listener.accept()[0]
            try:
                other, sock = _heard(caller, job, seat, token, min(until, time.monotonic() + _GREETING_S))
            except (OSError, AuthError):  # a stranger, or one that says nothing: no reason to stop
                caller.close()
                continue
            made[other] = sock
    except OSError as error:
        missing = [seating.name(Seat(seat.party, w)) for w in range(seating.workers) if w not in (*made, seat.worker)]
        raise ConnectError(
            f"{seating.name(seat)} could not connect with {', '.join(missing)} in {job.run.connect_s:g} s: are they on "
            "machines that reach each other?"
        ) from error
    return made


def _heard(caller: socket.socket, job: Job, seat: Seat, token: bytes, until: float) -> tuple[int, Connection]:
    """Which other worker of this party has called, and the connection to use. AuthError if it is none."""
    caller.settimeout(max(0.01, until - time.monotonic()))
    sock = _secured(caller, job, seat, until, server=True)
    sock.settimeout(max(0.01, until - time.monotonic()))
    said = sock.recv(_WHO.size)
    other, shown = _WHO.unpack(said) if len(said) == _WHO.size else (0, b"")
    if not hmac.compare_digest(shown, token) or seat.worker is None or other <= seat.worker:
        raise AuthError(f"a caller at {job.parties.names[seat.party]} is none of its workers")
    return other, sock


def _call(place: Any, until: float) -> socket.socket:
    if isinstance(place, str):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(place)
        return sock
    return socket.create_connection((place[0], place[1]), timeout=max(0.01, until - time.monotonic()))


def _secured(sock: socket.socket, job: Job, seat: Seat, until: float, server: bool) -> Connection:
    """Between machines: TLS in which both ends prove the party's own key, or in the clear where the job allows that."""
    if sock.family == socket.AF_UNIX:
        return sock
    identity, _ = identity_of(job, seat.party)
    if identity is None:
        for host in (sock.getsockname()[0], sock.getpeername()[0]):
            require_loopback(host, job.parties.insecure_plaintext)
        return sock
    secured = TlsSocket(sock, context(identity, identity.certificate, server), server)
    try:
        secured.handshake(until)
    except ssl.SSLError as error:
        raise AuthError(f"TLS between workers of {job.parties.names[seat.party]} failed: {error.reason}") from error
    return secured
