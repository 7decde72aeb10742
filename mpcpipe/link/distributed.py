"""torch.distributed: small exchanges through its store, and links over a process group of its own.

    worker ── isend ──> a thread waits for the end, so that the worker need not
    worker <── a thread receives what it will be asked for: first messages have one length, and say what follows

Backends are torch's own: gloo carries tensors of the CPU, NCCL those of NVIDIA's devices. A wait of gloo's cannot be
broken off, so it is never the worker that waits there: a worker that is told of a failure goes, and the thread ends
with the process.

`Store` is also how processes meet that Slurm started, and those of torchrun with another kind of link.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from mpcpipe.errors import ConnectError, PeerLost
from mpcpipe.link.base import Part
from mpcpipe.link.fabric import WHOLE_BYTES, Fabric, FabricLink
from mpcpipe.link.frame import Route, memory_of
from mpcpipe.link.framed import Cause

# A first message has this length on the wire; what it holds, its first 8 bytes say. Longer ones go on in a second.
_BLOCK_BYTES = 1 << 10
_LENGTH_BYTES = 8
_END = (1 << 64) - 1
_LOOK_S = 0.5
_REAP_S = 2e-3


class Store:
    """What processes tell each other through a TCP store: `rank` of `world`, at (host, port), which rank 0 opens unless
    a launcher has. ConnectError if it cannot be reached in time.

    Security: whoever reaches the port reads and writes it. Nothing secret is said here, only where each listens.
    """

    def __init__(self, host: str, port: int, rank: int, world: int, deadline_s: float, open_here: bool) -> None:
        self.rank, self.world = rank, world
        self._where, self._deadline_s = f"{host}:{port}", deadline_s
        self._opened_here = open_here
        self._round = 0
        try:
            self.store = dist.TCPStore(  # type: ignore[attr-defined]
                host,
                port,
                world_size=world,
                is_master=open_here,
                timeout=timedelta(seconds=deadline_s),
                wait_for_workers=False,
            )
        except (RuntimeError, ValueError) as error:  # torch's network errors are RuntimeErrors
            raise ConnectError(
                f"rank {rank} cannot reach the meeting place of all ranks at {self._where} within {deadline_s:g} s: "
                "is rank 0 started, and is the port free and open between the machines?"
            ) from error

    def exchange(self, text: str) -> list[str]:
        """What every rank says here, by rank. All must come. ConnectError naming the ranks that did not."""
        self._round += 1
        self.store.set(f"mpcpipe/{self._round}/{self.rank}", text)
        until = time.monotonic() + self._deadline_s
        said: list[str] = []
        for rank in range(self.world):
            key = f"mpcpipe/{self._round}/{rank}"
            try:
                self.store.wait([key], timedelta(seconds=max(0.01, until - time.monotonic())))
                said.append(self.store.get(key).decode())
            except RuntimeError as error:
                if time.monotonic() < until:
                    raise ConnectError(
                        f"the meeting place of all ranks at {self._where} is gone: who opened it (rank 0, or the "
                        "launcher) has ended, and its own messages say why"
                    ) from error
                raise ConnectError(
                    f"rank {rank} did not come to {self._where} within {self._deadline_s:g} s: is it started, and did "
                    "it end with a message of its own?"
                ) from error
        return said

    def close(self) -> None:
        """Leave. Who opened the store here waits until all have."""
        with contextlib.suppress(RuntimeError):
            self.store.set(f"mpcpipe/left/{self.rank}", "")
            if self._opened_here:
                left = [f"mpcpipe/left/{rank}" for rank in range(self.world)]
                self.store.wait(left, timedelta(seconds=self._deadline_s))


class TorchFabric(Fabric):
    """A process group over all ranks. `ranks`: by party, where the same worker is. All ranks make one."""

    def __init__(self, store: Store, ranks: Sequence[int], deadline_s: float) -> None:
        self.ranks = list(ranks)
        self.backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        try:
            dist.init_process_group(
                self.backend,
                store=dist.PrefixStore("mpcpipe group", store.store),  # type: ignore[attr-defined]
                rank=store.rank,
                world_size=store.world,
                timeout=timedelta(seconds=deadline_s),
            )
        except RuntimeError as error:
            raise ConnectError(
                f"torch.distributed could not connect all {store.world} ranks over {self.backend} within "
                f"{deadline_s:g} s: are all started? GLOO_SOCKET_IFNAME names the network to use"
            ) from error
        self.group: Any = dist.group.WORLD

    @property
    def description(self) -> str:
        """Such as `torch.distributed (gloo), not encrypted`."""
        return f"torch.distributed ({self.backend}), not encrypted"

    def link(
        self, peer: int, name: str, outgoing: Route, incoming: Route, deadline_s: float, cause: Cause
    ) -> TorchLink:
        """See `Fabric.link`."""
        return TorchLink(self, peer, name, outgoing, incoming, deadline_s, cause)

    def close(self) -> None:
        """All links have ended: end the group."""
        dist.destroy_process_group()


class TorchLink(FabricLink):
    """One worker's messages with the same worker of one peer."""

    def __init__(
        self,
        fabric: TorchFabric,
        peer: int,
        name: str,
        outgoing: Route,
        incoming: Route,
        deadline_s: float,
        cause: Cause,
        device: str = "cpu",
    ) -> None:
        super().__init__(peer, name, outgoing, incoming, deadline_s, cause, device)
        self._group, self._rank, self._tag = fabric.group, fabric.ranks[peer], outgoing.worker
        self._changed = threading.Condition()
        self._sending: deque[tuple[Any, torch.Tensor]] = deque()
        # To the receiver: where to put the next message. From it: that it is there, or what went wrong.
        self._wanted: queue.SimpleQueue[torch.Tensor | None] = queue.SimpleQueue()
        self._came: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._sender = threading.Thread(target=self._send_all, name=f"send to {name}", daemon=True)
        self._receiver = threading.Thread(target=self._receive_all, name=f"receive from {name}", daemon=True)
        self._sender.start()
        self._receiver.start()
        self._block = torch.empty(_BLOCK_BYTES, dtype=torch.uint8)
        self._wanted.put(self._block)

    # Sending

    def _post(self, messages: Sequence[torch.Tensor]) -> None:
        first, *rest = messages
        length = first.numel()
        block = torch.zeros(_BLOCK_BYTES, dtype=torch.uint8)
        memory_of(block)[:_LENGTH_BYTES] = length.to_bytes(_LENGTH_BYTES, "little")
        begin = first[: _BLOCK_BYTES - _LENGTH_BYTES]
        block[_LENGTH_BYTES : _LENGTH_BYTES + begin.numel()] = begin
        self._start([block, *([first] if length > begin.numel() else []), *rest])

    def _start(self, messages: Sequence[torch.Tensor]) -> None:
        with self._changed:
            for message in messages:
                try:
                    self._sending.append((self._group.send([message], self._rank, self._tag), message))
                except RuntimeError as error:
                    raise ConnectionError(_first_line(error)) from error
            self._changed.notify_all()

    def _send_all(self) -> None:
        while True:
            with self._changed:
                while not self._sending:
                    if self._closed:
                        return
                    self._changed.wait()
                under_way = list(self._sending)
            # It only has to let go of what was sent: many at once cost the worker less.
            time.sleep(_REAP_S)
            for work, _ in under_way:
                try:
                    work.wait()
                except RuntimeError as error:
                    self._broken = self._broken or PeerLost(f"{self.name} went away: {_first_line(error)}")
                with self._changed:
                    self._sending.popleft()
                    self._changed.notify_all()

    def drain(self, most_bytes: int) -> None:
        """Wait until no more than so many bytes are still to be sent."""
        with self._changed:
            while sum(message.nbytes for _, message in self._sending) > most_bytes and self._broken is None:
                self._changed.wait(_LOOK_S)

    # Receiving

    def receive(self, label: str, expected: Sequence[Part]) -> tuple[list[torch.Tensor], int]:
        """See `Link.receive`."""
        received = super().receive(label, expected)
        self._wanted.put(self._block)
        return received

    def _receive_all(self) -> None:
        while (target := self._wanted.get()) is not None:
            failed: Exception | None = None
            try:
                self._group.recv([target], self._rank, self._tag).wait()
            except RuntimeError as error:
                failed = ConnectionError(_first_line(error))
            self._came.put(failed)
            ended = target is self._block and int.from_bytes(memory_of(target)[:_LENGTH_BYTES], "little") == _END
            if failed is not None or ended:
                return

    def _wait(self, until: float) -> None:
        """For the message that the receiver was asked for."""
        while True:
            with contextlib.suppress(queue.Empty):
                failed = self._came.get(timeout=max(0.001, min(_LOOK_S, until - time.monotonic())))
                if failed is not None:
                    self._broken = self._broken or PeerLost(f"{self.name} went away: {failed}")
                    raise failed
                if self._broken is not None:
                    raise self._cause_or(self._broken)
                return
            if self._broken is not None:
                raise self._cause_or(self._broken)
            if time.monotonic() > until:
                raise TimeoutError("nothing came")

    def _first(self, nbytes: int, until: float) -> memoryview:
        self._wait(until)
        data = memory_of(self._block)
        length = int.from_bytes(data[:_LENGTH_BYTES], "little")
        held = data[_LENGTH_BYTES:]
        if length == _END:
            raise ConnectionError("it has closed its link")
        if length > max(nbytes, WHOLE_BYTES):
            # Who it claims to be is in the part that is here; the caller says what is wrong with it.
            return held
        if length > len(held):
            whole = torch.empty(length, dtype=torch.uint8)
            self._wanted.put(whole)
            self._wait(until)
            return memory_of(whole)
        return held[:length]

    def _fill(self, part: torch.Tensor, until: float) -> None:
        self._wanted.put(part)
        self._wait(until)

    def interrupt(self) -> None:
        """See `FabricLink.interrupt`."""
        super().interrupt()
        self._came.put(None)

    def close(self) -> None:
        """Tell the peer that nothing follows, and wait until all is sent and the peer has said the same."""
        if self._closed:
            return
        if self._broken is None:
            end = torch.zeros(_BLOCK_BYTES, dtype=torch.uint8)
            memory_of(end)[:_LENGTH_BYTES] = _END.to_bytes(_LENGTH_BYTES, "little")
            with contextlib.suppress(OSError):
                self._start([end])
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._broken is None:
            self._sender.join(self.deadline_s)
            self._receiver.join(self.deadline_s)


def _first_line(error: BaseException) -> str:
    """Torch's messages go on with a stack of C++ for many lines."""
    line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return line.rpartition("] ")[2][:200]
