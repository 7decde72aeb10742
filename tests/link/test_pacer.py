"""A line's rate, kept by who sends: large frames take turns, small ones pass, and each link keeps its order."""

import threading
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from link_parties import socket_pair

from mpcpipe.link.base import Part
from mpcpipe.link.frame import Route
from mpcpipe.link.pacer import Pacer
from mpcpipe.link.tcp import TcpLink, _divided

SESSION = b"session!"
SMALL, LARGE = torch.arange(4), torch.arange(1 << 15)


def pair(pacer: Pacer | None) -> tuple[TcpLink, TcpLink]:
    """Two ends, of which the first is paced."""
    left, right = socket_pair()
    routes = Route(SESSION, 0), Route(SESSION, 1)
    return TcpLink(1, "bob", left, *routes, 20, pacer=pacer), TcpLink(0, "alice", right, *routes[::-1], 20)


def test_turns_on_the_line() -> None:
    now = 0.0
    pacer = Pacer(1e6, clock=lambda: now)
    assert [pacer.book(500_000) for _ in range(3)] == [0.0, 0.5, 1.0]
    now = 1.25
    assert pacer.book(500_000) == pytest.approx(0.25)
    now = 60.0  # what was not used is lost, but for a chunk
    assert pacer.chunk_bytes == 32 << 10
    assert [pacer.book(500_000) for _ in range(2)] == pytest.approx([0.0, 0.5 - pacer.chunk_bytes / 1e6])


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_what_is_no_rate(rate: float) -> None:
    with pytest.raises(ValueError, match="a line's rate is positive"):
        Pacer(rate)


@pytest.mark.parametrize(("mbit", "chunk"), [(1, 32 << 10), (100, 100_000), (10_000, 1 << 20)])
def test_chunks_fit_the_rate(mbit: int, chunk: int) -> None:
    assert Pacer(mbit * 1e6 / 8).chunk_bytes == chunk


def test_holding_waits_for_the_turn() -> None:
    slept: list[float] = []
    pacer = Pacer(1e6, clock=lambda: 0.0, sleep=slept.append)
    for _ in range(3):
        pacer.hold(250_000)
    assert slept == [0.25, 0.5]


def test_small_frames_pass_large_ones_of_other_links() -> None:
    """The line is busy for good until `go`; all the same a small frame gets through, and the large one later."""
    go = threading.Event()
    pacer = Pacer(1e6, clock=lambda: 0.0, sleep=lambda seconds: go.wait(20))
    (bulk, bulk_end), (other, other_end) = pair(pacer), pair(pacer)
    try:
        bulk.send("large", [LARGE])
        bulk.send("after it", [SMALL])
        other.send("small", [SMALL])
        assert torch.equal(other_end.receive("small", [Part(torch.int64, 4)])[0][0], SMALL)
        assert bulk_end.traffic.received_payload_bytes == 0
        go.set()
        assert torch.equal(bulk_end.receive("large", [Part(torch.int64, len(LARGE))])[0][0], LARGE)
        assert torch.equal(bulk_end.receive("after it", [Part(torch.int64, 4)])[0][0], SMALL)
    finally:
        go.set()
        for end in (bulk, bulk_end, other, other_end):
            end.close()


def test_links_take_turns_by_chunks() -> None:
    """Each chunk is booked by itself, so two links that send at once share the line."""
    booked: list[int] = []

    class Noting(Pacer):
        def book(self, nbytes: int) -> float:
            booked.append(nbytes)
            return super().book(nbytes)

    pacer = Noting(1e12)
    (left, left_end), (right, right_end) = pair(pacer), pair(pacer)
    many = torch.arange(1 << 18)
    for end in (left, right):
        end.send("large", [many, many])
    for end in (left_end, right_end):
        first, second = end.receive("large", [Part(torch.int64, len(many))] * 2)[0]
        assert torch.equal(first, many) and torch.equal(second, many)
    for end in (left, right, left_end, right_end):
        end.close()
    header = 50 + 2 * 9
    assert sum(booked) == 2 * (header + 2 * many.nbytes)
    assert max(booked) == pacer.chunk_bytes == 1 << 20


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=6), st.integers(1, 60))
def test_dividing(pieces: list[bytes], count: int) -> None:
    views = [memoryview(piece) for piece in pieces]
    first, rest = _divided(views, count)
    whole = b"".join(pieces)
    assert (b"".join(first), b"".join(rest)) == (whole[:count], whole[count:])
    assert all(len(view) for view in [*first, *rest])


def test_closing_sends_what_is_held_back() -> None:
    left, right = pair(Pacer(50e6))
    left.send("large", [LARGE])
    closing: Callable[[], None] = left.close
    thread = threading.Thread(target=closing)
    thread.start()
    assert torch.equal(right.receive("large", [Part(torch.int64, len(LARGE))])[0][0], LARGE)
    thread.join(20)
    assert not thread.is_alive()
    right.close()
