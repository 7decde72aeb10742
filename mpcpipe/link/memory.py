"""Links through queues, for parties that are threads of one process: tests, notebooks, experiments.

    meshes = memory_meshes(3)        # one mesh a party; each party runs in its own thread

A frame is checked as on a socket (label, dtypes, lengths), but its tensors are handed over as they are, without a copy.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mpcpipe.errors import FrameError, PeerLost
from mpcpipe.link.base import Link, Mesh, Part
from mpcpipe.link.frame import describe, header_bytes

DEADLINE_S = 60.0


@dataclass(frozen=True)
class _Message:
    label: str
    parts: tuple[torch.Tensor, ...]
    clock: int


# None wakes a receiver: the sender closed its end, or the network was aborted.
_Queue = queue.SimpleQueue[_Message | None]


class MemoryNetwork:
    """All links between `parties` threads of this process, for each of `workers` workers."""

    def __init__(self, parties: int, workers: int = 1, deadline_s: float = DEADLINE_S) -> None:
        self.parties = parties
        self.failure: BaseException | None = None
        self._meshes: list[list[Mesh]] = []
        self._queues: list[_Queue] = []
        for worker in range(workers):
            queues: dict[tuple[int, int], _Queue] = {
                (sender, receiver): queue.SimpleQueue()
                for sender in range(parties)
                for receiver in range(parties)
                if sender != receiver
            }
            self._queues.extend(queues.values())
            self._meshes.append([self._mesh(party, worker, queues, deadline_s) for party in range(parties)])

    def _mesh(self, party: int, worker: int, queues: dict[tuple[int, int], _Queue], deadline_s: float) -> Mesh:
        links = {
            peer: MemoryLink(self, party, peer, queues[party, peer], queues[peer, party], deadline_s)
            for peer in range(self.parties)
            if peer != party
        }
        return Mesh(party, self.parties, links)

    def mesh(self, party: int, worker: int = 0) -> Mesh:
        """The links of one worker of one party."""
        return self._meshes[worker][party]

    def abort(self, error: BaseException) -> None:
        """Stop all parties: whoever waits, sends or receives from now on raises `error` (the first one given)."""
        if self.failure is None:
            self.failure = error
        for waiting in self._queues:
            waiting.put(None)


class MemoryLink(Link):
    """One end of a pair of queues. `deadline_s` bounds the wait for one frame."""

    def __init__(
        self, network: MemoryNetwork, party: int, peer: int, outbox: _Queue, inbox: _Queue, deadline_s: float
    ) -> None:
        super().__init__(peer)
        self.network = network
        self.party = party
        self.deadline_s = deadline_s
        self._outbox = outbox
        self._inbox = inbox
        self._closed = False

    def send(self, label: str, parts: Sequence[torch.Tensor], clock: int = 0) -> None:
        """Put one frame into the peer's queue."""
        self._raise_failure()
        if self._closed:
            raise PeerLost(f"party {self.party} sends {label!r} to party {self.peer} over a link that it closed")
        payload = sum(part.nbytes for part in parts)
        self.traffic.sent_frames += 1
        self.traffic.sent_payload_bytes += payload
        self.traffic.sent_wire_bytes += payload + header_bytes(len(parts))
        # Received tensors are the receiver's to write to, as after a real link.
        self._outbox.put(_Message(label, tuple(part.clone() for part in parts), clock))

    def receive(self, label: str, expected: Sequence[Part]) -> tuple[list[torch.Tensor], int]:
        """Take the next frame out of this end's queue, which must be `label` with the `expected` parts."""
        self._raise_failure()
        started_s = time.monotonic()
        try:
            message = self._inbox.get(timeout=self.deadline_s)
        except queue.Empty:
            raise PeerLost(
                f"party {self.party} waited {self.deadline_s:g} s for {label!r} from party {self.peer}, in vain"
            ) from None
        finally:
            self.traffic.wait_s += time.monotonic() - started_s
        self._raise_failure()
        if message is None:
            self._inbox.put(None)
            raise PeerLost(f"party {self.peer} closed its link while party {self.party} waits for {label!r}")
        self._check(message, label, expected)
        self.traffic.received_payload_bytes += sum(part.nbytes for part in message.parts)
        return list(message.parts), message.clock

    def abort(self, error: BaseException) -> None:
        """Stop all parties of this network with the cause `error`."""
        self.network.abort(error)

    def close(self) -> None:
        """Tell the peer that nothing follows. What was sent can still be received."""
        if not self._closed:
            self._closed = True
            self._outbox.put(None)

    def _raise_failure(self) -> None:
        if self.network.failure is not None:
            raise self.network.failure

    def _check(self, message: _Message, label: str, expected: Sequence[Part]) -> None:
        where = f"party {self.party} expects the frame {label!r} from party {self.peer}"
        if message.label != label:
            raise FrameError(f"{where}, but {message.label!r} came; the parties' programs went different ways")
        if len(message.parts) != len(expected):
            raise FrameError(f"{where} with {len(expected)} parts, but it has {len(message.parts)}")
        for index, (part, want) in enumerate(zip(message.parts, expected, strict=True)):
            if part.dtype != want.dtype or part.numel() != want.numel:
                raise FrameError(
                    f"{where}, part {index} with {describe(want.dtype, want.numel)}, "
                    f"but {describe(part.dtype, part.numel())} came"
                )


def memory_meshes(parties: int, deadline_s: float = DEADLINE_S) -> list[Mesh]:
    """One mesh a party, connected through memory; for a way to stop them all, make a `MemoryNetwork`."""
    network = MemoryNetwork(parties, deadline_s=deadline_s)
    return [network.mesh(party) for party in range(parties)]
