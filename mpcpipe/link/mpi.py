"""MPI: where a process stands among those that `mpirun` started, small exchanges, and links over it.

    worker ── Isend ──>                  every call to MPI is short and under one lock, so one level of thread support
    worker <── Improbe, Irecv, Test      (serialized) is enough, and workers that are threads may share a process

MPI moves large messages only while somebody calls it. A worker that waits does; while a worker computes and something
is still to be sent, a thread of this module does.

Needs mpi4py (the extra `mpi`). Nothing is pickled: buffers only. Device memory goes to MPI as it is where MPI says that
it can take it (`cuda_aware`), and through the host's memory otherwise.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from mpcpipe.errors import FrameError, LinkError, UsageError
from mpcpipe.link.fabric import Fabric, FabricLink
from mpcpipe.link.frame import FIXED_BYTES, Route, memory_of
from mpcpipe.link.framed import Cause

# What a first message may have at most: a header with thousands of parts.
_FIRST_BYTES = 1 << 20
_QUICK_LOOKS = 50
_SHORTEST_NAP_S, _LONGEST_NAP_S = 20e-6, 500e-6

T = TypeVar("T")


def require() -> Any:
    """The module mpi4py.MPI, not initialized yet. UsageError, with what to do, if it cannot be had."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except ModuleNotFoundError as error:
        raise UsageError(
            "this process was started by mpirun, and mpi4py is not installed: pip install 'mpcpipe[mpi]' in every "
            'place where a party runs; or give link.kind = "tcp" and parties.hosts, which need no MPI'
        ) from error
    except (ImportError, RuntimeError) as error:
        raise UsageError(
            f"mpi4py cannot load an MPI library: {str(error).strip().splitlines()[0]}. Install one "
            "(Debian: apt-get install openmpi-bin libopenmpi-dev), the same as mpirun's"
        ) from error
    return MPI


def cuda_aware(library: str = "libmpi.so.40") -> bool:
    """Whether the MPI library says that it takes device memory (Open MPI's own question, also asked by others)."""
    with contextlib.suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(library).MPIX_Query_cuda_support())
    return False


class Mpi:
    """MPI in this process, from its start to its end. Make one at most."""

    def __init__(self) -> None:
        self._mpi = require()
        level = self._mpi.Init_thread(self._mpi.THREAD_SERIALIZED)
        if level < self._mpi.THREAD_SERIALIZED:
            raise LinkError("this MPI library cannot be used by programs with threads: install another build of it")
        self._world = self._mpi.COMM_WORLD
        self._world.Set_errhandler(self._mpi.ERRORS_RETURN)
        self.rank: int = self._world.Get_rank()
        self.world: int = self._world.Get_size()

    def exchange(self, text: str) -> list[str]:
        """What every rank says here, by rank. All must come."""
        own = np.frombuffer(text.encode(), dtype=np.uint8)
        sizes = np.zeros(self.world, dtype=np.int64)
        self._world.Allgather(np.array([own.size], dtype=np.int64), sizes)
        width = int(sizes.max())
        padded = np.zeros(width, dtype=np.uint8)
        padded[: own.size] = own
        everything = np.zeros((self.world, width), dtype=np.uint8)
        self._world.Allgather(padded, everything)
        return [row[:size].tobytes().decode() for row, size in zip(everything, sizes, strict=True)]

    def fabric(self, ranks: Sequence[int]) -> MpiFabric:
        """Links to the processes of these ranks, by party. All ranks call it."""
        return MpiFabric(self._mpi, self._world.Dup(), ranks)

    def close(self) -> None:
        """The end of MPI in this process; all ranks come to it."""
        self._mpi.Finalize()


@dataclass(frozen=True, eq=False)
class _Sending:
    """A message under way, which MPI reads until the request is done. to: (rank, tag)."""

    request: Any
    message: torch.Tensor
    to: tuple[int, int]


