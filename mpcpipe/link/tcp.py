"""A link over a connected TCP socket, with or without TLS on it.

    send                                          receive
     │ header + the tensors' own memory            │ header: compared with the plan before memory is allocated
     ├── what the socket takes at once             │
     └── the rest ──> sender thread                └── straight into new tensors

A small message costs one system call on each side and no change of threads. A large one never blocks the worker: so
two parties that send each other any amount at the same time both get to receive. Nothing is copied on the way.
"""

from __future__ import annotations

import contextlib
import pathlib
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence

import torch

from mpcpipe.errors import PeerLost
from mpcpipe.link.ahead import Ahead
from mpcpipe.link.base import Part
from mpcpipe.link.frame import (
    FIXED_BYTES,
    Route,
    check_fixed,
    check_parts,
    clock_if_same,
    encode,
    header_bytes,
    memory_of,
    payload_bytes,
)
from mpcpipe.link.framed import Cause, FramedLink
from mpcpipe.link.pacer import SMALL_BYTES, Pacer
from mpcpipe.link.tls import Connection

DEADLINE_S = 120.0
BUFFER_BYTES = 4 << 20
# Up to here a frame is read in one call, into tensors made before it came (their size is the plan's, not the peer's).
_SMALL_BYTES = 64 << 10
# While more than twice this is expected, a waiting thread is woken for so much at once.
_WAKE_BYTES = 256 << 10
# A system call takes at most 1024 pieces of memory.
_PIECES = 1000

Views = list[memoryview]


