"""A link over a socket: frames, sizes, order, deadlines, and a peer that misbehaves."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from link_parties import new_identity, socket_pair, tls_pair

from mpcpipe.errors import FrameError, PeerLost, RangeError
from mpcpipe.link import tcp
from mpcpipe.link.base import Mesh, Part
from mpcpipe.link.frame import Route, encode
from mpcpipe.link.identity import Identity
from mpcpipe.link.tcp import TcpLink
from mpcpipe.link.tls import Connection

Sockets = Callable[[], tuple[Connection, Connection]]

SESSION = b"session!"
FOUR = Part(torch.int64, 4)


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> list[Identity]:
    return [new_identity(tmp_path_factory.mktemp("keys"), name) for name in ("alice", "bob")]


AHEAD_BYTES = {"ahead": 0}


@pytest.fixture(params=["plain", "tls", "plain, read ahead", "tls, read ahead"], autouse=True)
def sockets(request: pytest.FixtureRequest, identities: list[Identity], monkeypatch: pytest.MonkeyPatch) -> Sockets:
    """Makes two connected ends, with TLS or without, read ahead or not: a link does the same over all."""
    kind, _, ahead = request.param.partition(", ")
    monkeypatch.setitem(AHEAD_BYTES, "ahead", 100_000 if ahead else 0)
    return socket_pair if kind == "plain" else lambda: tls_pair(identities)


def link(sock: Connection, me: int, deadline_s: float = 20, **options: object) -> TcpLink:
    routes = Route(SESSION, me), Route(SESSION, 1 - me)
    made = TcpLink(1 - me, ("alice", "bob")[1 - me], sock, *routes, deadline_s, **options)  # type: ignore[arg-type]
    if AHEAD_BYTES["ahead"]:
        made.read_ahead(AHEAD_BYTES["ahead"])
    return made


@pytest.fixture
def ends(sockets: Sockets) -> Iterator[tuple[TcpLink, TcpLink]]:
    left, right = sockets()
    both = link(left, 0), link(right, 1)
    yield both
    for end in both:
        end.close()


@pytest.fixture
def alone(sockets: Sockets) -> Iterator[tuple[TcpLink, Connection]]:
    """Party 0's link, and the bare socket of a peer that may say anything."""
    left, right = sockets()
    end = link(left, 0, deadline_s=0.3)
    yield end, right
    end.close()
    right.close()


def test_parts_of_every_dtype_arrive(ends: tuple[TcpLink, TcpLink]) -> None:
    left, right = ends
    sent = [
        torch.tensor([-(2**63), 2**63 - 1]),
        torch.tensor([-(2**31)], dtype=torch.int32),
        torch.empty(0, dtype=torch.int64),
        torch.tensor([True, False, True]),
        torch.tensor([0.5, -2.0], dtype=torch.bfloat16),
        torch.arange(100_000),
    ]
    left.send("x", sent, clock=7)
    left.send("y", [torch.arange(4)], clock=8)
    received, clock = right.receive("x", [Part(part.dtype, part.numel()) for part in sent])
    assert clock == 7 and all(torch.equal(a, b) for a, b in zip(sent, received, strict=True))
    assert right.receive("y", [FOUR])[1] == 8
    payload = sum(part.nbytes for part in sent) + 32
    assert left.traffic.sent_payload_bytes == right.traffic.received_payload_bytes == payload
    assert left.traffic.sent_wire_bytes == payload + 2 * 50 + 7 * 9
    assert left.traffic.sent_frames == 2


def test_more_parts_than_a_system_call_takes(ends: tuple[TcpLink, TcpLink]) -> None:
    left, right = ends
    for numel in (1, 40):
        parts = [torch.full((numel,), index) for index in range(2500)]
        left.send("many", parts)
        received, _ = right.receive("many", [Part(torch.int64, numel)] * 2500)
        assert torch.equal(torch.cat(received), torch.cat(parts))


def test_both_sides_send_64_megabytes_at_once(ends: tuple[TcpLink, TcpLink]) -> None:
    def party(index: int) -> bool:
        mine = torch.arange(8 << 20) + index
        ends[index].send("big", [mine])
        ends[index].send("small", [torch.arange(4)])
        (theirs,), _ = ends[index].receive("big", [Part(torch.int64, 8 << 20)])
        ends[index].receive("small", [FOUR])
        return torch.equal(theirs + index, mine + 1 - index)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(party, range(2), timeout=60)) == [True, True]


