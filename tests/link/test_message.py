"""Messages about the session: bounded, and nothing but FrameError for what is none."""

import contextlib
import socket
import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcpipe.errors import FrameError
from mpcpipe.link.message import Reader, pack, read, unpack

MESSAGES = [{"kind": "beat"}, {"kind": "abort", "message": "größer als erlaubt"}, {}]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 20)))
def test_a_stream_in_any_pieces_gives_the_messages(sizes: list[int]) -> None:
    data, reader, found = b"".join(pack(message) for message in MESSAGES), Reader(), []
    for size in [*sizes, len(data)]:
        found += reader.feed(data[:size])
        data = data[size:]
    assert found == MESSAGES


@pytest.mark.parametrize("body", [b"", b"[1]", b"nonsense", b"\xff\xfe", b"[" * 60_000, b'{"a":'])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(FrameError, match="not a message"):
        unpack(body)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_messages_or_a_frame_error(data: bytes) -> None:
    with contextlib.suppress(FrameError):
        assert all(isinstance(message, dict) for message in Reader().feed(data))


def test_too_long_is_refused_on_both_sides() -> None:
    with pytest.raises(ValueError, match="at most"):
        pack({"x": "a" * (64 << 10)})
    with pytest.raises(FrameError, match="4294967295 bytes"):
        Reader().feed(struct.pack(">I", 0xFFFFFFFF))


def test_read_takes_one_message_and_not_a_byte_more() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(b"".join(pack(message) for message in MESSAGES))
        until = time.monotonic() + 10
        assert [read(right, 1000, until) for _ in MESSAGES] == MESSAGES
        with pytest.raises(TimeoutError):
            read(right, 1000, time.monotonic() + 0.05)
        left.sendall(pack(MESSAGES[1])[:-1])
        left.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionError):
            read(right, 1000, until)
