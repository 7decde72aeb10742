"""Mutual TLS: who gets in, who does not and what both sides are told, what is on the wire, and losses."""

import base64
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import torch
from link_parties import NAMES, addresses, listeners, meet, networks, new_identity, together

from mpcpipe.errors import AgreementError, AuthError, ConnectError, MpcpipeError, PeerLost
from mpcpipe.link import message
from mpcpipe.link.base import Part
from mpcpipe.link.identity import Identity
from mpcpipe.link.mesh import connect, listen
from mpcpipe.link.network import Network
from mpcpipe.link.pinned import APPLICATION, context
from mpcpipe.link.secure import link_description
from mpcpipe.link.tls import PIECE_BYTES, TlsSocket, _pieces

FOUR = Part(torch.int64, 4)
ROOT = pathlib.Path(__file__).resolve().parents[2]
# So long does a party wait that cannot know that the other will not come.
PATIENCE_S = 1.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def identities(folder: pathlib.Path) -> list[Identity]:
    return [new_identity(folder, name) for name in NAMES]


@pytest.fixture(scope="module")
def mallory(folder: pathlib.Path) -> Identity:
    return new_identity(folder, "mallory")


def options(identities: list[Identity], pins: list[str] | None = None) -> dict[int, dict[str, Any]]:
    """What each party gives `connect`."""
    pins = pins or [identity.fingerprint for identity in identities]
    return {party: {"identity": identity, "pins": pins} for party, identity in enumerate(identities)}


def parted(left: dict[str, Any], right: dict[str, Any]) -> list[Exception]:
    """Alice with the options `left` and Bob with `right` do not meet; returns each one's error, which came soon."""
    started = time.monotonic()
    found = meet(2, options={0: left, 1: right}, deadline_s=PATIENCE_S)
    assert time.monotonic() - started < 5
    assert all(isinstance(error, MpcpipeError) for error in found), found
    return found


# Who gets in


def test_three_parties_meet_over_tls_and_everything_goes_over_it(identities: list[Identity]) -> None:
    with networks(3, workers=2, options=options(identities)) as found:
        for me, network in enumerate(found):
            used = [*network._control._sockets.items(), *((link.peer, link._sock) for link in network._links)]
            assert len(used) == 6
            for peer, sock in used:
                assert isinstance(sock, TlsSocket) and sock.version == "TLSv1.3" and sock.application == APPLICATION
                assert sock.peer_certificate == identities[peer].certificate and peer != me

        def party(me: int) -> list[int]:
            mesh, others = found[me].mesh(1), [peer for peer in range(3) if peer != me]
            mesh.send("hi", {peer: [torch.tensor([me])] for peer in others})
            received = mesh.receive("hi", {peer: [Part(torch.int64, 1)] for peer in others})
            return [received[peer][0].item() for peer in others]

        assert together(party, range(3)) == [[1, 2], [0, 2], [0, 1]]
        assert found[0].keys[0, 1] == found[1].keys[0, 1]


def test_64_megabytes_both_ways_with_small_frames_between(identities: list[Identity]) -> None:
    with networks(2, options=options(identities[:2])) as found:

        def party(me: int) -> bool:
            mesh, numel = found[me].mesh(), 8 << 20
            mine = torch.arange(numel) * (me + 1)
            right = True
            for step in range(3):
                mesh.send(f"small {step}", {1 - me: [torch.full((4,), step)]})
                if step == 1:
                    mesh.send("big", {1 - me: [mine]})
                got = mesh.receive(f"small {step}", {1 - me: [FOUR]})[1 - me][0]
                right = right and got.tolist() == [step] * 4
                if step == 1:
                    theirs = mesh.receive("big", {1 - me: [Part(torch.int64, numel)]})[1 - me][0]
                    right = right and torch.equal(theirs, torch.arange(numel) * (2 - me))
            return right

        assert together(party, [0, 1], 60) == [True, True]


