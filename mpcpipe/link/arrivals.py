"""Connections that come in while a session is set up, sorted by what their first message says they are.

Each is greeted in a thread of its own, so that a stranger who connects and stays silent keeps nobody waiting. What is
no party of this job is turned away and forgotten.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Sequence

from mpcpipe.errors import AgreementError, AuthError, LinkError, MpcpipeError
from mpcpipe.link import message
from mpcpipe.link.handshake import refusal
from mpcpipe.link.secure import Protection
from mpcpipe.link.tcp import prepare
from mpcpipe.link.tls import Connection

# A caller has this long for its first message.
GREETING_S = 10.0
_LOOK_S = 0.1
# Who was turned away gets this much more time to come as it should, before that is the end.
_AFTER_REFUSAL_S = 5.0

# Of callers that have yet to say who they are, so many at once: each costs a thread. One more, and the first has to go.
_MOST_GREETED = 64

Call = tuple[Connection, message.Message]
# "hello" or "data", party, worker
Who = tuple[str, int, int]


class Arrivals:
    """Accepts on `listener`, which it closes in the end, for party `party` of `names`."""

    def __init__(
        self, listener: socket.socket, party: int, names: Sequence[str], workers: int, protection: Protection
    ) -> None:
        self._listener = listener
        self._party, self._names, self._workers = party, names, workers
        self._protection = protection
        self._calls: dict[Who, Call] = {}
        self._came: set[Who] = set()
        self._turned_away: dict[int, tuple[float, AuthError]] = {}
        self._open: set[Connection] = set()
        self._greeted: dict[socket.socket, None] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name=f"accept for {names[party]}", daemon=True)
        self._thread.start()

    def take(self, who: Who, until: Callable[[], float]) -> Call:
        """Wait for a connection and its first message. TimeoutError once the clock is past `until()`.

        AuthError if somebody came as that party, could not prove it, and nobody better came soon after.
        """
        with self._changed:
            while who not in self._calls:
                # A wrong certificate is a mistake far more often than an attack, and then waiting on is no use.
                patience, refused = self._turned_away.get(who[1], (math.inf, None))
                remaining = min(until(), patience) - time.monotonic()
                if remaining <= 0:
                    if refused is not None:
                        raise AuthError(f"{self._names[who[1]]} was not let in: {refused}") from refused
                    raise TimeoutError("nobody came")
                self._changed.wait(min(remaining, _LOOK_S))
            call = self._calls.pop(who)
            self._open.discard(call[0])
            return call

    def close(self) -> None:
        """Stop listening, and close what nobody took."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        with self._changed:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                sock.close()

    def _accept(self) -> None:
        self._listener.settimeout(_LOOK_S)
        while not self._closed:
            try:
                sock = self._listener.accept()[0]
            except TimeoutError:
                continue
            except OSError:  # perhaps no more files: not at once again
                time.sleep(0 if self._closed else _LOOK_S)
                continue
            with self._changed:
                self._open.add(sock)
                self._greeted[sock] = None
                first = next(iter(self._greeted))
                if len(self._greeted) > _MOST_GREETED:
                    del self._greeted[first]
                    with contextlib.suppress(OSError):
                        first.shutdown(socket.SHUT_RDWR)
            threading.Thread(target=self._greet, args=(sock,), daemon=True).start()

    def _greet(self, sock: socket.socket) -> None:
        connection: Connection = sock
        claimed = None
        until = time.monotonic() + GREETING_S
        try:
            prepare(sock)
            first = self._protection.hear(sock, until)
            claimed = first.get("party")
            connection, content, proven = self._protection.answer(sock, first, until)
            with self._changed:
                self._open.discard(sock)
                self._open.add(connection)
            self._keep(connection, content, proven)
        except (OSError, LinkError, AgreementError) as error:
            if isinstance(error, AuthError):
                self._note(claimed, error)
            with contextlib.suppress(OSError):
                if isinstance(error, MpcpipeError):
                    connection.sendall(refusal(error))
            with self._changed:
                self._open -= {sock, connection}
            connection.close()
        finally:
            with self._changed:
                self._greeted.pop(sock, None)

    def _note(self, claimed: object, error: AuthError) -> None:
        with self._changed:
            if isinstance(claimed, int) and ("hello", claimed, 0) not in self._came:
                self._turned_away.setdefault(claimed, (time.monotonic() + _AFTER_REFUSAL_S, error))
                self._changed.notify_all()

    def _keep(self, sock: Connection, content: message.Message, proven: int | None) -> None:
        kind, party, worker = content.get("kind"), content.get("party"), content.get("worker", 0)
        if kind not in ("hello", "data") or type(party) is not int or type(worker) is not int:
            raise AuthError("this port belongs to a job of mpcpipe, and the caller does not")
        me = self._names[self._party]
        if not self._party < party < len(self._names) or not 0 <= worker < self._workers:
            raise AgreementError(
                f"{me} has a job of {len(self._names)} parties and {self._workers} workers; worker {worker} of party "
                f"{party} has nothing to ask party {self._party}: start all parties with the same job, each as itself"
            )
        if proven is not None and proven != party:
            raise AuthError(f"{self._names[proven]} came to {me} as {self._names[party]}; start each party as itself")
        with self._changed:
            if (kind, party, worker) in self._came:
                raise AuthError(f"another process came to {me} as {self._names[party]} before; start each party once")
            self._came.add((kind, party, worker))
            self._calls[kind, party, worker] = (sock, content)
            self._changed.notify_all()
