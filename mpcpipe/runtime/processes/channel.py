"""A channel between two worker processes of one party: messages of `packing`, in order, with their tensors.

    ┌ counts ┬ JSON ┬ for each tensor: where it is ┬ blocks given back ┬ tensors ...      a tensor's bytes follow, or,
    └────────┴──────┴──────────────────────────────┴───────────────────┘                  where both processes are on
                                                                                          one machine and it is large,
                                                                                          it is in shared memory

Memory is handed over by descriptor (memfd), without a name that could be left behind: written once by the giver, read
in place by the taker. A block is mapped once at both ends; when the taker's tensor is gone, the giver hears of it and
uses the block again. Between machines everything goes over the connection, which is TLS if the job's links are.

Security: both ends are the same party. On one machine the connection is one that only this user's processes have.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mpcpipe.errors import FrameError, MpcpipeError
from mpcpipe.link.frame import memory_of
from mpcpipe.link.tls import Connection
from mpcpipe.runtime.processes import packing

SHARED_BYTES = 64 << 10
"""Smaller tensors travel with the message: cheaper than mapping memory."""

# Bytes of JSON, tensors, blocks given back.
_HEAD = struct.Struct("<III")
# Where a tensor is: the block's number and whether its descriptor comes along, or that it follows.
_PLACE = struct.Struct("<IB")
_BACK = struct.Struct("<I")
_FOLLOWS = 0xFFFFFFFF
_MOST_DESCRIPTORS = 200
# A free block serves what takes at least this part of it.
_WASTE = 4
_READ_BYTES = 256 << 10


class Channel:
    """One end. `on_message` gets each message, `on_end` is called once when the other end is gone; both in the thread
    that reads, which `start` starts."""

    def __init__(self, sock: Connection) -> None:
        self._sock = sock
        self._shares = isinstance(sock, socket.socket) and sock.family == socket.AF_UNIX
        self._lock = threading.Lock()
        self._arrived = bytearray()
        self._descriptors: deque[int] = deque()
        self._own, self._theirs = _Blocks(), dict[int, mmap.mmap]()
        self._given_back: deque[int] = deque()
        self._closing = False
        self._thread: threading.Thread | None = None
        sock.setblocking(True)

    def start(self, name: str, on_message: Callable[[Any], None], on_end: Callable[[], None]) -> None:
        """Begin to read."""

        def read() -> None:
            with contextlib.suppress(OSError, MpcpipeError):
                while True:
                    on_message(self._receive())
            if not self._closing:
                on_end()

        self._thread = threading.Thread(target=read, name=name, daemon=True)
        self._thread.start()

    def send(self, value: Any) -> None:
        """Send one message. The other end reads at once, so this waits for the wire only. OSError if it is gone."""
        data, tensors = packing.pack(value)
        with self._lock:
            places: list[bytes] = []
            descriptors: list[int] = []
            following: list[torch.Tensor] = []
            for tensor in tensors:
                if self._shares and tensor.nbytes >= SHARED_BYTES and len(descriptors) < _MOST_DESCRIPTORS:
                    block, new = self._own.put(tensor)
                    places.append(_PLACE.pack(block.number, new))
                    descriptors += [block.descriptor] if new else []
                else:
                    places.append(_PLACE.pack(_FOLLOWS, 0))
                    following.append(tensor)
            back = [_BACK.pack(self._given_back.popleft()) for _ in range(len(self._given_back))]
            head = _HEAD.pack(len(data), len(places), len(back)) + data + b"".join(places) + b"".join(back)
            if descriptors:
                assert isinstance(self._sock, socket.socket)
                head = head[socket.send_fds(self._sock, [head], descriptors) :]
            self._sock.sendall(head)
            for tensor in following:
                if tensor.numel():
                    self._sock.sendall(memory_of(tensor.reshape(-1)))

    def _receive(self) -> Any:
        length, count, backs = _HEAD.unpack(self._exactly(_HEAD.size))
        data = bytes(self._exactly(length))
        places = list(_PLACE.iter_unpack(self._exactly(count * _PLACE.size)))
        for (number,) in _BACK.iter_unpack(self._exactly(backs * _BACK.size)):
            self._own.give_back(number)
        tensors = []
        for nbytes, (number, new) in zip(packing.sizes(data), places, strict=True):
            if number == _FOLLOWS:
                came = self._exactly(nbytes)
                tensors.append(torch.frombuffer(came, dtype=torch.uint8) if nbytes else torch.empty(0).byte())
                continue
            if new:
                self._theirs[number] = _map(self._descriptors.popleft())
            tensors.append(self._in_place(number, nbytes))
        return packing.unpack(data, tensors)

    def _in_place(self, number: int, nbytes: int) -> torch.Tensor:
        """A tensor of bytes in the block, which is given back when nobody has the tensor any more."""
        block = self._theirs[number]
        if len(block) < nbytes:
            raise FrameError("another process of this party handed over less memory than it says")
        view = memoryview(block)[:nbytes]
        weakref.finalize(view, self._given_back.append, number).atexit = False
        return torch.frombuffer(view, dtype=torch.uint8)

    def _exactly(self, count: int) -> bytearray:
        """The next `count` bytes. Descriptors come with the bytes of their message, never later."""
        while len(self._arrived) < count:
            if self._shares:
                assert isinstance(self._sock, socket.socket)
                piece, descriptors, _, _ = socket.recv_fds(self._sock, _READ_BYTES, _MOST_DESCRIPTORS + 1)
                self._descriptors.extend(descriptors)
            else:
                piece = self._sock.recv(_READ_BYTES)
            if not piece:
                raise ConnectionError("the other process has ended")
            self._arrived += piece
        taken = self._arrived[:count]
        del self._arrived[:count]
        return taken

    def close(self) -> None:
        """End it; the other end's loss is no loss any more."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._sock.close()
        self._own.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())


@dataclass(frozen=True)
class _Block:
    """Shared memory, by its number on the channel."""

    number: int
    descriptor: int
    memory: mmap.mmap


class _Blocks:
    """The blocks that one end has written to."""

    def __init__(self) -> None:
        self._all: list[_Block] = []
        self._free: list[_Block] = []
        self._lock = threading.Lock()

    def put(self, tensor: torch.Tensor) -> tuple[_Block, bool]:
        """A block with the tensor's bytes; whether it is a new one."""
        size = tensor.nbytes
        with self._lock:
            fit = [block for block in self._free if size <= len(block.memory) <= _WASTE * size]
            found = min(fit, key=lambda block: len(block.memory), default=None)
            if found is not None:
                self._free.remove(found)
        block = found or self._new(size)
        torch.frombuffer(block.memory, dtype=tensor.dtype, count=tensor.numel()).copy_(tensor.reshape(-1))
        return block, found is None

    def _new(self, size: int) -> _Block:
        descriptor = os.memfd_create("mpcpipe", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, size)
        block = _Block(len(self._all), descriptor, mmap.mmap(descriptor, size))
        self._all.append(block)
        return block

    def give_back(self, number: int) -> None:
        """The other end has let go of it."""
        if number >= len(self._all):
            raise FrameError("another process of this party gave back memory that it never had")
        with self._lock:
            self._free.append(self._all[number])

    def close(self) -> None:
        """Let go of all; the other end keeps what it has mapped."""
        for block in self._all:
            os.close(block.descriptor)


def _map(descriptor: int) -> mmap.mmap:
    try:
        return mmap.mmap(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)
