"""TLS over a connected socket, for two threads at once: one that sends and one that receives.

    plain ──> [ encrypt ] ──> socket        socket ──> [ decrypt ] ──> plain
                   └────────── one lock ──────────┘

OpenSSL's objects are not for two threads, and Python's own TLS sockets wait inside of them. So here OpenSSL only turns
bytes into bytes, in memory, a few at a time under a lock; all waiting is done at the socket, outside of it. A small
message costs one system call, as without TLS, and both directions run at the same time on one connection.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from mpcpipe.errors import PeerLost

Buffer = bytes | bytearray | memoryview

# What is encrypted at once: long enough that Python costs little, short enough that the other direction gets its turn.
PIECE_BYTES = 64 << 10
# Buffers up to here are joined, so that a small message is one record in one packet.
_JOIN_BYTES = 16 << 10
_RECEIVE_BYTES = 256 << 10
# OpenSSL never changes the keys of a connection by itself, and Python cannot ask it to. With AES-GCM, TLS 1.3 allows
# 2^24.5 full records under a key (RFC 8446, 5.5), which are 388 GB; at this many bytes a connection ends instead.
MOST_BYTES = 1 << 38
_RECORD_PLAIN_BYTES = 16 << 10
# What a record takes of that besides its content: its tag, and the rest of its last block.
_RECORD_OVERHEAD_BYTES = 32
# A record's longest form on the wire, and then some.
_RECORD_BYTES = 17 << 10


class TlsSocket:
    """A socket that speaks TLS, with those of a socket's methods that links use. Call `handshake` first.

    One difference to a socket: what `send` or `sendmsg` did not report as sent must be given to the next call again, at
    the front. It may be encrypted already.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_side: bool) -> None:
        self._sock = sock
        self._timeout_s = sock.gettimeout()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._lock = threading.Lock()
        self._arrived = memoryview(bytearray(_RECEIVE_BYTES))
        self._unsent = memoryview(b"")
        self._protected_bytes = 0
        self._covered = 0

    def handshake(self, until: float) -> None:
        """Until `time.monotonic()` is `until`. Errors: ssl.SSLError (the peer is told), TimeoutError, OSError."""
        done = False
        while not done:
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                pass
            finally:
                self.settimeout(max(0.001, until - time.monotonic()))
                if data := self._outgoing.read():
                    self._sock.sendall(data)
            if not done and not self._fill(until):
                raise ConnectionError("the connection ended in the handshake")

    @property
    def peer_certificate(self) -> bytes:
        """The certificate (DER) whose key the peer has proven to have."""
        return self._tls.getpeercert(binary_form=True) or b""

    @property
    def version(self) -> str | None:
        """Such as TLSv1.3."""
        return self._tls.version()

    @property
    def application(self) -> str | None:
        """The ALPN name that both sides speak."""
        return self._tls.selected_alpn_protocol()

    # Sending

    def sendmsg(
        self, buffers: Iterable[Buffer], ancillary: Sequence[tuple[int, int, bytes]] = (), flags: int = 0
    ) -> int:
        """As a socket's, but tries to send all. BlockingIOError when nothing more can be reported as sent."""
        sent = self._finish(flags)
        for piece in _pieces(buffers, sent):
            self._unsent, self._covered = memoryview(self._encrypt(piece)), len(piece)
            try:
                sent += self._finish(flags)
            except BlockingIOError:
                if sent:
                    return sent
                raise
        return sent

    def send(self, data: Buffer, flags: int = 0) -> int:
        """As a socket's."""
        return self.sendmsg([data], (), flags)

    def sendall(self, data: Buffer) -> None:
        """As a socket's."""
        self._sock.sendall(self._encrypt(memoryview(data)))

    def _finish(self, flags: int) -> int:
        """Send what is encrypted; returns the plain bytes that this makes."""
        while self._unsent:
            self._unsent = self._unsent[self._sock.send(self._unsent, flags) :]
        covered, self._covered = self._covered, 0
        return covered

    def _encrypt(self, piece: Buffer) -> bytes:
        view = memoryview(piece)
        self._protected_bytes += len(view) + _RECORD_OVERHEAD_BYTES * -(-len(view) // _RECORD_PLAIN_BYTES)
        if self._protected_bytes > MOST_BYTES:
            raise PeerLost(
                f"a TLS connection has carried {MOST_BYTES / 1e9:.0f} GB, and its keys must not protect more: go on "
                "from the last checkpoint (`--resume`), which makes new ones (docs/security-links.md)"
            )
        with self._lock:
            while view:
                view = view[self._tls.write(view) :]
            return self._outgoing.read()

    # Receiving

    def recv(self, count: int) -> bytes:
        """As a socket's. When many bytes are asked for, leaves none behind that the socket would not announce."""
        until = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        plain = bytearray(count)
        most = count - _RECORD_BYTES if count > 2 * _RECORD_BYTES else _RECEIVE_BYTES
        while (got := self._decrypt([memoryview(plain)])) is None:
            if not self._fill(until, most):
                return b""
        return bytes(plain[:got])

    def recvmsg_into(self, buffers: Sequence[Buffer], ancillary: int = 0, flags: int = 0) -> tuple[int]:
        """As a socket's, without waiting for all; BlockingIOError when what came is not yet a record."""
        got = self._decrypt(buffers)
        if got is None:
            count = self._sock.recv_into(self._arrived)
            if not count:
                return (0,)
            self._take(count)
            got = self._decrypt(buffers)
        if got is None:
            raise BlockingIOError("a part of a record")
        return (got,)

    def _fill(self, until: float | None, most: int = _RECEIVE_BYTES) -> bool:
        """Wait for some bytes from the socket; False at its end."""
        if until is not None and self._timeout_s:
            remaining_s = until - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError("timed out")
            self._sock.settimeout(remaining_s)
        count = self._sock.recv_into(self._arrived[:most])
        self._take(count)
        return count > 0

    def _take(self, count: int) -> None:
        with self._lock:
            self._incoming.write(self._arrived[:count])

    def _decrypt(self, buffers: Sequence[Buffer]) -> int | None:
        """Fill `buffers` with what is here; returns how many bytes: None for none yet, 0 at the end."""
        got = 0
        for buffer in buffers:
            view = memoryview(buffer)
            while view:
                # To ask in vain costs as much as a short record.
                if not self._incoming.pending and not self._tls.pending():
                    return got or None
                try:
                    with self._lock:
                        count = cast(int, self._tls.read(len(view), view))
                except ssl.SSLWantReadError:
                    return got or None
                if not count:
                    return got
                got += count
                view = view[count:]
        return got

    # What is the socket's own

    def settimeout(self, timeout_s: float | None) -> None:
        """As a socket's."""
        self._timeout_s = timeout_s
        self._sock.settimeout(timeout_s)

    def setblocking(self, blocking: bool) -> None:
        """As a socket's."""
        self.settimeout(None if blocking else 0.0)

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        """As a socket's."""
        self._sock.setsockopt(level, option, value)

    def fileno(self) -> int:
        """As a socket's."""
        return self._sock.fileno()

    def getsockname(self) -> tuple[str, int]:
        """As a socket's."""
        name: tuple[str, int] = self._sock.getsockname()
        return name

    def getpeername(self) -> tuple[str, int]:
        """As a socket's."""
        name: tuple[str, int] = self._sock.getpeername()
        return name

    def shutdown(self, how: int) -> None:
        """As a socket's: wakes whoever waits, in any thread. That a party goes on purpose, a message says."""
        self._sock.shutdown(how)

    def close(self) -> None:
        """As a socket's."""
        self._sock.close()


Connection = socket.socket | TlsSocket


def _pieces(buffers: Iterable[Buffer], skip: int) -> Iterator[memoryview]:
    """`buffers` without their first `skip` bytes, small ones joined and large ones cut."""
    small: list[memoryview] = []
    held = 0
    for buffer in buffers:
        view = memoryview(buffer)[skip:]
        skip = max(0, skip - len(buffer))
        if len(view) > _JOIN_BYTES:
            if small:
                yield memoryview(b"".join(small))
                small, held = [], 0
            for start in range(0, len(view), PIECE_BYTES):
                yield view[start : start + PIECE_BYTES]
        elif view:
            small.append(view)
            held += len(view)
            if held >= PIECE_BYTES - _JOIN_BYTES:
                yield memoryview(b"".join(small))
                small, held = [], 0
    if small:
        yield memoryview(b"".join(small))
