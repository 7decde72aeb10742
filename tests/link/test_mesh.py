"""Parties that come together over loopback, and what they are told if that fails."""

import socket
import threading
import time

import pytest
import torch
from link_parties import NAMES, addresses, listeners, meet, networks, together

from mpcpipe.errors import AddressInUseError, AgreementError, AuthError, ConnectError, FrameError, PeerLost
from mpcpipe.link.base import Part
from mpcpipe.link.mesh import connect, listen
from mpcpipe.link.network import Network

AGREEMENT = {"protocol.name": "replicated3", "fixed_point.fraction_bits": "16", "training.steps": "100"}


def test_three_parties_connect_and_every_worker_has_its_own_links() -> None:
    with networks(3, workers=2, agreement=AGREEMENT) as found:

        def party(me: int) -> list[list[int]]:
            heard = []
            for worker in (1, 0):
                mesh = found[me].mesh(worker)
                others = [peer for peer in range(3) if peer != me]
                mesh.send("hi", {peer: [torch.tensor([me, worker])] for peer in others})
                received = mesh.receive("hi", {peer: [Part(torch.int64, 2)] for peer in others})
                heard += [received[peer][0].tolist() for peer in others]
                assert mesh.clock == 1
            return heard

        outcomes = together(party, range(3))
        for me in range(3):
            assert outcomes[me] == [[peer, worker] for worker in (1, 0) for peer in range(3) if peer != me]


def test_keys_are_shared_by_their_holders_only_and_fresh() -> None:
    with networks(3) as found, networks(3) as again:
        assert [sorted(network.keys) for network in found] == [
            [(0,), (0, 1), (0, 2)],
            [(0, 1), (1,), (1, 2)],
            [(0, 2), (1, 2), (2,)],
        ]
        for one, other in [(0, 1), (0, 2), (1, 2)]:
            assert found[one].keys[one, other] == found[other].keys[one, other]
        distinct = {key for group in (found, again) for network in group for key in network.keys.values()}
        assert len(distinct) == 2 * 6 and {len(key) for key in distinct} == {32}
        assert len({network.session.identity for network in found}) == 1
        assert found[0].session.identity != again[0].session.identity
        for network in found:
            shown = repr(network) + repr(network.session)
            assert not any(key.hex() in shown for key in network.keys.values())


def test_two_parties_and_one() -> None:
    with networks(2) as found:
        assert found[0].keys[0, 1] == found[1].keys[0, 1]
    with networks(1) as found:
        assert list(found[0].keys) == [(0,)]


def test_a_party_may_come_late() -> None:
    sockets = listeners(3)
    places = addresses(sockets)
    sockets[0].close()
    met: list[object] = []

    def early(party: int) -> None:
        met.append(connect(party, places, names=NAMES, deadline_s=20, listener=sockets[party]))

    threads = [threading.Thread(target=early, args=(party,)) for party in (1, 2)]
    for thread in threads:
        thread.start()
    met.append(connect(0, places, names=NAMES, deadline_s=20))
    for thread in threads:
        thread.join(20)
    assert len(met) == 3
    for network in met:
        assert isinstance(network, Network)
        network.close()


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_who_does_not_come_is_named_in_time(missing: int) -> None:
    started = time.monotonic()
    present = [party for party in range(3) if party != missing]
    errors = meet(3, present, deadline_s=0.5)
    assert time.monotonic() - started < 10
    for error in errors:
        assert isinstance(error, ConnectError)
        assert str(error).startswith(f"{NAMES[missing]} (127.0.0.1:") and "within 0.5 s" in str(error)


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_a_different_job_is_named_by_all_parties(odd: int) -> None:
    changed = {**AGREEMENT, "fixed_point.fraction_bits": "14", "training.steps": "99"}
    errors = meet(3, options={odd: {"agreement": changed}}, agreement=AGREEMENT)
    for party, error in enumerate(errors):
        assert isinstance(error, AgreementError)
        # Everybody compares with the first party that differs; the odd one differs from all.
        pair = sorted((party, odd)) if party != odd else sorted((odd, 0 if odd else 1))
        bits = {index: "14" if index == odd else "16" for index in range(3)}
        said = [f"{NAMES[index]} has fixed_point.fraction_bits = {bits[index]}" for index in pair]
        assert str(error).startswith(", ".join(said))