def test_close_sends_what_is_queued(sockets: Sockets) -> None:
    left, right = (link(sock, index) for index, sock in enumerate(sockets()))
    left.send("big", [torch.arange(4 << 20)])
    closer = threading.Thread(target=left.close)
    closer.start()
    (got,), _ = right.receive("big", [Part(torch.int64, 4 << 20)])
    closer.join(20)
    assert torch.equal(got, torch.arange(4 << 20)) and not closer.is_alive()
    with pytest.raises(PeerLost, match=r"alice closed the connection while this party waits for 'more'"):
        right.receive("more", [FOUR])
    with pytest.raises(PeerLost, match="closed; 'late' cannot"):
        left.send("late", [torch.arange(4)])
    right.close()


def header(label: str = "x", parts: tuple[Part, ...] = (FOUR,), sequence: int = 0, session: bytes = SESSION) -> bytes:
    return encode(Route(session, 1), label, parts, sequence, 0)


PAYLOAD = struct.pack("<4q", 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (header("y") + PAYLOAD, "another label"),
        (header(session=b"earlier!") + PAYLOAD, "another session"),
        (header(sequence=1) + PAYLOAD, "number 0 expected, number 1 came"),
        (header(parts=(Part(torch.int64, 2**60),)), "announces 9223372036854775808"),
        (header(parts=(Part(torch.int32, 8),)) + PAYLOAD, "8 elements of int32 came"),
        (header(parts=()), "1 parts expected, it has 0"),
        (header(parts=(FOUR, FOUR)) + PAYLOAD, "it has 2"),
        (b"GET / HTTP/1.1\r\nHost: example.org\r\nAccept: text/html\r\n\r\n", "not a frame of mpcpipe"),
    ],
)
def test_a_wrong_frame_is_refused_at_once_and_for_good(
    alone: tuple[TcpLink, Connection], data: bytes, message: str
) -> None:
    end, peer = alone
    peer.sendall(data)
    with pytest.raises(FrameError, match=message):
        end.receive("x", [FOUR])
    peer.sendall(header() + PAYLOAD)
    with pytest.raises(FrameError, match=message):
        end.receive("x", [FOUR])


