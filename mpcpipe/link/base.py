"""What a link is: one ordered, labelled channel between the same worker of two parties; and a worker's mesh of them.

        worker (stage 2, slot 0) of party 0  <── link ──>  worker (stage 2, slot 0) of party 1

A frame carries a label and one or more *parts*, flat tensors. The receiver names the label, and the dtype and length of
every part, from its own plan; whatever differs is a FrameError, and memory is never allocated by what a peer says.
Both sides run the same program, so frames arrive in the order in which they are asked for.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from mpcpipe.errors import FrameError


@dataclass(frozen=True)
class Part:
    """One expected tensor of a frame: its dtype and number of elements."""

    dtype: torch.dtype
    numel: int

    @property
    def nbytes(self) -> int:
        """Payload bytes."""
        return self.numel * self.dtype.itemsize


@dataclass
class Traffic:
    """What a link has carried so far. Payload bytes are the protocol's; wire bytes add frame headers."""

    sent_frames: int = 0
    sent_payload_bytes: int = 0
    sent_wire_bytes: int = 0
    received_payload_bytes: int = 0
    wait_s: float = 0.0


class Link(ABC):
    """One ordered channel to the same worker of one other party.

    `send` returns without waiting for the peer; the parts must not be written to afterwards. `receive` waits for the
    next frame. Errors: PeerLost when the peer is gone or silent past the deadline, FrameError when another frame comes.
    """

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.traffic = Traffic()

    @abstractmethod
    def send(self, label: str, parts: Sequence[torch.Tensor], clock: int = 0) -> None:
        """Send one frame. `parts` are contiguous 1-D CPU or device tensors; `clock` is the sender's round number."""

    @abstractmethod
    def receive(self, label: str, expected: Sequence[Part]) -> tuple[list[torch.Tensor], int]:
        """Wait for the frame `label`; returns its parts, as new tensors, and the sender's clock."""

    def drain(self, most_bytes: int) -> None:
        """Wait until no more than so many bytes of what was sent are still in this process. Errors: PeerLost.

        Here: at once, which is right where nothing queues up.
        """
        return None

    def read_ahead(self, most_bytes: int) -> None:
        """From the first `receive` on, take in up to so many bytes before they are asked for. Call it before that.

        Here: nothing, which is right where messages arrive by themselves.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Send what is still queued, then give the channel back. May be called twice."""


MOST_ROUNDS = 1 << 31
"""No run has so many. A frame has room for twice as many, so that its receiver can still count on."""

NOTICEABLE_S = 100e-6
"""Shorter waits are not written down one by one; `Traffic.wait_s` counts all."""


class Turn(Protocol):
    """What a worker gives up while it waits; see `runtime.turns`."""

    def acquire(self) -> None:
        """Take it."""

    def release(self) -> None:
        """Give it up."""


@dataclass
class Mesh:
    """A worker's links to the same worker of every other party, and its round clock.

    The clock is Lamport's: a frame carries the sender's clock plus one, a receiver takes the larger of its own and the
    frame's. So after a run it says how many messages depended on each other: the rounds that a slow network charges.
    `waits`: when it waited noticeably (`time.perf_counter`), until somebody takes the list. `queued_s`: how long it
    waited for its turn to compute again, once the frame was there. `ahead_bytes`: for a party that only sends, how much
    may lie in a link's queue before it waits; the others never wait to send, or two of them could wait for each other.
    """

    party: int
    parties: int
    links: Mapping[int, Link] = field(default_factory=dict)
    clock: int = 0
    waits: list[tuple[float, float]] = field(default_factory=list)
    turn: Turn | None = None
    queued_s: float = 0.0
    ahead_bytes: int | None = None

    def send(self, label: str, outgoing: Mapping[int, Sequence[torch.Tensor]]) -> None:
        """Send one frame to each party of `outgoing` that has parts for it."""
        for peer, parts in outgoing.items():
            if parts:
                self.links[peer].send(label, parts, self.clock + 1)
                if self.ahead_bytes is not None:
                    self._drain(self.links[peer], self.ahead_bytes)

    def _drain(self, link: Link, most_bytes: int) -> None:
        if self.turn is None:
            return link.drain(most_bytes)
        self.turn.release()
        try:
            return link.drain(most_bytes)
        finally:
            self.turn.acquire()

    def receive(self, label: str, incoming: Mapping[int, Sequence[Part]]) -> dict[int, list[torch.Tensor]]:
        """Wait for one frame from each party of `incoming`; returns each one's parts."""
        began = ended = time.perf_counter()
        if self.turn is not None:
            self.turn.release()
        try:
            received = self._receive(label, incoming)
            ended = time.perf_counter()
        finally:
            if self.turn is not None:
                self.turn.acquire()
                self.queued_s += time.perf_counter() - ended
        now = time.perf_counter()
        if now - began > NOTICEABLE_S:
            self.waits.append((began, now))
        return received

    def _receive(self, label: str, incoming: Mapping[int, Sequence[Part]]) -> dict[int, list[torch.Tensor]]:
        received, clock = {}, self.clock
        for peer, expected in incoming.items():
            if expected:
                received[peer], stamp = self.links[peer].receive(label, expected)
                if stamp > MOST_ROUNDS:
                    raise FrameError(f"the frame {label!r} from party {peer} says that it comes after {stamp} rounds")
                clock = max(clock, stamp)
            else:
                received[peer] = []
        self.clock = clock
        return received

    @property
    def sent_payload_bytes(self) -> int:
        """Payload bytes sent so far, to all parties."""
        return sum(link.traffic.sent_payload_bytes for link in self.links.values())

    @property
    def wait_s(self) -> float:
        """Seconds spent waiting for frames so far."""
        return sum(link.traffic.wait_s for link in self.links.values())

    def close(self) -> None:
        """Close every link."""
        for link in self.links.values():
            link.close()
