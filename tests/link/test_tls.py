"""Mutual TLS: who gets in, who does not and what both sides are told."""

import base64
import contextlib
import os
import pathlib
import socket
import ssl
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import torch
from link_parties import NAMES, addresses, listeners, meet, networks, new_identity, pinned, together

from mpcpipe.errors import AgreementError, AuthError, ConnectError, MpcpipeError
from mpcpipe.link import message
from mpcpipe.link.base import Part
from mpcpipe.link.identity import Identity
from mpcpipe.link.mesh import connect, listen
from mpcpipe.link.network import Network
from mpcpipe.link.pinned import APPLICATION, context
from mpcpipe.link.secure import link_description
from mpcpipe.link.tls import PIECE_BYTES, TlsSocket, _pieces

FOUR = Part(torch.int64, 4)
# So long does a party wait that cannot know that the other will not come.
PATIENCE_S = 1.5


def parted(left: dict[str, Any], right: dict[str, Any]) -> list[Exception]:
    """Alice with the options `left` and Bob with `right` do not meet; returns each one's error, which came soon."""
    started = time.monotonic()
    found = meet(2, options={0: left, 1: right}, deadline_s=PATIENCE_S)
    assert time.monotonic() - started < 5
    assert all(isinstance(error, MpcpipeError) for error in found), found
    return found


# Who gets in


def test_three_parties_meet_over_tls_and_everything_goes_over_it(identities: list[Identity]) -> None:
    with networks(3, workers=2, options=pinned(identities)) as found:
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
    with networks(2, options=pinned(identities[:2])) as found:

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
    both = pinned(identities[:2])
    for error in parted({**both[0], "agreement": {"x": "1"}}, {**both[1], "agreement": {"x": "2"}}):
        assert isinstance(error, AgreementError) and "alice has x = 1, bob has x = 2" in str(error)


# Who does not


@pytest.mark.parametrize("odd", [0, 1])
def test_an_unpinned_certificate(identities: list[Identity], mallory: Identity, odd: int) -> None:
    both = pinned(identities[:2])
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
    given = pinned(both)
    for error in parted(given[0], given[1]):
        assert isinstance(error, AuthError) and f"the certificate of {NAMES[odd]}" in str(error) and said in str(error)


def test_tls_to_a_port_in_the_clear_and_the_other_way_round(identities: list[Identity]) -> None:
    both = pinned(identities[:2])
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
    given = pinned(identities[:2])
    outcomes = together(
        lambda me: connect(me, places, names=NAMES[:2], deadline_s=20, listener=sockets[me], **given[me]), [0, 1]
    )
    for stranger in strangers:
        stranger.close()
    for outcome in outcomes:
        assert isinstance(outcome, Network), outcome
        outcome.close()


def test_another_program_at_the_address_and_one_that_says_nothing(identities: list[Identity]) -> None:
    given = pinned(identities[:2])[1]
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
