"""Setting up all connections of one party: a control connection to every other party, and one a worker.

    party 0  listens  <──────────┬──────────┐         the higher number dials the lower one, and tries again until
    party 1  listens, dials 0 ───┘  <───────┤         the deadline: parties may be started in any order
    party 2  dials 0 and 1 ─────────────────┘

`connect` returns once everybody has met everybody, agreed on the job, and connected all workers.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from mpcpipe.errors import AddressInUseError, AuthError, ConnectError, MpcpipeError
from mpcpipe.link import message
from mpcpipe.link.arrivals import Arrivals
from mpcpipe.link.control import Control
from mpcpipe.link.fabric import Fabric
from mpcpipe.link.handshake import Handshake, Hello, Session, confirm, exchange_keys
from mpcpipe.link.identity import Identity
from mpcpipe.link.network import Network
from mpcpipe.link.pacer import Pacer
from mpcpipe.link.pinned import Pinned
from mpcpipe.link.secure import Protection
from mpcpipe.link.tcp import DEADLINE_S, prepare
from mpcpipe.link.tls import Connection

T = TypeVar("T")
Address = tuple[str, int]

CONNECT_S = 60.0
# When something is wrong for good, who has not come by now gets this much more time to hear of it.
_AFTER_ERROR_S = 5.0
_TRY_S = 5.0
_FIRST_RETRY_S, _LAST_RETRY_S = 0.01, 0.25


def listen(address: Address) -> socket.socket:
    """A socket that listens on `address` (port 0: any free one). Errors: AddressInUseError, ConnectError."""
    host, port = address
    try:
        family, kind, protocol, _, resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConnectError(f"the address {host}:{port} of this party is none: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        prepare(listener)
        listener.bind(resolved)
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUseError(
                f"another program listens on {host}:{port}: stop it (an earlier run may still be there), "
                "or give this party another port in the job"
            ) from error
        raise ConnectError(
            f"this party cannot listen on {host}:{port}: {error.strerror}. "
            "Give it an address of this machine, and a port that you may use"
        ) from error
    return listener


def connect(
    party: int,
    addresses: Sequence[Address],
    *,
    workers: int = 1,
    agreement: Mapping[str, str] | None = None,
    names: Sequence[str] | None = None,
    deadline_s: float = CONNECT_S,
    message_deadline_s: float = DEADLINE_S,
    insecure_plaintext: bool = False,
    identity: Identity | None = None,
    pins: Sequence[str] = (),
    listener: socket.socket | None = None,
    fabric: Fabric | None = None,
    first_worker: int = 0,
    pacer: Pacer | None = None,
    together: bytes = b"",
) -> Network:
    """Connect party `party` with all others, each at its address (host, port).

    `agreement` maps dotted keys of the job to canonical values, in the order in which a difference is looked for.
    With `pins`, the fingerprints of all parties' certificates in order, and this party's own `identity`, everything
    goes over mutual TLS. Without, everything is in the clear, and stays on this machine unless `insecure_plaintext`.
    `listener` is a socket that already listens (from `listen`), instead of a new one on this party's address.
    `fabric` carries the workers' frames instead of connections of their own; `first_worker`: the number there of the
    first of them, where a party's other workers are other processes. `pacer` holds back what the workers send.
    `together`: a secret that all parties were given, so that in the clear nobody else of this machine can be one.

    Errors: AddressInUseError; ConnectError naming who did not come within `deadline_s`; AgreementError, at all parties,
    naming the first key that differs; AuthError when a party has another certificate than the pinned one, or a
    connection would be in the clear outside of this machine.
    """
    named = list(names) if names is not None else [f"party {index}" for index in range(len(addresses))]
    try:
        protection = Protection(_pinned(party, named, identity, pins), insecure_plaintext)
        for name, (host, port) in zip(named, addresses, strict=True):
            for numeric in _resolve(name, host, port):
                protection.check_place(numeric)
        listener = listener or listen(addresses[party])
    except MpcpipeError:
        if listener is not None:
            listener.close()
        raise
    handshake = Handshake(party, named, workers, agreement or {}, together)
    arrivals = Arrivals(listener, party, named, workers, protection)
    try:
        return _Setup(handshake, arrivals, addresses, protection, deadline_s).run(
            workers, message_deadline_s, fabric, first_worker, pacer
        )
    finally:
        arrivals.close()


def _pinned(party: int, names: Sequence[str], identity: Identity | None, pins: Sequence[str]) -> Pinned | None:
    if identity is None and not pins:
        return None
    if identity is None:
        raise AuthError(f"the job pins certificates, and {names[party]} has none: `mpcpipe keys new {names[party]}`")
    pinned = Pinned(party, names, identity, pins)
    pinned.check()
    return pinned


def _resolve(name: str, host: str, port: int) -> list[str]:
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except OSError as error:
        raise ConnectError(f"the address {host}:{port} of {name} cannot be found: {error.strerror}") from error


class _Setup:
    """The steps of `connect`, each with all peers at once."""

    def __init__(
        self,
        handshake: Handshake,
        arrivals: Arrivals,
        addresses: Sequence[Address],
        protection: Protection,
        deadline_s: float,
    ) -> None:
        self.party, self.names = handshake.party, handshake.names
        self.peers = [peer for peer in range(len(addresses)) if peer != self.party]
        self.handshake, self.arrivals, self.addresses = handshake, arrivals, addresses
        self.protection = protection
        self.deadline_s = deadline_s
        self.control: Control | None = None
        self._ends_at_s = time.monotonic() + deadline_s
        self._opened: list[Connection] = []

    def run(
        self,
        workers: int,
        message_deadline_s: float,
        fabric: Fabric | None,
        first_worker: int,
        pacer: Pacer | None,
    ) -> Network:
        try:
            sockets = self._with_all(self._meet)
            session = self.handshake.finish()
            if session.triples:
                self._with_all(lambda peer: self._finish(peer, sockets[peer], session, exchange_keys))
                session.keys.update(session.triples.keys())
            self._with_all(lambda peer: self._finish(peer, sockets[peer], session, confirm))
            self.control = Control(self.party, self.names, sockets, lambda: network.interrupt())
            network = Network(self.names, session, self.control, message_deadline_s, pacer)
            self.control.start()
            connected = self._with_all(lambda peer: self._connect_workers(peer, 0 if fabric else workers, session))
            for worker in range(workers):
                if fabric is not None:
                    network.add_worker_of(fabric, first_worker + worker)
                else:
                    network.add_worker({peer: connected[peer][worker] for peer in self.peers})
            if self.control.failure is not None:
                raise self.control.failure
            return network
        except BaseException as error:
            cause = self.control.failure if self.control is not None else None
            if self.control is not None:
                self.control.abort(error)
                self.control.close()
            for sock in self._opened:
                sock.close()
            if cause is not None and cause is not error:
                raise cause from error
            raise

    def _until(self) -> float:
        failed = self.control is not None and self.control.failure is not None
        return 0.0 if failed else self._ends_at_s

    def _hurry(self, seconds: float) -> None:
        self._ends_at_s = min(self._ends_at_s, time.monotonic() + seconds)

    def _with_all(self, step: Callable[[int], T]) -> dict[int, T]:
        """Do `step` with every peer, side by side. Of several errors, raises a difference of the jobs first."""
        errors: dict[int, BaseException] = {}

        def one(peer: int) -> T:
            try:
                return step(peer)
            except BaseException as error:
                errors[peer] = error
                self._hurry(_AFTER_ERROR_S)
                raise

        with ThreadPoolExecutor(max(1, len(self.peers))) as pool:
            running = {peer: pool.submit(one, peer) for peer in self.peers}
            try:
                wait(running.values())
            except BaseException:
                self._hurry(0)
                for sock in self._opened:
                    with contextlib.suppress(OSError):
                        sock.shutdown(socket.SHUT_RDWR)
                raise
        if differs := self.handshake.difference():
            raise differs
        # What went wrong by itself says more than who did not come.
        for error in sorted(errors.values(), key=lambda error: isinstance(error, ConnectError)):
            raise error
        return {peer: future.result() for peer, future in running.items()}

    def _meet(self, peer: int) -> Connection:
        sock, content = self._exchange(peer)
        hello = Hello.unpack(content, self.names[peer])
        if hello.party != peer:
            raise AuthError(
                f"at {self._where(peer)} {hello.party} answers as its party number, not {peer}: "
                "give all parties the addresses in the same order"
            )
        self.handshake.meet(hello)
        if self.handshake.difference():
            self._hurry(_AFTER_ERROR_S)
        return sock

    def _exchange(self, peer: int) -> tuple[Connection, message.Message]:
        own = self.handshake.hello.pack()
        if peer > self.party:
            try:
                sock, content = self.arrivals.take(("hello", peer, 0), self._until)
                self._opened.append(sock)
                sock.sendall(own)
                return sock, content
            except OSError:
                raise ConnectError(self._absent(peer)) from None
        while True:
            sock = self._dial(peer)
            try:
                sock.sendall(own)
                return sock, message.read(sock, message.HELLO_BYTES, self._until())
            except TimeoutError:
                raise ConnectError(self._silent(peer)) from None
            except OSError:
                # A process that was about to end, perhaps of an earlier run.
                sock.close()
                time.sleep(_FIRST_RETRY_S)

    def _finish(self, peer: int, sock: Connection, session: Session, step: Callable[..., None]) -> None:
        try:
            step(sock, session, peer, self.names, self._until())
        except TimeoutError:
            raise ConnectError(f"{self.names[peer]} did not finish the handshake in {self.deadline_s:g} s") from None
        except OSError:
            raise ConnectError(f"{self.names[peer]} went away during the handshake; its own messages say why") from None

    def _connect_workers(self, peer: int, workers: int, session: Session) -> list[Connection]:
        return [self._connect_worker(peer, worker, session) for worker in range(workers)]

    def _connect_worker(self, peer: int, worker: int, session: Session) -> Connection:
        purpose = f"worker {worker}"
        try:
            if peer > self.party:
                sock, content = self.arrivals.take(("data", peer, worker), self._until)
                self._opened.append(sock)
                session.check(peer, purpose, content.get("proof"), self.names)
                return sock
            sock = self._dial(peer)
            proof = session.proof(peer, self.party, purpose)
            sock.sendall(message.pack({"kind": "data", "party": self.party, "worker": worker, "proof": proof}))
            return sock
        except OSError:
            raise ConnectError(f"{self.names[peer]} did not connect its {purpose} in {self.deadline_s:g} s") from None

    def _dial(self, peer: int) -> Connection:
        retry_s = _FIRST_RETRY_S
        while True:
            remaining_s = self._until() - time.monotonic()
            if remaining_s <= 0:
                raise ConnectError(self._absent(peer))
            sock = self._try(peer, remaining_s)
            if sock is not None:
                return sock
            time.sleep(min(retry_s, remaining_s))
            retry_s = min(2 * retry_s, _LAST_RETRY_S)

    def _try(self, peer: int, remaining_s: float) -> Connection | None:
        host, port = self.addresses[peer]
        with contextlib.suppress(socket.gaierror):
            for family, kind, protocol, _, resolved in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                sock = socket.socket(family, kind, protocol)
                try:
                    prepare(sock)
                    sock.settimeout(min(remaining_s, _TRY_S))
                    sock.connect(resolved)
                    # Where nobody listens, a socket that dials its own machine can meet itself.
                    if sock.getsockname() != sock.getpeername():
                        self._opened.append(sock)
                        return self._secured(sock, peer)
                except OSError:
                    pass
                except MpcpipeError:
                    sock.close()
                    raise
                sock.close()
        return None

    def _secured(self, sock: socket.socket, peer: int) -> Connection:
        try:
            return self.protection.call(sock, peer, self._until())
        except TimeoutError:
            raise ConnectError(self._silent(peer)) from None

    def _where(self, peer: int) -> str:
        host, port = self.addresses[peer]
        return f"{host}:{port}"

    def _silent(self, peer: int) -> str:
        return f"{self._where(peer)} takes connections but does not answer: is it {self.names[peer]}?"

    def _absent(self, peer: int) -> str:
        who, me = f"{self.names[peer]} ({self._where(peer)})", f"{self.names[self.party]} ({self._where(self.party)})"
        did = f"did not come to {me}" if peer > self.party else f"could not be reached by {me}"
        return f"{who} {did} within {self.deadline_s:g} s: is it started, and are the addresses the same in all jobs?"