def test_a_different_job_is_still_named_by_both(identities: list[Identity]) -> None:
    both = options(identities[:2])
    for error in parted({**both[0], "agreement": {"x": "1"}}, {**both[1], "agreement": {"x": "2"}}):
        assert isinstance(error, AgreementError) and "alice has x = 1, bob has x = 2" in str(error)


# Who does not


@pytest.mark.parametrize("odd", [0, 1])
def test_an_unpinned_certificate(identities: list[Identity], mallory: Identity, odd: int) -> None:
    both = options(identities[:2])
    pins = list(both[odd]["pins"])
    pins[odd] = mallory.fingerprint
    both[odd] = {"identity": mallory, "pins": pins}
    alice, bob = parted(both[0], both[1])
    assert isinstance(alice, AuthError) and isinstance(bob, AuthError)
    for error in (alice, bob):
        assert mallory.fingerprint in str(error) and "mpcpipe keys show" in str(error)
    assert str(alice).startswith("bob was not let in: ")


@pytest.mark.parametrize("odd", [0, 1])
def test_the_certificate_of_another_party(identities: list[Identity], odd: int) -> None:
    # In a job of three: whoever is odd has Carol's certificate, and believes that to be right.
    right = [identity.fingerprint for identity in identities]
    wrong = list(right)
    wrong[odd], wrong[2] = right[2], right[odd]
    found = meet(
        3,
        [0, 1],
        {odd: {"identity": identities[2], "pins": wrong}, 1 - odd: {"identity": identities[1 - odd], "pins": right}},
        deadline_s=PATIENCE_S,
    )
    assert all(isinstance(error, AuthError) and "the certificate of carol" in str(error) for error in found), found


@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize(("age", "said"), [(800, "expired on"), (-10, "is a clock wrong")])
def test_a_certificate_out_of_its_time(
    identities: list[Identity], tmp_path: pathlib.Path, odd: int, age: int, said: str
) -> None:
    both = identities[:2]
    both[odd] = new_identity(tmp_path, NAMES[odd], datetime.now(UTC) - timedelta(days=age))
    given = options(both)
    for error in parted(given[0], given[1]):
        assert isinstance(error, AuthError) and f"the certificate of {NAMES[odd]}" in str(error) and said in str(error)


def test_tls_to_a_port_in_the_clear_and_the_other_way_round(identities: list[Identity]) -> None:
    both = options(identities[:2])
    for left, right in (({}, both[1]), (both[0], {})):
        errors = parted(left, right)
        assert all(isinstance(error, AuthError) and "TLS" in str(error) for error in errors), errors
        assert all("same job" in str(error) for error in errors)


def test_what_is_wrong_with_ones_own_certificate_is_said_before_anything_is_opened(
    identities: list[Identity], mallory: Identity
) -> None:
    places = [("127.0.0.1", 1), ("127.0.0.1", 2)]
    pins = [identity.fingerprint for identity in identities[:2]]
    with pytest.raises(AuthError, match=r"mallory\.crt of alice has the fingerprint sha256:.*but the job says sha256:"):
        connect(0, places, names=NAMES[:2], identity=mallory, pins=pins)
    with pytest.raises(AuthError, match="1 different fingerprints for 2 parties"):
        connect(0, places, names=NAMES[:2], identity=identities[0], pins=pins[:1] * 2)
    with pytest.raises(AuthError, match="alice has none: `mpcpipe keys new alice`"):
        connect(0, places, names=NAMES[:2], pins=pins)


