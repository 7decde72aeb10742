"""TLS links at work: what can be read on the wire, what a changed byte does, and the loss of a party."""

import contextlib
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from link_parties import NAMES, addresses, listeners, networks, pinned, together

from mpcpipe.errors import MpcpipeError, PeerLost
from mpcpipe.link.base import Part
from mpcpipe.link.identity import Identity
from mpcpipe.link.mesh import connect
from mpcpipe.link.network import Network

FOUR = Part(torch.int64, 4)
ROOT = pathlib.Path(__file__).resolve().parents[2]


# What is on the wire


class Tap:
    """Passes connections on to `place` and keeps all bytes of both directions."""

    def __init__(self, place: tuple[str, int]) -> None:
        self.heard = [bytearray(), bytearray()]
        self._place = place
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place = self._listener.getsockname()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                near = self._listener.accept()[0]
            except OSError:
                return
            far = socket.create_connection(self._place)
            self._sockets += [near, far]
            for index, (source, sink) in enumerate(((near, far), (far, near))):
                self._threads.append(threading.Thread(target=self._pass, args=(source, sink, self.heard[index])))
                self._threads[-1].start()

    def _pass(self, source: socket.socket, sink: socket.socket, heard: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                heard += data
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()
        for sock in (self._listener, *self._sockets):
            sock.close()


PLANTED = b"planted patient record: %d"
LENGTH = len(PLANTED % 0)


def overheard(given: dict[int, dict[str, Any]]) -> tuple[bytes, bytes]:
    """All bytes, from Bob to Alice and back, of a session in which both send what is planted in every way there is."""
    sockets = listeners(2)
    tap = Tap(sockets[0].getsockname())
    agreement = {"planted.key": "planted agreement"}

    def party(me: int) -> str:
        places = [tap.place if me else sockets[0].getsockname(), sockets[1].getsockname()]
        secret = torch.frombuffer(bytearray(PLANTED % me * 5000), dtype=torch.uint8)
        with pytest.raises(ZeroDivisionError, match="planted"), connect(
            me, places, names=NAMES[:2], deadline_s=20, listener=sockets[me], agreement=agreement, **given.get(me, {})
        ) as network:  # fmt: skip
            mesh = network.mesh()
            for label, numel in (("planted label", LENGTH), ("large", len(secret))):
                mesh.send(label, {1 - me: [secret[:numel]]})
                got = mesh.receive(label, {1 - me: [Part(torch.uint8, numel)]})[1 - me][0]
                assert bytes(got[:LENGTH].tolist()) == PLANTED % (1 - me)
            if me == 0:
                mesh.receive("end", {1: [FOUR]})
                raise ZeroDivisionError("planted error")
            mesh.send("end", {0: [torch.arange(4)]})
            try:
                mesh.receive("never", {0: [FOUR]})
            except MpcpipeError as error:
                raise ZeroDivisionError("planted error") from error
        return repr(network) + repr(network.mesh().links)

    outcomes = together(party, [0, 1])
    tap.close()
    assert all(isinstance(outcome, str) and "planted" not in outcome for outcome in outcomes), outcomes
    return bytes(tap.heard[0]), bytes(tap.heard[1])


def test_nothing_that_is_said_can_be_read_on_the_wire_or_in_a_log(
    identities: list[Identity], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    # In the clear, all of it can be: this test would notice.
    to_alice, to_bob = overheard({})
    for words in (b"planted agreement", b"confirm", b"public_key"):
        assert words in to_alice and words in to_bob
    assert PLANTED % 1 in to_alice and PLANTED % 0 in to_bob

    for direction in overheard(pinned(identities[:2])):
        assert len(direction) > LENGTH * 5000
        for words in (b"planted", b"patient", b"agreement", b"public_key", b"confirm", b"proof", b"beat", b"large"):
            assert words not in direction
        for identity in identities[:2]:
            assert pathlib.Path(identity.key_file).read_bytes().split(b"\n")[1] not in direction
    out, err = capfd.readouterr()
    assert "planted" not in caplog.text + out + err


def test_a_changed_byte_on_the_wire_is_noticed_by_who_receives_it(identities: list[Identity]) -> None:
    with networks(2, options=pinned(identities[:2])) as found:
        link = found[0].mesh().links[1]
        plain = link._sock._sock  # type: ignore[attr-defined]
        link.send("x", [torch.arange(4)])
        found[1].mesh().receive("x", {0: [FOUR]})
        # A record as it should be, from somebody without the keys.
        plain.sendall(b"\x17\x03\x03\x00\x40" + bytes(64))
        with pytest.raises(PeerLost, match=r"the connection to alice broke while waiting for 'y'") as error:
            found[1].mesh().receive("y", {0: [FOUR]})
        assert isinstance(error.value.__cause__, ssl.SSLError)


# Losses


BOB = """
import sys, torch
from mpcpipe.link.identity import load
from mpcpipe.link.mesh import connect
places = [("127.0.0.1", int(port)) for port in sys.argv[1:4]]
network = connect(1, places, workers=2, names=["alice", "bob", "carol"], deadline_s=60,
                  identity=load(*sys.argv[4:6]), pins=sys.argv[6:9])
network.mesh().send("ready", {0: [torch.arange(4)], 2: [torch.arange(4)]})
sys.stdin.read()
"""


@contextmanager
def bob_elsewhere(identities: list[Identity]) -> Iterator[tuple[list[Network], "subprocess.Popen[bytes]"]]:
    """Alice and Carol in this process, Bob in one of his own, all ready."""
    sockets = listeners(3)
    places = addresses(sockets)
    sockets[1].close()
    given = pinned(identities)
    own = [identities[1].certificate_file, identities[1].key_file, *given[1]["pins"]]
    bob = subprocess.Popen(
        [sys.executable, "-c", BOB, *(str(port) for _, port in places), *own],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    found: list[Any] = []
    try:
        found = together(
            lambda me: connect(me, places, workers=2, names=NAMES, deadline_s=60, listener=sockets[me], **given[me]),
            [0, 2],
            90,
        )
        for network in found:
            network.mesh().receive("ready", {1: [FOUR]})
        yield found, bob
    finally:
        bob.kill()
        bob.wait(10)
        assert bob.stdin is not None
        bob.stdin.close()
        for network in found:
            if isinstance(network, Network):
                network.close()


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_party_killed_or_stopped_is_lost_to_all_within_five_seconds(
    identities: list[Identity], fault: signal.Signals
) -> None:
    with bob_elsewhere(identities) as (found, bob):
        started = time.monotonic()
        bob.send_signal(fault)
        errors = together(lambda me: found[me].mesh(1).receive("x", {1 - me: [FOUR]}), [0, 1])
        elapsed = time.monotonic() - started
        said = {signal.SIGKILL: "bob went away: its connection", signal.SIGSTOP: "bob stopped answering: nothing"}
        assert [type(error) for error in errors] == [PeerLost, PeerLost]
        assert str(errors[0]) == str(errors[1]) and str(errors[0]).startswith(said[fault])
        assert elapsed < 5


def test_a_loss_while_much_is_on_the_way_does_not_keep_the_others(identities: list[Identity]) -> None:
    with bob_elsewhere(identities) as (found, bob):
        found[0].mesh().send("big", {1: [torch.zeros(8 << 20, dtype=torch.int64)]})
        bob.kill()
        with pytest.raises(PeerLost, match="bob went away"):
            found[0].mesh().receive("x", {1: [FOUR]})
        started = time.monotonic()
        found[0].close()
        assert time.monotonic() - started < 5


def test_nothing_is_left_after_close(identities: list[Identity]) -> None:
    before = set(threading.enumerate())
    with networks(3, options=pinned(identities)) as found:
        found[0].mesh().send("x", {1: [torch.zeros(1 << 20)]})
        found[1].mesh().receive("x", {0: [Part(torch.float32, 1 << 20)]})
    assert set(threading.enumerate()) == before
