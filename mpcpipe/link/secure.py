"""The one place that every connection between parties passes before a byte of the job goes over it."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from mpcpipe.errors import AuthError
from mpcpipe.link import message
from mpcpipe.link.pinned import Pinned
from mpcpipe.link.tls import Connection


def is_loopback(host: str) -> bool:
    """Whether the numeric address `host` never leaves this machine."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def require_loopback(host: str, insecure_plaintext: bool) -> None:
    """AuthError if what is said to or from `host` could be read on the way, and the job does not allow that."""
    if not insecure_plaintext and not is_loopback(host):
        raise AuthError(
            f"a connection with {host} would be in the clear, and whoever reads along sees every share. Make keys "
            "(`mpcpipe keys new NAME` at each party) and put their fingerprints into the job, keep to addresses of "
            "this machine, or say insecure_plaintext = true in the job for a network you trust"
        )


def link_description(hosts: Sequence[str], encrypted: bool) -> str:
    """How the links between parties at these hosts are protected, for the banner. Capitals are a warning."""
    if encrypted:
        return "TLS 1.3, mutual, pinned"
    local = all(host == "localhost" or is_loopback(host) for host in hosts)
    return "plaintext (loopback)" if local else "PLAINTEXT"


@dataclass(frozen=True)
class Protection:
    """How this party's connections are kept from readers and forgers.

    `pinned`: by TLS, everywhere. Without it they are in the clear: between loopback addresses, or, where the job says
    that its network needs no protection (`insecure_plaintext`), anywhere.
    """

    pinned: Pinned | None = None
    insecure_plaintext: bool = False

    def check_place(self, host: str) -> None:
        """AuthError if a party at the numeric address `host` cannot be talked to in this way."""
        if self.pinned is None:
            require_loopback(host, self.insecure_plaintext)

    def call(self, sock: socket.socket, peer: int, until: float) -> Connection:
        """The connection to use instead of `sock`, on which this party has called `peer`."""
        if self.pinned is not None:
            return self.pinned.call(sock, peer, until)
        self._check_ends(sock)
        return sock

    def hear(self, sock: socket.socket, until: float) -> message.Message:
        """The first message of who has called on `sock`. It proves nothing yet."""
        self._check_ends(sock)
        return message.read(sock, message.HELLO_BYTES if self.pinned is None else message.CONTROL_BYTES, until)

    def answer(
        self, sock: socket.socket, first: message.Message, until: float
    ) -> tuple[Connection, message.Message, int | None]:
        """The connection to use instead of `sock`, what the caller says on it, and who it has proven to be."""
        if self.pinned is not None:
            secured, peer = self.pinned.answer(sock, first, until)
            return secured, message.read(secured, message.HELLO_BYTES, until), peer
        if first.get("kind") == "tls":
            raise AuthError(
                f"a caller from {sock.getpeername()[0]} speaks TLS, and the job here has no parties.fingerprints: "
                "start all parties with the same job"
            )
        return sock, first, None

    def _check_ends(self, sock: socket.socket) -> None:
        for host in (sock.getsockname()[0], sock.getpeername()[0]):
            self.check_place(host)