def test_a_key_that_only_one_has_and_another_number_of_workers() -> None:
    for error in meet(2, options={1: {"agreement": {**AGREEMENT, "new.key": "1"}}}, agreement=AGREEMENT):
        assert isinstance(error, AgreementError)
        assert str(error).startswith("alice has no new.key, bob has new.key = 1")
    for error in meet(2, options={1: {"workers": 2}}):
        assert isinstance(error, AgreementError) and "alice has workers = 1, bob has workers = 2" in str(error)


def test_values_that_differ_only_at_their_end_are_found_and_cut_in_the_sentence() -> None:
    long = "x" * 5000
    for error in meet(2, options={1: {"agreement": {"model": long + "b"}}}, agreement={"model": long + "a"}):
        assert isinstance(error, AgreementError) and "model" in str(error) and len(str(error)) < 600


def test_a_party_started_twice_is_turned_away() -> None:
    sockets = listeners(3)
    places = addresses(sockets)
    for party in (1, 2):
        sockets[party].close()
    common = {"names": NAMES, "deadline_s": 1.5}
    first = threading.Thread(target=lambda: together(lambda _: connect(0, places, listener=sockets[0], **common), [0]))
    first.start()

    def bob(_: int) -> Network:
        return connect(1, places, listener=listen(("127.0.0.1", 0)), **common)

    outcomes = together(bob, [0, 1])
    first.join(20)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["AuthError", "ConnectError"]
    assert any("another process came to alice as bob" in str(outcome) for outcome in outcomes)


def test_a_port_in_use_is_named() -> None:
    taken = listen(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    with pytest.raises(AddressInUseError, match=rf"another program listens on 127\.0\.0\.1:{port}.*another port"):
        connect(0, [("127.0.0.1", port), ("127.0.0.1", port + 1)], deadline_s=5)
    taken.close()


def test_an_address_of_another_machine_is_refused_or_named() -> None:
    with pytest.raises(AuthError, match=r"192\.0\.2\.1 would be in the clear.*insecure_plaintext"):
        connect(0, [("127.0.0.1", 9), ("192.0.2.1", 9)], deadline_s=5)
    with pytest.raises(ConnectError, match=r"cannot listen on 192\.0\.2\.1:9000"):
        connect(0, [("192.0.2.1", 9000), ("127.0.0.1", 9)], deadline_s=5, insecure_plaintext=True)


def test_strangers_at_the_port_do_no_harm() -> None:
    sockets = listeners(2)
    places = addresses(sockets)
    strangers = [socket.create_connection(places[0]) for _ in range(4)]
    strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    strangers[1].sendall(b"\x00\x00\x00\x02{}")
    strangers[2].sendall(b"\xff" * 100)
    outcomes = together(lambda me: connect(me, places, names=NAMES[:2], deadline_s=20, listener=sockets[me]), [0, 1])
    for stranger in strangers:
        stranger.close()
    for outcome in outcomes:
        assert isinstance(outcome, Network)
        outcome.close()


def test_another_program_at_a_peers_address_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            with other.accept()[0] as sock:
                sock.sendall(b"220 mail.example.org ESMTP\r\n")
                sock.recv(1)

        greeting = threading.Thread(target=greet)
        greeting.start()
        with pytest.raises(FrameError, match=r"announced|not a message"):
            connect(1, [other.getsockname(), ("127.0.0.1", 0)], deadline_s=5)
        greeting.join(10)


def test_nothing_is_left_after_close() -> None:
    before = set(threading.enumerate())
    with networks(3, workers=2) as found:
        ports = [link._sock.getsockname() for link in found[0]._links]
        found[0].mesh().send("x", {1: [torch.zeros(1 << 20)]})
        found[1].mesh().receive("x", {0: [Part(torch.float32, 1 << 20)]})
    assert set(threading.enumerate()) == before
    assert len(ports) == 4
    for network in found:
        network.close()


def test_the_end_of_one_party_is_no_loss_to_the_others_until_they_need_it() -> None:
    with networks(3) as found:
        found[2].close()
        found[0].mesh().send("x", {1: [torch.arange(4)]})
        assert found[1].mesh().receive("x", {0: [Part(torch.int64, 4)]})[0][0].tolist() == [0, 1, 2, 3]
        assert found[0].failure is None
        with pytest.raises(PeerLost, match="carol closed the connection"):
            found[0].mesh().receive("y", {2: [Part(torch.int64, 4)]})
