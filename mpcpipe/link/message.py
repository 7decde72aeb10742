"""Small messages between parties about the session itself (never shares): length-prefixed JSON objects, bounded.

┌ 4 bytes, big-endian ┬──────────────────────┐
│ length of the JSON  │ {"kind": ..., ...}   │
└─────────────────────┴──────────────────────┘
"""

from __future__ import annotations

import json
import struct
import time
from typing import Any

from mpcpipe.errors import FrameError
from mpcpipe.link.tls import Connection

Message = dict[str, Any]

CONTROL_BYTES = 64 << 10
HELLO_BYTES = 4 << 20
_LENGTH = struct.Struct(">I")


def pack(message: Message, limit: int = CONTROL_BYTES) -> bytes:
    """The bytes of `message`; ValueError if they are more than `limit`."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > limit:
        raise ValueError(f"a message of {len(body)} bytes; at most {limit} are allowed")
    return _LENGTH.pack(len(body)) + body


def unpack(body: bytes | bytearray) -> Message:
    """The message whose JSON is `body`. FrameError if it is no JSON object."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise FrameError("what arrived is not a message of mpcpipe: another program may be talking to this port")
    return message


def length_of(prefix: bytes | bytearray, limit: int) -> int:
    """The announced length. FrameError if it is more than `limit`."""
    length: int = _LENGTH.unpack(prefix)[0]
    if length > limit:
        raise FrameError(
            f"a message of {length} bytes was announced, at most {limit} are allowed: not a party of this job"
        )
    return length


def words(said: object, most: int) -> str:
    """At most so many characters of what another party says, for a sentence: no byte of it steers a terminal or a log,
    and all of it can be printed.
    """
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in str(said)[:most])


class Reader:
    """Takes messages out of a stream that comes in pieces."""

    def __init__(self, limit: int = CONTROL_BYTES) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + length_of(self._buffer[: _LENGTH.size], self._limit)
            if len(self._buffer) < end:
                break
            messages.append(unpack(self._buffer[_LENGTH.size : end]))
            del self._buffer[:end]
        return messages


def read(sock: Connection, limit: int, until: float) -> Message:
    """Wait for one message until `time.monotonic()` is `until`, and take not a byte more.

    Errors: FrameError if it is no message, TimeoutError, and ConnectionError when the connection ends in the middle.
    """
    return unpack(_exactly(sock, length_of(_exactly(sock, _LENGTH.size, until), limit), until))


def _exactly(sock: Connection, count: int, until: float) -> bytearray:
    data = bytearray()
    while len(data) < count:
        remaining = until - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("the deadline is over")
        sock.settimeout(remaining)
        # In pieces: a length that a stranger announces is not memory that this party allocates.
        piece = sock.recv(min(count - len(data), 65536))
        if not piece:
            raise ConnectionError("the connection ended")
        data += piece
    return data
