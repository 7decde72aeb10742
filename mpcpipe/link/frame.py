"""The bytes of a frame: a fixed header, one descriptor a part, then the parts' memory as it lies.

    ┌──────── 50 bytes ────────┬── 9 bytes a part ──┬──────────────┐
    │ magic version kind ...   │ dtype code, count  │ payload      │
    └──────────────────────────┴────────────────────┴──────────────┘

The receiver knows from its own plan what comes next, so it also knows how long the header is; it compares every field
with what it expects before it allocates or reads the payload. Whatever bytes arrive, only FrameError comes out. Numbers
are little-endian, and so are the elements of the parts.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mpcpipe.errors import FrameError
from mpcpipe.link.base import Part

MAGIC = b"MPCP"
VERSION = 1
DATA = 1

# magic, version, kind, sender, worker, number of parts, session, label digest, sequence, clock, payload bytes
_FIXED = struct.Struct("<4sBBHHI8s8sQIQ")
_DESCRIPTOR = struct.Struct("<BQ")
FIXED_BYTES = _FIXED.size
_CLOCK = slice(38, 42)
SESSION_BYTES = 8

_CODES: dict[torch.dtype, int] = {
    torch.int64: 1,
    torch.int32: 2,
    torch.int16: 3,
    torch.int8: 4,
    torch.uint8: 5,
    torch.bool: 6,
    torch.float64: 7,
    torch.float32: 8,
    torch.float16: 9,
    torch.bfloat16: 10,
}
_WORDS = (torch.int64, torch.int32)
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


@dataclass(frozen=True)
class Route:
    """What every frame of one direction of a link has in common: the session, who sends, and for which worker."""

    session: bytes
    sender: int
    worker: int = 0

    def __post_init__(self) -> None:
        if len(self.session) != SESSION_BYTES:
            raise ValueError(f"a frame's session has {SESSION_BYTES} bytes, not {len(self.session)}")


@dataclass(frozen=True)
class Fixed:
    """The fixed part of a header, as it was received."""

    kind: int
    sender: int
    worker: int
    parts: int
    session: bytes
    label_digest: bytes
    sequence: int
    clock: int
    payload_bytes: int


def label_digest(label: str) -> bytes:
    """The 8 bytes by which a header names `label`."""
    return hashlib.blake2b(label.encode(), digest_size=8).digest()


def header_bytes(parts: int) -> int:
    """Bytes of a header with `parts` descriptors."""
    return FIXED_BYTES + _DESCRIPTOR.size * parts


def payload_bytes(parts: Sequence[Part]) -> int:
    """Payload bytes of a frame with these parts."""
    return sum([part.nbytes for part in parts])


def encode(route: Route, label: str, parts: Sequence[Part], sequence: int, clock: int) -> bytes:
    """The header of the frame `label`: everything before the payload."""
    return encode_for(route, label, [(part.dtype, part.numel) for part in parts], sequence, clock)


def encode_for(route: Route, label: str, kinds: Sequence[tuple[torch.dtype, int]], sequence: int, clock: int) -> bytes:
    """`encode` for parts given as (dtype, number of elements)."""
    total = sum([dtype.itemsize * numel for dtype, numel in kinds])
    count, digest = len(kinds), label_digest(label)
    fixed = _FIXED.pack(
        MAGIC, VERSION, DATA, route.sender, route.worker, count, route.session, digest, sequence, clock, total
    )
    return fixed + b"".join([_DESCRIPTOR.pack(_CODES[dtype], numel) for dtype, numel in kinds])


def clock_if_same(data: memoryview, wanted: memoryview) -> int | None:
    """The clock in the header `data` if all else in it is as in `wanted`, or None: the quick way to check it."""
    if data[: _CLOCK.start] == wanted[: _CLOCK.start] and data[_CLOCK.stop :] == wanted[_CLOCK.stop :]:
        return int.from_bytes(data[_CLOCK], "little")
    return None


def decode_fixed(data: bytes | bytearray | memoryview) -> Fixed:
    """Take apart the first `FIXED_BYTES` of a header; FrameError unless they are a header of this version."""
    if len(data) < FIXED_BYTES:
        raise FrameError(f"a frame ended after {len(data)} of the {FIXED_BYTES} bytes of its header")
    magic, version, *fields = _FIXED.unpack_from(data)
    if magic != MAGIC:
        raise FrameError("what arrived is not a frame of mpcpipe: another program may be talking to this port")
    if version != VERSION:
        raise FrameError(
            f"the peer sends frames of version {version}, this party reads version {VERSION}: install the same mpcpipe"
        )
    kind, sender, worker, parts, session, digest, sequence, clock, total = fields
    if kind != DATA:
        raise FrameError(f"a frame of the unknown kind {kind} arrived on a data channel")
    return Fixed(kind, sender, worker, parts, session, digest, sequence, clock, total)


def check_fixed(
    data: bytes | bytearray | memoryview, route: Route, label: str, expected: Sequence[Part], sequence: int
) -> int:
    """Compare the fixed part of a header with what must come next; returns the sender's clock."""
    fixed = decode_fixed(data)
    where = f"the frame {label!r} from party {route.sender}"
    if fixed.session != route.session:
        raise FrameError(f"{where}: it belongs to another session; stop what still runs from an earlier job")
    if fixed.sender != route.sender or fixed.worker != route.worker:
        raise FrameError(
            f"{where}: worker {route.worker} expected, but it comes from worker {fixed.worker} of party {fixed.sender}"
        )
    if fixed.sequence != sequence:
        what = "repeated" if fixed.sequence < sequence else "early, or one is missing"
        raise FrameError(f"{where}: number {sequence} expected, number {fixed.sequence} came ({what})")
    if fixed.label_digest != label_digest(label):
        raise FrameError(f"{where}: a frame with another label came instead; the parties' programs went different ways")
    if fixed.parts != len(expected):
        raise FrameError(f"{where}: {len(expected)} parts expected, it has {fixed.parts}")
    total = payload_bytes(expected)
    if fixed.payload_bytes != total:
        raise FrameError(f"{where}: {total} payload bytes expected, it announces {fixed.payload_bytes}")
    return fixed.clock


