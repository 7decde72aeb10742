"""Links with a given round trip and rate, in process: for experiments and tests without a network.

    frame ──> [ line: one frame after the other, bytes / rate ] ──> [ half a round trip ] ──> delivered

A frame tells the receiver when it may be delivered, in an extra part that the traffic counters leave out. So both ends
must read the same monotonic clock: threads or processes of one machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import torch

from mpcpipe.link.base import Link, Mesh, Part
from mpcpipe.link.frame import header_bytes

_STAMP = Part(torch.float64, 1)


class Line:
    """One direction of a line: frames queue on it, and each takes its bytes / `rate_bytes_per_s` to get on.

    Several links may share a line, as the workers of a party share its network card.
    """

    def __init__(self, rate_bytes_per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        if rate_bytes_per_s <= 0:
            raise ValueError(f"a line's rate is positive, not {rate_bytes_per_s} bytes a second")
        self.rate_bytes_per_s = rate_bytes_per_s
        self.clock = clock
        self._free_at_s = float("-inf")
        self._lock = threading.Lock()

    def depart(self, nbytes: int) -> float:
        """Put a frame on the line now; returns when its last byte has left."""
        with self._lock:
            self._free_at_s = max(self._free_at_s, self.clock()) + nbytes / self.rate_bytes_per_s
            return self._free_at_s


class ShapedLink(Link):
    """A link whose frames arrive no earlier than the line and half the round trip allow. Wrap both ends."""

    def __init__(
        self,
        link: Link,
        rtt_s: float,
        rate_bytes_per_s: float,
        line: Line | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(link.peer)
        self.delay_s = rtt_s / 2
        self.line = line or Line(rate_bytes_per_s, clock)
        self._link = link
        self._clock, self._sleep = clock, sleep

    def send(self, label: str, parts: Sequence[torch.Tensor], clock: int = 0) -> None:
        """Send one frame, with the time at which it may be delivered."""
        payload = sum(part.nbytes for part in parts)
        wire = payload + header_bytes(len(parts))
        stamp = torch.tensor([self.line.depart(wire) + self.delay_s], dtype=torch.float64)
        self.traffic.sent_frames += 1
        self.traffic.sent_payload_bytes += payload
        self.traffic.sent_wire_bytes += wire
        self._link.send(label, [*parts, stamp], clock)

    def receive(self, label: str, expected: Sequence[Part]) -> tuple[list[torch.Tensor], int]:
        """Wait for the frame, and then until it may be delivered."""
        started_s = self._clock()
        (*parts, stamp), clock = self._link.receive(label, [*expected, _STAMP])
        remaining_s = float(stamp.item()) - self._clock()
        if remaining_s > 0:
            self._sleep(remaining_s)
        self.traffic.received_payload_bytes += sum(part.nbytes for part in parts)
        self.traffic.wait_s += self._clock() - started_s
        return parts, clock

    def close(self) -> None:
        """Close the link below."""
        self._link.close()


def shape(mesh: Mesh, rtt_s: float, rate_bytes_per_s: float, line: Line | None = None) -> Mesh:
    """`mesh` with every link shaped; all of them leave over one line, as from one network card."""
    line = line or Line(rate_bytes_per_s)
    links = {peer: ShapedLink(link, rtt_s, rate_bytes_per_s, line) for peer, link in mesh.links.items()}
    return Mesh(mesh.party, mesh.parties, links, mesh.clock)
