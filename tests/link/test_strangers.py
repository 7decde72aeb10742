"""Callers that are no party: many at once, and any bytes at any moment of the greeting."""

import base64
import json
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from link_parties import NAMES, addresses, listeners, meet, networks, new_identity, pinned, together

from mpcpipe.errors import AuthError, MpcpipeError
from mpcpipe.launch.machine import TOGETHER, PartyOptions, run_local
from mpcpipe.link.arrivals import Arrivals
from mpcpipe.link.control import Control
from mpcpipe.link.handshake import Handshake, Hello
from mpcpipe.link.mesh import connect, listen
from mpcpipe.link.message import pack, words
from mpcpipe.link.network import Network
from mpcpipe.link.secure import Protection


def test_of_many_silent_callers_the_first_have_to_go_and_a_party_still_comes_in() -> None:
    listener = listen(("127.0.0.1", 0))
    place = listener.getsockname()
    arrivals = Arrivals(listener, 0, NAMES, 1, Protection())
    strangers = []
    try:
        for _ in range(80):
            strangers.append(socket.create_connection(place))
        for stranger in strangers[:16]:
            stranger.settimeout(5)  # half of what one caller alone may take
            assert stranger.recv(1) == b""
        with socket.create_connection(place) as party:
            party.sendall(Handshake(2, NAMES, 1, {}).hello.pack())
            sock, content = arrivals.take(("hello", 2, 0), lambda: time.monotonic() + 20)
            assert Hello.unpack(content).party == 2
            sock.close()
    finally:
        arrivals.close()
        for stranger in strangers:
            stranger.close()


def _greetings(certificates: list[bytes]) -> list[bytes]:
    """What is nearly right, and what is not at all."""
    shown = [base64.b64encode(certificate).decode() for certificate in certificates]
    said = [
        {"kind": "tls", "party": party, "certificate": text}
        for party in (0, -1, 1 << 70, 1.5, None, [2], {}, "2")  # a number of a party would shorten the wait for it
        for text in (*shown, "", "AAAA", "\ud800", 7)
    ]
    said += [{"kind": "hello", "party": 9, "agreement": []}, {"kind": ["data"], "party": 9}, {"refused": [[], {}]}]
    whole = [pack(message) for message in said]
    source = random.Random(7)
    raw = [source.randbytes(length) for length in (1, 3, 4, 5, 200)]
    raw += [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)]
    raw += [struct.pack(">I", length) + b"{}" for length in (2, 1 << 16, (1 << 32) - 1)]
    raw += [struct.pack(">I", len(body)) + body for body in (b"1e999", b"9" * 5000, b"[" * 9000, b'{"a":NaN}')]
    tls = [greeting + pack({"kind": "go"}) + source.randbytes(600) for greeting in whole[:3]]
    return whole + raw + tls + [greeting[:-3] for greeting in whole[:3]]


def test_whatever_strangers_say_the_parties_meet_and_no_thread_ends_by_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identities = [new_identity(tmp_path, name) for name in NAMES]
    stranger = new_identity(tmp_path, "mallory")
    sockets = listeners(3)
    places = addresses(sockets)
    broken: list[object] = []
    monkeypatch.setattr(threading, "excepthook", broken.append)
    greetings = _greetings([identities[1].certificate, stranger.certificate])
    open_ones = []
    for party in (0, 1):
        for greeting in greetings:
            open_ones.append(socket.create_connection(places[party]))
            open_ones[-1].sendall(greeting)

    def one(party: int) -> Network:
        return connect(
            party, places, names=NAMES, deadline_s=30, listener=sockets[party], **pinned(identities)[party]
        )

    met = together(one, range(3))
    for sock in open_ones:
        sock.close()
    for network in met:
        assert isinstance(network, Network), network
        network.close()
    assert broken == []


def test_in_the_clear_who_has_not_what_the_launcher_gave_is_no_party() -> None:
    """Another user of the machine who is quicker than carol, and has the job's public keys from alice's greeting."""
    alice, bob, carol = meet(3, options={0: {"together": b"of the run"}, 1: {"together": b"of the run"}})
    assert isinstance(alice, AuthError) and isinstance(bob, AuthError), (alice, bob)
    assert isinstance(carol, Exception)
    with networks(3, together=b"of the run") as found:
        assert found[0].keys[0, 1] == found[1].keys[0, 1]


def test_the_launcher_gives_all_parties_one_secret_and_not_on_their_command_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []
    popen = subprocess.Popen

    def noted(command: list[str], *, env: dict[str, str], **more: object) -> object:
        started.append((command, env))
        return popen([sys.executable, "-c", ""], **more)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", noted)
    for _ in range(2):
        with pytest.raises(MpcpipeError):
            run_local(PartyOptions(job="job.toml"), NAMES, tmp_path, lambda event: None)
    given = [env[TOGETHER] for _, env in started]
    assert len(given) == 6 and len(given[0]) == 64 and given[0] != given[3]
    assert given[:3] == given[:1] * 3
    assert not any(secret in " ".join(command) for secret in given for command, _ in started)


def test_what_another_party_says_cannot_steer_a_terminal() -> None:
    said = "bob:\n\x1b]0;owned\x07\x1b[2Kfine \u202egnp\ud800\x9b31m größer"
    left, right = socket.socketpair()
    control = Control(0, NAMES[:2], {1: left})
    control.start()
    right.sendall(pack({"kind": "abort", "error": "DataError", "message": said}))
    cause = control.wait_failure(20)
    control.close()
    right.close()
    assert str(cause) == words(said, 100) == "bob:\n?]0;owned??[2Kfine ?gnp??31m größer"
    hello = json.loads(Handshake(1, NAMES, 1, {"job": "\x1b[2J", "\x1b[1m": "x"}).hello.pack()[4:])
    assert "\x1b" not in str(Hello.unpack(hello).agreement)
    with pytest.raises(Exception, match=r"\?\[2J"):
        Hello.unpack({"refused": ["LinkError", "\x1b[2J"]})