def check_parts(data: bytes | bytearray | memoryview, route: Route, label: str, expected: Sequence[Part]) -> None:
    """Compare the descriptors (`data` is the header without its fixed part) with the expected parts."""
    if len(data) < _DESCRIPTOR.size * len(expected):
        raise FrameError(f"the frame {label!r} from party {route.sender} ended in the middle of its header")
    for index, part in enumerate(expected):
        code, numel = _DESCRIPTOR.unpack_from(data, _DESCRIPTOR.size * index)
        if code != _CODES[part.dtype] or numel != part.numel:
            raise FrameError(
                f"the frame {label!r} from party {route.sender}, part {index}: "
                f"{describe(part.dtype, part.numel)} expected, {describe(_DTYPES.get(code), numel)} came"
            )


def check(
    data: bytes | bytearray | memoryview, route: Route, label: str, expected: Sequence[Part], sequence: int
) -> int:
    """Compare a whole header with what must come next; returns the sender's clock."""
    view = memoryview(data)
    clock = check_fixed(view, route, label, expected, sequence)
    check_parts(view[FIXED_BYTES:], route, label, expected)
    return clock


def describe(dtype: torch.dtype | None, numel: int) -> str:
    """A part in words, for messages."""
    return f"{numel} elements of {'an unknown dtype' if dtype is None else str(dtype).removeprefix('torch.')}"


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, in place; keeps the tensor alive."""
    if tensor.dtype in _WORDS:  # by far the most frequent, and quicker this way
        return tensor.numpy().data.cast("B")
    return tensor.view(torch.uint8).numpy().data
