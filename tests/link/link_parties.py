"""Parties for tests: threads of this process, on free loopback ports."""

from __future__ import annotations

import os
import pathlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from mpcpipe.link.identity import Identity, create, load
from mpcpipe.link.mesh import connect, listen
from mpcpipe.link.network import Network
from mpcpipe.link.pinned import context
from mpcpipe.link.tls import TlsSocket

NAMES = ["alice", "bob", "carol"]


def new_identity(folder: pathlib.Path, name: str, now: datetime | None = None) -> Identity:
    """A new certificate and key, in `folder`; `now`: when they were made."""
    files = [folder / f"{name}.crt", folder / f"{name}.key"]
    for file, content in zip(files, create(name, now), strict=True):
        file.write_bytes(content)
        os.chmod(file, 0o600)
    return load(*map(str, files))


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected TCP sockets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = socket.create_connection(listener.getsockname())
        return left, listener.accept()[0]


def tls_pair(identities: Sequence[Identity]) -> tuple[TlsSocket, TlsSocket]:
    """Two sockets that have met by TLS, each with its identity."""
    ends = [
        TlsSocket(sock, context(identities[index], identities[1 - index].certificate, index == 0), index == 0)
        for index, sock in enumerate(socket_pair())
    ]
    for outcome in together(lambda index: ends[index].handshake(time.monotonic() + 20), [0, 1]):
        assert outcome is None
    return ends[0], ends[1]


def listeners(parties: int) -> list[socket.socket]:
    """A listening socket for each party, so that no two tests take the same port."""
    return [listen(("127.0.0.1", 0)) for _ in range(parties)]


def addresses(sockets: Sequence[socket.socket]) -> list[tuple[str, int]]:
    """Where the sockets listen."""
    return [sock.getsockname()[:2] for sock in sockets]


def together(work: Callable[[int], Any], parties: Sequence[int], timeout_s: float = 30) -> list[Any]:
    """What `work` returns or raises for each party, all at once."""

    def outcome(party: int) -> Any:
        try:
            return work(party)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(parties)) as pool:
        return list(pool.map(outcome, parties, timeout=timeout_s))


def meet(
    parties: int,
    present: Sequence[int] | None = None,
    options: Mapping[int, Mapping[str, Any]] | None = None,
    **common: Any,
) -> list[Any]:
    """Connect the `present` ones of `parties` parties; returns each one's Network, or its error."""
    sockets = listeners(parties)
    places = addresses(sockets)
    present = range(parties) if present is None else present
    for party in range(parties):
        if party not in present:
            sockets[party].close()

    def one(party: int) -> Network:
        arguments = {"names": NAMES[:parties], "deadline_s": 20, "message_deadline_s": 20, "listener": sockets[party]}
        return connect(party, places, **{**arguments, **common, **(options or {}).get(party, {})})

    return together(one, present)


def pinned(identities: list[Identity], pins: list[str] | None = None) -> dict[int, dict[str, Any]]:
    """What each party gives `connect`."""
    pins = pins or [identity.fingerprint for identity in identities]
    return {party: {"identity": identity, "pins": pins} for party, identity in enumerate(identities)}


@contextmanager
def networks(parties: int, **common: Any) -> Iterator[list[Network]]:
    """Connected networks, closed afterwards."""
    found = meet(parties, **common)
    try:
        for outcome in found:
            if isinstance(outcome, Exception):
                raise outcome
        yield found
    finally:
        for outcome in found:
            if isinstance(outcome, Network):
                outcome.close()
