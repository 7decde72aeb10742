"""The control connections of a party: heartbeats, the loss of a peer, and the one cause that everybody reports.

    every 0.5 s   beat, to everybody
    4 s silence, or the end of a connection without goodbye    ->  the peer is lost
    the first failure here, whatever it is                     ->  abort to everybody: error class, sentence
    an abort from a peer                                       ->  that is the failure here, too

One daemon thread a party does all of it, beside the workers. On a failure it calls `on_failure`, which ends the data
connections so that blocked workers wake up. What is said about a lost peer does not depend on who says it: so two
parties that notice at the same time report the same sentence.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from mpcpipe.errors import FrameError, Interrupted, MpcpipeError, PeerLost, by_name
from mpcpipe.link.message import Message, Reader, pack, words
from mpcpipe.link.tls import Connection

BEAT_S = 0.5
SILENCE_S = 4.0
# A message that says what went wrong fits a control frame, with room for JSON's escapes.
_SAID_CHARACTERS = 4000


class Watch:
    """Who was heard when. Pure: the caller brings the time, in seconds.

    `turn` is called whenever the thread wakes up. If that is much later than asked for, this process itself did not run
    (stopped, starved, a machine asleep), and silence until then says nothing about the others.
    """

    def __init__(self, peers: Collection[int], now_s: float, beat_s: float, silence_s: float) -> None:
        self._heard_s = dict.fromkeys(peers, now_s)
        self._turn_s = now_s
        self._beat_s, self._silence_s = beat_s, silence_s

    @property
    def peers(self) -> list[int]:
        """Who is watched."""
        return list(self._heard_s)

    def turn(self, now_s: float) -> None:
        """The thread runs again."""
        if now_s - self._turn_s > 3 * self._beat_s:
            self._heard_s = dict.fromkeys(self._heard_s, now_s)
        self._turn_s = now_s

    def heard(self, peer: int) -> None:
        """`peer` said something, in this turn."""
        self._heard_s[peer] = self._turn_s

    def forget(self, peer: int) -> None:
        """Watch `peer` no longer."""
        self._heard_s.pop(peer, None)

    def ends_at_s(self) -> float:
        """When the first of them will have been silent for too long."""
        return min(self._heard_s.values(), default=self._turn_s + self._beat_s) + self._silence_s

    def silent(self) -> list[int]:
        """Who has been silent for too long."""
        return [peer for peer, heard_s in self._heard_s.items() if self._turn_s - heard_s >= self._silence_s]


class Control:
    """One party's control connections, `sockets` by peer. Call `start` once, `close` at the end."""

    def __init__(
        self,
        party: int,
        names: Sequence[str],
        sockets: Mapping[int, Connection],
        on_failure: Callable[[], None] = lambda: None,
        beat_s: float = BEAT_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.party = party
        self.names = list(names)
        self.failure: Exception | None = None
        self._sockets = dict(sockets)
        self._on_failure = on_failure
        self._beat_s, self._silence_s = beat_s, silence_s
        self._readers = {peer: Reader() for peer in sockets}
        self._unsent = {peer: bytearray() for peer in sockets}
        self._watch = Watch(sockets.keys(), time.monotonic(), beat_s, silence_s)
        self._failed = threading.Event()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name=f"control of {names[party]}", daemon=True)
        for sock in self._sockets.values():
            sock.setblocking(False)

    def start(self) -> None:
        """Begin to beat and to listen."""
        self._thread.start()

    def abort(self, error: BaseException) -> None:
        """Make `error` the failure of all parties, unless there is one already. Returns when the others were told."""
        if isinstance(error, KeyboardInterrupt):
            error = Interrupted("stopped by the user")
        known = isinstance(error, MpcpipeError)
        # The text of an unexpected error may hold a value; its class does not.
        said = str(error) if known else f"stopped by an unexpected {type(error).__name__}"
        own = error if isinstance(error, Exception) else MpcpipeError(f"{self.names[self.party]}: {said}")
        self._fail(own, type(error).__name__, f"{self.names[self.party]}: {said}")

    def wait_failure(self, timeout_s: float) -> Exception | None:
        """The failure, after waiting for one for at most `timeout_s`."""
        self._failed.wait(timeout_s)
        return self.failure

    def close(self) -> None:
        """Say goodbye, so that the end of the connections is no loss to others; then end them. May be called twice."""
        if self._closing.is_set():
            return
        if self.failure is None:
            for peer in self._sockets:
                self._send(peer, {"kind": "goodbye"})
        self._closing.set()
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(2 * self._beat_s + 1)
        for sock in (*self._sockets.values(), self._wake, self._woken):
            sock.close()

    def _fail(self, error: Exception, name: str, text: str, heard_from: int | None = None) -> None:
        with self._lock:
            if self.failure is not None or self._closing.is_set():
                return
            self.failure = error
        # The others first: this process may be gone a moment after its worker learns of the failure.
        for peer in self._sockets:
            if peer != heard_from:
                self._send(peer, {"kind": "abort", "error": name, "message": text[:_SAID_CHARACTERS]})
        self._failed.set()
        self._on_failure()

    def _send(self, peer: int, message: Message) -> None:
        """Send without waiting; what does not fit goes with the next message."""
        with self._send_lock:
            unsent = self._unsent[peer]
            # Only a peer that reads nothing gets here; it will be lost, and beats are not worth keeping for it.
            if message["kind"] == "beat" and unsent:
                message = {}
            unsent += pack(message) if message else b""
            # Whether a peer is gone is for `_read` to find out: what it said before it went counts first.
            with contextlib.suppress(OSError):
                del unsent[: self._sockets[peer].send(unsent)]

    # The thread

    def _run(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._woken, selectors.EVENT_READ, -1)
        beat_at_s = time.monotonic()
        self._watch.turn(beat_at_s)
        for peer in self._watch.peers:
            # What came together with the end of the handshake, no socket announces again.
            self._read(peer)
        for peer in self._watch.peers:
            selector.register(self._sockets[peer], selectors.EVENT_READ, peer)
        while not self._closing.is_set():
            ready = selector.select(max(0.0, min(beat_at_s, self._watch.ends_at_s()) - time.monotonic()))
            now_s = time.monotonic()
            self._watch.turn(now_s)
            watched = self._watch.peers
            # What has arrived is heard before anybody is called silent.
            for key, _ in ready:
                if key.data in watched:
                    self._watch.heard(key.data)
                    self._read(key.data)
            if now_s >= beat_at_s:
                beat_at_s = now_s + self._beat_s
                for peer in self._watch.peers:
                    self._send(peer, {"kind": "beat"})
            for peer in self._watch.silent():
                self._watch.forget(peer)
                self._lost(
                    peer, f"{self.names[peer]} stopped answering: nothing was heard from it for {self._silence_s:g} s"
                )
            for peer in set(watched) - set(self._watch.peers):
                selector.unregister(self._sockets[peer])
        selector.close()

    def _read(self, peer: int) -> None:
        try:
            data = self._sockets[peer].recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._watch.forget(peer)
            self._lost(peer, f"{self.names[peer]} went away: its connection ended without a goodbye")
            return
        try:
            for message in self._readers[peer].feed(data):
                self._take(peer, message)
        except FrameError as error:
            self._watch.forget(peer)
            self._lost(peer, f"{self.names[peer]} sent what is no control message: {error}")

    def _take(self, peer: int, message: Message) -> None:
        kind = message.get("kind")
        if kind == "goodbye":
            self._watch.forget(peer)
        elif kind == "abort":
            name, text = words(message.get("error"), 100), words(message.get("message"), _SAID_CHARACTERS)
            self._fail(by_name(name)(text), name, text, heard_from=peer)
        elif kind != "beat":
            raise FrameError(f"an unknown kind of control message, {kind!r:.40}")

    def _lost(self, peer: int, text: str) -> None:
        self._fail(PeerLost(text), "PeerLost", text)
