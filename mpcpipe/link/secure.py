"""The one place that every connection between parties passes before a byte of the job goes over it."""

from __future__ import annotations

import ipaddress
import socket

from mpcpipe.errors import AuthError


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
            f"a connection with {host} would be in the clear, and whoever reads along sees every share. "
            "Keep to addresses of this machine, or say insecure_plaintext = true in the job for a network you trust"
        )


def secure(sock: socket.socket, insecure_plaintext: bool = False) -> socket.socket:
    """The connection to use instead of `sock`, safe from readers and forgers.

    Connections are in the clear, so it is `sock` itself, and AuthError unless both ends are loopback addresses or the
    job says that its network needs no protection.
    """
    for host in (sock.getsockname()[0], sock.getpeername()[0]):
        require_loopback(host, insecure_plaintext)
    return sock