class MpiFabric(Fabric):
    """A communicator of its own; the tag is the worker. `ranks`: by party, where the same worker is."""

    def __init__(self, mpi: Any, comm: Any, ranks: Sequence[int]) -> None:
        self._mpi, self.comm, self.ranks = mpi, comm, list(ranks)
        comm.Set_errhandler(mpi.ERRORS_RETURN)
        self.cuda_aware = cuda_aware()
        self._lock = threading.Lock()
        self._pending: list[_Sending] = []
        self._changed = threading.Condition()
        self._closed = False
        self._pusher: threading.Thread | None = None

    @property
    def description(self) -> str:
        """Such as `MPI (Open MPI v4.1.4), not encrypted`."""
        return f"MPI ({self._mpi.Get_library_version().partition(',')[0].strip()[:40]}), not encrypted"

    def link(self, peer: int, name: str, outgoing: Route, incoming: Route, deadline_s: float, cause: Cause) -> MpiLink:
        """See `Fabric.link`."""
        return MpiLink(self, peer, name, outgoing, incoming, deadline_s, cause)

    def call(self, function: Callable[[], T]) -> T:
        """One short call to MPI, alone. OSError if MPI says that it failed."""
        with self._lock:
            try:
                return function()
            except self._mpi.Exception as error:
                raise ConnectionError(f"MPI: {error}") from error

    def post(self, messages: Sequence[torch.Tensor], rank: int, tag: int) -> None:
        """Start to send messages, in order."""

        def start() -> list[_Sending]:
            begun = ((message, self.comm.Isend(self._buffer(message), rank, tag)) for message in messages)
            return [_Sending(request, message, (rank, tag)) for message, request in begun]

        started = self.call(start)
        with self._changed:
            self._pending.extend(started)
            if self._pusher is None:
                self._pusher = threading.Thread(target=self._push, name="MPI progress", daemon=True)
                self._pusher.start()
            self._changed.notify_all()

    def _buffer(self, message: torch.Tensor) -> Any:
        return [memory_of(message) if message.is_cpu else message, self._mpi.BYTE]

    def _push(self) -> None:
        """Call MPI while something is still to be sent, and let go of what has been."""
        while True:
            with self._changed:
                while not self._pending:
                    if self._closed:
                        return
                    self._changed.wait()
                pending = list(self._pending)
            requests = [sending.request for sending in pending]
            try:
                done = self.call(partial(self._mpi.Request.Testsome, requests)) or []
            except OSError:
                done = range(len(pending))  # whose loss it is, the control connection says
            if done:
                sent = {id(pending[index]) for index in done}
                with self._changed:
                    self._pending = [sending for sending in self._pending if id(sending) not in sent]
                    self._changed.notify_all()
            else:
                time.sleep(_SHORTEST_NAP_S)

    def drain(self, to: tuple[int, int], most_bytes: int, until: float = float("inf")) -> None:
        """Wait until no more than so many bytes are still to be sent to (rank, tag), or until the clock says so."""

        def left() -> int:
            return sum(sending.message.nbytes for sending in self._pending if sending.to == to)

        with self._changed:
            while left() > most_bytes and time.monotonic() < until:
                self._changed.wait(0.2)

    def close(self) -> None:
        """All has been sent: give the communicator back."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._pusher is not None:
            self._pusher.join()
        with self._lock:
            self.comm.Free()


class MpiLink(FabricLink):
    """One worker's messages with the same worker of one peer."""

    def __init__(
        self,
        fabric: MpiFabric,
        peer: int,
        name: str,
        outgoing: Route,
        incoming: Route,
        deadline_s: float,
        cause: Cause,
    ) -> None:
        super().__init__(peer, name, outgoing, incoming, deadline_s, cause)
        self._fabric, self._mpi = fabric, fabric._mpi
        self._rank, self._tag = fabric.ranks[peer], outgoing.worker

    def _post(self, messages: Sequence[torch.Tensor]) -> None:
        ready = [message if message.is_cpu or self._fabric.cuda_aware else message.cpu() for message in messages]
        self._fabric.post(ready, self._rank, self._tag)

    def _next(self, until: float) -> tuple[Any, int]:
        """The next message, not received yet, and its length."""
        status = self._mpi.Status()
        found = self._poll(lambda: self._fabric.comm.Improbe(self._rank, self._tag, status), until)
        return found, int(status.Get_count(self._mpi.BYTE))

    def _into(self, message: Any, buffer: Any, until: float) -> None:
        request = self._fabric.call(lambda: message.Irecv([buffer, self._mpi.BYTE]))
        # On its way already: the more often MPI is called, the faster it comes.
        self._poll(request.Test, until, naps=False)

    def _first(self, nbytes: int, until: float) -> memoryview:
        message, count = self._next(until)
        if not FIXED_BYTES <= count <= max(nbytes, _FIRST_BYTES):
            raise FrameError(f"{self.name} sent {count} bytes where {nbytes} are the beginning of a frame")
        data = memoryview(bytearray(count))
        self._into(message, data, until)
        return data

    def _fill(self, part: torch.Tensor, until: float) -> None:
        message, count = self._next(until)
        if count != part.nbytes:
            raise FrameError(f"{self.name} sent {count} bytes where {part.nbytes} are a part's")
        direct = part.is_cpu or self._fabric.cuda_aware
        target = part if direct else torch.empty(part.numel(), dtype=part.dtype)
        self._into(message, memory_of(target) if target.is_cpu else target, until)
        if not direct:
            part.copy_(target)

    def _poll(self, look: Callable[[], T], until: float, naps: bool = True) -> T:
        """Ask MPI until it has something; ever more rarely, since others need the cores to get it here."""
        looks, nap_s = 0, _SHORTEST_NAP_S
        while True:
            if found := self._fabric.call(look):
                return found
            if self._broken is not None:
                raise self._cause_or(self._broken)
            looks += 1
            if looks >= _QUICK_LOOKS and time.monotonic() > until:
                raise TimeoutError("nothing came")
            if looks < _QUICK_LOOKS or not naps:
                time.sleep(0)
                continue
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, _LONGEST_NAP_S)

    def drain(self, most_bytes: int) -> None:
        """Wait until no more than so many bytes are still to be sent."""
        self._fabric.drain((self._rank, self._tag), most_bytes)

    def close(self) -> None:
        """Wait until everything has been sent (within the deadline)."""
        if self._closed:
            return
        self._closed = True
        if self._broken is None:
            self._fabric.drain((self._rank, self._tag), 0, time.monotonic() + self.deadline_s)
