"""The header codec: what it takes, what it refuses, and that nothing but FrameError comes out."""

import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcpipe.errors import FrameError
from mpcpipe.link.base import Part
from mpcpipe.link.frame import FIXED_BYTES, Route, check, clock_if_same, decode_fixed, encode, header_bytes

ROUTE = Route(b"session!", sender=1, worker=3)
PARTS = [Part(torch.int64, 5), Part(torch.int32, 0), Part(torch.bool, 7)]
HEADER = encode(ROUTE, "step 0/relu", PARTS, sequence=4, clock=9)


def taken(
    data: bytes, route: Route = ROUTE, label: str = "step 0/relu", parts: list[Part] = PARTS, sequence: int = 4
) -> int:
    return check(data, route, label, parts, sequence)


def test_what_was_expected_is_taken_and_gives_the_clock() -> None:
    assert len(HEADER) == header_bytes(3) == 50 + 3 * 9
    assert taken(HEADER) == 9
    assert clock_if_same(memoryview(HEADER), memoryview(encode(ROUTE, "step 0/relu", PARTS, 4, 1))) == 9
    assert clock_if_same(memoryview(HEADER), memoryview(encode(ROUTE, "step 0/relu", PARTS, 5, 9))) is None


def test_the_layout_is_fixed() -> None:
    # Written out by hand: another version of the code must read the same bytes.
    assert HEADER[:14] == b"MPCP" + bytes([1, 1]) + struct.pack("<HHI", 1, 3, 3)
    assert HEADER[14:22] == b"session!"
    assert HEADER[30:50] == struct.pack("<QIQ", 4, 9, 5 * 8 + 7)
    assert HEADER[50:] == struct.pack("<BQBQBQ", 1, 5, 2, 0, 6, 7)


@pytest.mark.parametrize("length", range(len(HEADER)))
def test_truncated_at_every_byte(length: int) -> None:
    with pytest.raises(FrameError, match="ended"):
        taken(HEADER[:length])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"route": Route(b"another!", 1, 3)}, "another session"),
        ({"route": Route(b"session!", 0, 3)}, "of party 1"),
        ({"route": Route(b"session!", 1, 2)}, "worker 3"),
        ({"label": "step 1/relu"}, "another label"),
        ({"sequence": 5}, "repeated"),
        ({"sequence": 3}, "early, or one is missing"),
        ({"parts": PARTS[:2]}, "2 parts expected, it has 3"),
        ({"parts": [Part(torch.int64, 6), *PARTS[1:]]}, "55 payload bytes expected, it announces 47"),
        ({"parts": [Part(torch.float64, 5), *PARTS[1:]]}, "5 elements of float64 expected, 5 elements of int64 came"),
        ({"parts": [Part(torch.int64, 5), Part(torch.int32, 1), Part(torch.bool, 3)]}, "part 1: 1 elements of int32"),
    ],
)
def test_anything_else_than_expected_is_refused(change: dict, message: str) -> None:
    with pytest.raises(FrameError, match=message):
        taken(HEADER, **change)


@pytest.mark.parametrize("length", [48, 2**31, 2**32 + 47, 2**40, 2**63, 2**64 - 1])
def test_lengths_that_lie(length: int) -> None:
    lying = HEADER[:42] + struct.pack("<Q", length) + HEADER[50:]
    with pytest.raises(FrameError, match=f"announces {length}"):
        taken(lying)
    lying = HEADER[:51] + struct.pack("<Q", length) + HEADER[59:]
    with pytest.raises(FrameError, match=f"{length} elements of int64 came"):
        taken(lying)


@pytest.mark.parametrize(
    ("position", "message"), [(0, "not a frame"), (4, "version 255"), (5, "unknown kind 255"), (50, "unknown dtype")]
)
def test_a_wrong_byte(position: int, message: str) -> None:
    with pytest.raises(FrameError, match=message):
        taken(HEADER[:position] + b"\xff" + HEADER[position + 1 :])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=2 * len(HEADER)))
def test_any_bytes_are_a_frame_error(data: bytes) -> None:
    with pytest.raises(FrameError):
        taken(data)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(HEADER) - 1), st.integers(1, 255))
def test_any_changed_byte_is_found_but_the_clock(position: int, flip: int) -> None:
    changed = bytearray(HEADER)
    changed[position] ^= flip
    if 38 <= position < 42:
        assert taken(bytes(changed)) == 9 ^ (flip << 8 * (position - 38))
    else:
        with pytest.raises(FrameError):
            taken(bytes(changed))


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=FIXED_BYTES - 6, max_size=FIXED_BYTES - 6))
def test_a_valid_start_with_any_rest_parses(rest: bytes) -> None:
    fixed = decode_fixed(b"MPCP\x01\x01" + rest)
    assert fixed.sequence == int.from_bytes(rest[24:32], "little")
    assert fixed.payload_bytes == int.from_bytes(rest[36:44], "little")


def test_a_route_needs_a_whole_session() -> None:
    with pytest.raises(ValueError, match="8 bytes"):
        Route(b"short", 0)
