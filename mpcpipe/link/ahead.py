"""Receiving before anybody asks: for what comes from a party that waits for nobody, such as a dealer.

    socket ──> [ thread: what comes early, up to so many bytes ] ──> who receives
       └──────────── what is asked for before it came ───────────────────┘

Without it, what was sent early stays with the sender as soon as the kernel's buffers are full, and the line is idle
until somebody here asks for more. Bytes are only kept, in memory that is bounded beforehand; what they mean, the link
finds out as ever. Who finds nothing kept reads the socket itself, straight into its tensors.
"""

from __future__ import annotations

import mmap
import select
import socket
import threading

from mpcpipe.link.tls import Connection

# The thread is woken for so much at once, and what is less than that need not be kept: it is in the kernel.
_WAKE_BYTES = 1 << 20
_MOST_AT_ONCE = 4 << 20


class Ahead:
    """The receiving side of `sock`, which a link reads in its place. Keeps at most `most_bytes`.

    One thread calls `setsockopt` and `recvmsg_into`; any may call `stop`, once the socket is shut down.
    """

    def __init__(self, sock: Connection, most_bytes: int) -> None:
        self._sock = sock
        self._kept = memoryview(mmap.mmap(-1, most_bytes))  # a ring; memory is taken once it is written to
        self._first = self._count = 0
        self._asked_bytes = self._woken_bytes = 1
        self._error: OSError | None = None
        self._stopped = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """As a socket's; of options only SO_RCVLOWAT, for the calls that follow."""
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        self._asked_bytes = value

    def recvmsg_into(self, views: list[memoryview], ancillary: int = 0, flags: int = 0) -> tuple[int]:
        """As a socket's, but what was kept comes without waiting for all."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._read, name="read ahead", daemon=True)
                self._thread.start()
            if self._count:
                count = sum(map(self._take, views))
                self._changed.notify_all()
                return (count,)
            if self._error is not None:
                raise self._error
            self._wake_for(self._asked_bytes)
            return (self._sock.recvmsg_into(views, ancillary, flags)[0],)

    def stop(self) -> None:
        """No more. The socket must have been shut down, which wakes the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _wake_for(self, nbytes: int) -> None:
        if nbytes != self._woken_bytes:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)
            self._woken_bytes = nbytes

    def _take(self, view: memoryview) -> int:
        taken = 0
        while self._count and taken < len(view):
            count = min(len(view) - taken, self._count, len(self._kept) - self._first)
            view[taken : taken + count] = self._kept[self._first : self._first + count]
            taken += count
            self._count -= count
            self._first = (self._first + count) % len(self._kept) if self._count else 0
        return taken

    # The thread

    def _read(self) -> None:
        ready = select.poll()
        ready.register(self._sock.fileno(), select.POLLIN)
        while True:
            with self._changed:
                while self._count == len(self._kept) and not self._stopped:
                    self._changed.wait()
                if self._stopped:
                    return
                self._wake_for(_WAKE_BYTES)
            ready.poll()
            try:
                with self._changed:
                    if not self._keep():
                        return
            except OSError as error:
                self._error = error
                return

    def _keep(self) -> bool:
        """Put what is there behind what is kept; False at the end of the connection, or of this."""
        first = (self._first + self._count) % len(self._kept)
        room = min(len(self._kept) - self._count, len(self._kept) - first, _MOST_AT_ONCE)
        if self._stopped or not room:
            return not self._stopped
        try:
            count: int = self._sock.recvmsg_into([self._kept[first : first + room]], 0, socket.MSG_DONTWAIT)[0]
        except BlockingIOError:  # whoever receives was faster
            return True
        self._count += count
        return count > 0