def test_nothing_large_is_allocated_before_the_header_is_right(
    alone: tuple[TcpLink, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    end, peer = alone
    allocated: list[int] = []
    allocate = tcp._allocate
    monkeypatch.setattr(tcp, "_allocate", lambda parts: allocated.append(len(parts)) or allocate(parts))
    peer.sendall(header(parts=(Part(torch.int32, 2 << 20),)))
    with pytest.raises(FrameError, match="2097152 elements of int32 came"):
        end.receive("x", [Part(torch.int64, 1 << 20)])
    assert allocated == []


def test_a_repeated_frame_is_refused(alone: tuple[TcpLink, Connection]) -> None:
    end, peer = alone
    peer.sendall(2 * (header() + PAYLOAD))
    assert end.receive("x", [FOUR])[0][0].tolist() == [1, 2, 3, 4]
    with pytest.raises(FrameError, match="number 1 expected, number 0 came"):
        end.receive("x", [FOUR])


@pytest.mark.parametrize("length", [0, 1, 49, 50, 58, 59, 60, 90])
def test_the_end_in_the_middle_of_a_frame_is_a_loss(alone: tuple[TcpLink, Connection], length: int) -> None:
    end, peer = alone
    peer.sendall((header() + PAYLOAD)[:length])
    peer.shutdown(socket.SHUT_WR)
    with pytest.raises(PeerLost, match="bob closed the connection"):
        end.receive("x", [FOUR])


@pytest.mark.parametrize("numel", [4, 1 << 20])
@pytest.mark.parametrize("share", [0, 30, 59, 70])
def test_silence_in_the_middle_of_a_frame_ends_at_the_deadline(
    alone: tuple[TcpLink, Connection], share: int, numel: int
) -> None:
    end, peer = alone
    peer.sendall((header(parts=(Part(torch.int64, numel),)) + PAYLOAD)[:share])
    with pytest.raises(PeerLost, match=r"bob did not send 'x' within 0\.3 s"):
        end.receive("x", [Part(torch.int64, numel)])


def test_a_byte_now_and_then_does_not_extend_the_deadline(alone: tuple[TcpLink, Connection]) -> None:
    end, peer = alone
    done = threading.Event()

    def drip() -> None:
        for byte in header() + PAYLOAD:
            peer.sendall(bytes([byte]))
            if done.wait(0.02):
                return

    dripping = threading.Thread(target=drip)
    dripping.start()
    started = time.monotonic()
    with pytest.raises(PeerLost, match="did not send"):
        end.receive("x", [FOUR])
    assert time.monotonic() - started < 1.5
    done.set()
    dripping.join()


def test_a_frame_in_single_bytes_is_put_together(sockets: Sockets) -> None:
    left, peer = sockets()
    end = link(left, 0, deadline_s=20)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(end.receive, "x", [FOUR])
        for byte in header() + PAYLOAD:
            peer.sendall(bytes([byte]))
        assert result.result(timeout=20)[0][0].tolist() == [1, 2, 3, 4]
    end.close()
    peer.close()


def test_a_peer_that_takes_nothing_is_lost_at_the_deadline(alone: tuple[TcpLink, Connection]) -> None:
    end, _ = alone
    big = torch.zeros(8 << 20, dtype=torch.int64)
    end.send("big", [big])
    end._sender.join(10)  # type: ignore[union-attr]
    with pytest.raises(PeerLost, match=r"bob took nothing of 'big' for 0\.3 s"):
        end.send("next", [torch.arange(4)])


def test_interrupt_wakes_a_waiting_worker_with_the_cause(sockets: Sockets) -> None:
    left, peer = sockets()
    cause = RangeError("bob: the tensor 'features' does not fit")
    known: list[Exception] = []
    end = link(left, 0, cause=lambda: known[0] if known else None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(end.receive, "x", [FOUR])
        known.append(cause)
        end.interrupt()
        assert waiting.exception(timeout=10) is cause
    with pytest.raises(RangeError):
        end.send("y", [torch.arange(4)])
    end.close()
    peer.close()


def test_who_only_sends_can_wait_until_the_peer_has_taken_it(ends: tuple[TcpLink, TcpLink]) -> None:
    left, right = ends
    left.drain(0)
    large = torch.arange(1 << 20)
    for index in range(8):
        left.send(f"{index}", [large])
    with ThreadPoolExecutor(1) as pool:
        drained = pool.submit(left.drain, 8 << 20)
        assert not drained.done()  # 64 MiB are more than any socket takes
        for index in range(8):
            assert torch.equal(right.receive(f"{index}", [Part(torch.int64, 1 << 20)])[0][0], large)
        drained.result(timeout=20)


def test_waiting_for_the_peer_to_take_it_ends_with_the_peer(ends: tuple[TcpLink, TcpLink]) -> None:
    left, right = ends
    left.send("x", [torch.zeros(8 << 20, dtype=torch.int64)])
    with ThreadPoolExecutor(1) as pool:
        drained = pool.submit(left.drain, 0)
        right.close()
        with pytest.raises(PeerLost):
            drained.result(timeout=20)


def test_what_comes_early_is_taken_in_up_to_a_bound(sockets: Sockets) -> None:
    """32 MB are more than any socket takes: they leave the sender while nobody asks for them, or wait there."""
    large, count = torch.arange(1 << 19), 8
    for most_bytes, all_leave in ((64 << 20, True), (1 << 20, False)):
        left, right = (link(sock, index) for index, sock in enumerate(sockets()))
        right.read_ahead(most_bytes)
        left.send("first", [torch.arange(4)])
        right.receive("first", [FOUR])
        for index in range(count):
            left.send(f"{index}", [large + index])
        with ThreadPoolExecutor(1) as pool:
            drained = pool.submit(left.drain, 0)
            if all_leave:
                drained.result(timeout=20)
            for index in range(count):
                assert not (index == 0 and not all_leave and drained.done())
                (got,), _ = right.receive(f"{index}", [Part(torch.int64, 1 << 19)])
                assert torch.equal(got, large + index)
            drained.result(timeout=20)
        for end in (left, right):
            end.close()


def test_a_dealer_runs_ahead_and_no_further_than_it_may(ends: tuple[TcpLink, TcpLink]) -> None:
    """Frames of 8 MB, 16 MB ahead: two in the queue, one on its way, and what the sockets take of a fourth."""
    left, right = ends
    frame, count = torch.arange(1 << 20), 12
    dealer = Mesh(2, 3, {1: left}, ahead_bytes=2 * frame.nbytes)
    with ThreadPoolExecutor(1) as pool:
        dealt = pool.submit(lambda: [dealer.send(f"{index}", {1: [frame]}) for index in range(count)])
        lead = 0
        for index in range(count):
            right.receive(f"{index}", [Part(torch.int64, frame.numel())])
            lead = max(lead, left.traffic.sent_frames - index - 1)
        dealt.result(timeout=20)
    assert 1 <= lead <= 5, "the dealer waits for nobody, but for somebody to take what it has ready"