def prepare(sock: socket.socket) -> None:
    """Options that every connection wants. Call it before the connection is made, so that the window can be large."""
    for option, limit in ((socket.SO_SNDBUF, "wmem_max"), (socket.SO_RCVBUF, "rmem_max")):
        # Where the system would cut the wish down, its own tuning gets further (and a wish turns that off).
        with contextlib.suppress(OSError, ValueError):
            if int(pathlib.Path("/proc/sys/net/core", limit).read_text()) >= BUFFER_BYTES:
                sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class TcpLink(FramedLink):
    """One worker's connection to the same worker of one peer. Parameters as `FramedLink`; `pacer`: of the line, if its
    rate is known."""

    def __init__(
        self,
        peer: int,
        name: str,
        sock: Connection,
        outgoing: Route,
        incoming: Route,
        deadline_s: float = DEADLINE_S,
        cause: Cause = lambda: None,
        pacer: Pacer | None = None,
    ) -> None:
        super().__init__(peer, name, outgoing, incoming, deadline_s, cause)
        self._sock, self._pacer = sock, pacer
        self._source: Connection | Ahead = sock
        self._queue: deque[tuple[str, Views]] = deque()
        self._wake_bytes = 1
        self._sender: threading.Thread | None = None
        self._changed = threading.Condition()
        # Timeouts in the kernel: Python's own would cost a poll before every call. They only set how often a waiting
        # call looks at its deadline.
        tick = struct.pack("@ll", *divmod(int(1e6 * min(1.0, deadline_s / 4)) or 1, 1_000_000))
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, tick)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, tick)

    # Sending

    def send(self, label: str, parts: Sequence[torch.Tensor], clock: int = 0) -> None:
        """Send one frame; what the socket does not take at once is left to the sender thread."""
        self._check_usable(label)
        parts = [part if part.is_cpu else part.cpu() for part in parts]
        memories = _memories(parts)
        views = [memoryview(self._header(label, parts, clock)), *memories]
        with self._changed:
            if not self._queue and not self._held_back(views):
                views = self._send_now(label, views)
            if views:
                self._queue.append((label, views))
                if self._sender is None:
                    name = f"send to {self.name}"
                    self._sender = threading.Thread(target=self._send_queued, name=name, daemon=True)
                    self._sender.start()
                self._changed.notify_all()

    def _held_back(self, views: Views) -> bool:
        """Must this wait for its turn on the line?"""
        return self._pacer is not None and sum(map(len, views)) > SMALL_BYTES

    def drain(self, most_bytes: int) -> None:
        """Wait until no more than so many bytes are left to the sender thread."""
        with self._changed:
            while self._queued_bytes() > most_bytes and self._broken is None:
                self._changed.wait()
        if self._broken is not None:
            raise self._cause_or(self._broken)

    def _queued_bytes(self) -> int:
        return sum(len(view) for _, views in self._queue for view in views)

    def _send_now(self, label: str, views: Views) -> Views:
        """Send what the socket takes without waiting; returns what is left."""
        if self._pacer is not None:
            self._pacer.book(sum(map(len, views)))
        try:
            while views:
                pieces = views[:_PIECES]
                count = self._sock.sendmsg(pieces, [], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                views = _after(views, count)
                if count < sum(map(len, pieces)):
                    break
        except BlockingIOError:
            pass
        except OSError as error:
            raise self._lost(f"{self.name} closed the connection before it got {label!r}") from error
        return views

    def _send_queued(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    if self._closed:
                        return
                    self._changed.wait()
                label, views = self._queue[0]
            try:
                self._send_waiting(label, views)
            except (OSError, PeerLost) as error:
                with self._changed:
                    reason = f"{self.name} closed the connection before it got {label!r}"
                    self._broken = self._broken or (error if isinstance(error, PeerLost) else PeerLost(reason))
                    self._queue.clear()
                    self._changed.notify_all()
                return
            with self._changed:
                # Only now: `send` may write to the socket itself whenever the queue is empty.
                self._queue.popleft()
                self._changed.notify_all()

    def _send_waiting(self, label: str, views: Views) -> None:
        while views:
            if self._pacer is None:
                chunk, views = views, []
            else:
                chunk, views = _divided(views, self._pacer.chunk_bytes)
                self._pacer.hold(sum(map(len, chunk)))
            self._send_chunk(label, chunk)

    def _send_chunk(self, label: str, views: Views) -> None:
        until = time.monotonic() + self.deadline_s
        while views:
            try:
                views = _after(views, self._sock.sendmsg(views[:_PIECES], [], socket.MSG_NOSIGNAL))
                until = time.monotonic() + self.deadline_s
            except BlockingIOError:
                if time.monotonic() > until:
                    raise PeerLost(f"{self.name} took nothing of {label!r} for {self.deadline_s:g} s") from None

    # Receiving

    def read_ahead(self, most_bytes: int) -> None:
        """See `Link.read_ahead`."""
        self._source = Ahead(self._sock, most_bytes)

    def _why(self, label: str, error: OSError) -> Exception:
        return self._lost(f"the connection to {self.name} broke while waiting for {label!r}")

    def _read(self, label: str, expected: Sequence[Part], until: float) -> tuple[list[torch.Tensor], int]:
        size = header_bytes(len(expected))
        header = memoryview(bytearray(size))
        early = payload_bytes(expected) <= _SMALL_BYTES
        parts = _allocate(expected) if early else []
        views, got, clock = [header, *_memories(parts)], 0, 0
        # All that can be done beforehand is: once the frame is here, somebody waits for this party's answer.
        wanted = memoryview(encode(self._incoming, label, expected, self._received, 0))
        while views:
            wanted_now = views
            if got >= size and not early:
                wanted_now = self._rarely_woken(views)
            count = self._read_some(label, wanted_now, until, 0 if got < FIXED_BYTES else socket.MSG_WAITALL)
            before, got = got, got + count
            views = _after(views, count)
            same = clock_if_same(header, wanted) if before < size <= got else None
            if before < FIXED_BYTES <= got and same is None:
                # Not (yet) all as it should be: field by field, so that a wrong one is named, and named at once.
                clock = check_fixed(header, self._incoming, label, expected, self._received)
            if before < size <= got:
                if same is None:
                    check_parts(header[FIXED_BYTES:], self._incoming, label, expected)
                else:
                    clock = same
                if not early:
                    parts = _allocate(expected)
                    views = _memories(parts)
        return parts, clock

    def _rarely_woken(self, views: Views) -> Views:
        """What to ask for next of a large payload, such that the system wakes this thread for much and not for each
        packet. The last bytes come as they come: nothing may follow them.
        """
        left = sum(map(len, views))
        least = _WAKE_BYTES if left > 2 * _WAKE_BYTES else 1
        if least != self._wake_bytes:
            self._source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
            self._wake_bytes = least
        return views if least == 1 else _divided(views, left - _WAKE_BYTES)[0]

    def _read_some(self, label: str, views: Views, until: float, flags: int) -> int:
        while True:
            try:
                count = self._source.recvmsg_into(views[:_PIECES], 0, flags)[0]
            except BlockingIOError:
                count = -1
            if count == 0:
                raise self._lost(f"{self.name} closed the connection while this party waits for {label!r}")
            if time.monotonic() > until:
                raise self._lost(f"{self.name} did not send {label!r} within {self.deadline_s:g} s")
            if count > 0:
                return count

    # The end

    def interrupt(self) -> None:
        """End the connection now: wakes whoever waits in `send` or `receive`, with the network's cause. Any thread."""
        self._broken = self._broken or PeerLost(f"the connection to {self.name} was ended by this party")
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Send what is queued (within the deadline), then close the socket."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        if self._sender is not None:
            self._sender.join(self.deadline_s)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        if isinstance(self._source, Ahead):
            self._source.stop()
        self._sock.close()

    def _lost(self, reason: str) -> Exception:
        return self._cause_or(PeerLost(reason))


def _after(views: Views, count: int) -> Views:
    """What is left of `views` when their first `count` bytes are done."""
    if count == sum(map(len, views)):
        return []
    for index, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[index + 1 :]]
        count -= len(view)
    return []


def _divided(views: Views, count: int) -> tuple[Views, Views]:
    """The first `count` bytes, or all if there are fewer, and the rest."""
    rest = _after(views, min(count, sum(map(len, views))))
    if not rest:
        return views, []
    whole = len(views) - len(rest)
    cut = views[whole][: len(views[whole]) - len(rest[0])]
    return ([*views[:whole], cut] if cut else views[:whole]), rest


def _allocate(expected: Sequence[Part]) -> list[torch.Tensor]:
    return [torch.empty(part.numel, dtype=part.dtype) for part in expected]


def _memories(parts: Sequence[torch.Tensor]) -> Views:
    return [memory_of(part) for part in parts if part.numel()]