def unsafe(identity: Identity | None, trusted: bytes, server_side: bool, version: ssl.TLSVersion) -> ssl.SSLContext:
    """The TLS of somebody who does not do as this package does."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.maximum_version = version
    made.verify_mode = ssl.CERT_OPTIONAL if server_side else ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=trusted)
    made.set_alpn_protocols([APPLICATION])
    if identity is not None:
        made.load_cert_chain(identity.certificate_file, identity.key_file)
    return made


def shown(party: int, identity: Identity) -> bytes:
    return message.pack({"kind": "tls", "party": party, "certificate": base64.b64encode(identity.certificate).decode()})


# name -> (who does the handshake: with Bob's certificate shown, who has which key; the version; the reason)
IMPOSTORS = {
    "TLS 1.2": ("own", ssl.TLSVersion.TLSv1_2, "protocol"),
    "no certificate": ("none", ssl.TLSVersion.TLSv1_3, "did not return a certificate"),
    "another key": ("mallory", ssl.TLSVersion.TLSv1_3, "self-signed certificate|verify failed"),
}


@pytest.mark.parametrize("kind", IMPOSTORS)
def test_a_caller_who_shows_a_pinned_certificate_and_cannot_prove_it(
    identities: list[Identity], mallory: Identity, kind: str
) -> None:
    key, version, reason = IMPOSTORS[kind]
    alice, bob = identities[:2]
    listener = listen(("127.0.0.1", 0))
    place = listener.getsockname()

    def call() -> None:
        with socket.create_connection(place) as sock:
            sock.settimeout(10)
            sock.sendall(shown(1, bob))
            assert message.read(sock, message.CONTROL_BYTES, time.monotonic() + 10)["kind"] == "tls"
            sock.sendall(message.pack({"kind": "go"}))
            used = {"own": bob, "mallory": mallory, "none": None}[key]
            with unsafe(used, alice.certificate, False, version).wrap_socket(sock) as secured:
                # In TLS 1.3 the refusal comes with the first bytes after the handshake; never a byte of the job.
                assert secured.recv(1) == b""

    def party(number: int) -> Network | None:
        if number == 0:
            pins = [alice.fingerprint, bob.fingerprint]
            return connect(
                0, [place, ("127.0.0.1", 9)], names=NAMES[:2], deadline_s=PATIENCE_S, listener=listener,
                identity=alice, pins=pins,
            )  # fmt: skip
        return call()

    error, refused = together(party, [0, 1])
    assert isinstance(error, AuthError) and str(error).startswith("bob was not let in: TLS with bob failed:")
    assert any(words in str(error) for words in reason.split("|")), error
    assert isinstance(refused, ssl.SSLError | ConnectionError), refused


@pytest.mark.parametrize("kind", ["TLS 1.2", "another key"])
def test_a_server_who_shows_a_pinned_certificate_and_cannot_prove_it(
    identities: list[Identity], mallory: Identity, kind: str
) -> None:
    key, version, reason = IMPOSTORS[kind]
    alice, bob = identities[:2]
    listener = socket.create_server(("127.0.0.1", 0))
    place = listener.getsockname()

    def serve() -> None:
        with listener, listener.accept()[0] as sock:
            sock.settimeout(10)
            assert message.read(sock, message.CONTROL_BYTES, time.monotonic() + 10)["party"] == 1
            sock.sendall(shown(0, alice))
            assert message.read(sock, message.CONTROL_BYTES, time.monotonic() + 10)["kind"] == "go"
            used = {"own": alice, "mallory": mallory}[key]
            with unsafe(used, bob.certificate, True, version).wrap_socket(sock, server_side=True) as secured:
                assert secured.recv(1) == b""

    def party(number: int) -> Network | None:
        pins = [alice.fingerprint, bob.fingerprint]
        if number == 0:
            return serve()
        return connect(
            1, [place, ("127.0.0.1", 9)], names=NAMES[:2], deadline_s=5, identity=bob, pins=pins,
            listener=listen(("127.0.0.1", 0)),
        )  # fmt: skip

    refused, error = together(party, [0, 1])
    assert isinstance(error, AuthError) and str(error).startswith("TLS with alice failed:")
    assert any(words in str(error) for words in reason.split("|")), error
    assert isinstance(refused, ssl.SSLError | ConnectionError), refused


def test_openssl_itself_refuses_an_expired_certificate(identities: list[Identity], tmp_path: pathlib.Path) -> None:
    old = new_identity(tmp_path, "bob", datetime.now(UTC) - timedelta(days=800))
    left, right = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context(identities[0], old.certificate, True).wrap_bio(left, right, server_side=True)
    client = context(old, identities[0].certificate, False).wrap_bio(right, left)

    def shake() -> None:
        for _ in range(4):
            for end in (client, server):
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()

    with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
        shake()


def test_strangers_do_no_harm_and_cannot_make_a_party_wait(identities: list[Identity]) -> None:
    sockets = listeners(2)
    places = addresses(sockets)
    strangers = [socket.create_connection(places[0]) for _ in range(5)]
    strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    strangers[1].sendall(message.pack({"kind": "tls", "party": 1, "certificate": "!"}))
    strangers[2].sendall(message.pack({"kind": "tls", "party": 7, "certificate": "AAAA"}))
    strangers[3].sendall(b"\x16\x03\x01\x02\x00\x01")
    given = options(identities[:2])
    outcomes = together(
        lambda me: connect(me, places, names=NAMES[:2], deadline_s=20, listener=sockets[me], **given[me]), [0, 1]
    )
    for stranger in strangers:
        stranger.close()
    for outcome in outcomes:
        assert isinstance(outcome, Network), outcome
        outcome.close()


def test_another_program_at_the_address_and_one_that_says_nothing(identities: list[Identity]) -> None:
    given = options(identities[:2])[1]
    for says, kind, said in (
        (b"220 mail.example.org ESMTP\r\n", AuthError, "not alice with TLS"),
        (b"", ConnectError, "does not answer: is it alice"),
    ):
        with socket.create_server(("127.0.0.1", 0)) as other, contextlib.ExitStack() as stack:

            def greet(says: bytes = says, other: socket.socket = other, stack: contextlib.ExitStack = stack) -> None:
                stack.enter_context(other.accept()[0]).sendall(says)

            greeting = threading.Thread(target=greet)
            greeting.start()
            with pytest.raises(kind, match=said):
                connect(1, [other.getsockname(), ("127.0.0.1", 0)], names=NAMES[:2], deadline_s=PATIENCE_S, **given)
            greeting.join(10)


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

    for direction in overheard(options(identities[:2])):
        assert len(direction) > LENGTH * 5000
        for words in (b"planted", b"patient", b"agreement", b"public_key", b"confirm", b"proof", b"beat", b"large"):
            assert words not in direction
        for identity in identities[:2]:
            assert pathlib.Path(identity.key_file).read_bytes().split(b"\n")[1] not in direction
    out, err = capfd.readouterr()
    assert "planted" not in caplog.text + out + err


def test_a_changed_byte_on_the_wire_is_noticed_by_who_receives_it(identities: list[Identity]) -> None:
    with networks(2, options=options(identities[:2])) as found:
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
    given = options(identities)
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
    with networks(3, options=options(identities)) as found:
        found[0].mesh().send("x", {1: [torch.zeros(1 << 20)]})
        found[1].mesh().receive("x", {0: [Part(torch.float32, 1 << 20)]})
    assert set(threading.enumerate()) == before


# Pieces


@pytest.mark.parametrize("skip", [0, 1, 7, 100, 16 << 10, 70_000, 300_000])
def test_pieces_are_the_buffers_without_what_is_done(skip: int) -> None:
    sizes = [59, 3, 0, 16 << 10, 1, 200_000, 5, *[40] * 4000, (16 << 10) + 1, 9]
    buffers: list[Any] = [os.urandom(size) for size in sizes]
    pieces = list(_pieces(buffers, skip))
    assert b"".join(pieces) == b"".join(buffers)[skip:]
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)
    assert [bytes(piece) for piece in _pieces(buffers[:2], 0)] == [buffers[0] + buffers[1]]


def test_the_banner_says_how_links_are_protected() -> None:
    describe: Callable[..., str] = link_description
    assert describe(["10.0.0.1", "127.0.0.1"], True) == "TLS 1.3, mutual, pinned"
    assert describe([], False) == describe(["127.0.0.1", "::1", "localhost"], False) == "plaintext (loopback)"
    assert describe(["127.0.0.1", "10.0.0.1"], False) == "PLAINTEXT"
