"""Links over what a launcher brings along (MPI, torch.distributed), which carries messages of a known length in order.

    first   the frame's header, and, while all of it is small, the payload       one message
    then    each part of a larger payload, from where it lies                    a message each (a piece each, if huge)

The receiver knows from its own plan how long each message is, and compares the header before it asks for more: whatever
comes, only FrameError comes out, and nothing is allocated by what a peer says. A fabric carries data frames only. Who
the parties are, what they agree on, heartbeats and the cause of a failure go over TCP as ever (`mesh`, `control`).

Security: fabrics do not encrypt. They are for one machine, or for a network that the job says may be trusted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from mpcpipe.errors import FrameError, PeerLost
from mpcpipe.link.base import Part
from mpcpipe.link.frame import (
    FIXED_BYTES,
    Route,
    check,
    check_fixed,
    header_bytes,
    memory_of,
    payload_bytes,
)
from mpcpipe.link.framed import Cause, FramedLink

# A frame of up to so many bytes is one message.
WHOLE_BYTES = 8 << 10
# No message is longer: some MPI count in 32 bits.
PIECE_BYTES = 1 << 30


class Fabric(ABC):
    """One process's part of it. `close` it when the job is done, never after a failure: peers may be gone."""

    @property
    @abstractmethod
    def description(self) -> str:
        """What it is, for banner and report."""

    @abstractmethod
    def link(
        self, peer: int, name: str, outgoing: Route, incoming: Route, deadline_s: float, cause: Cause
    ) -> FabricLink:
        """The link of worker `outgoing.worker` to the same worker of party `peer`, called `name`."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back; all links are closed already."""


class FabricLink(FramedLink):
    """What links over any fabric have in common. Parameters as `FramedLink`; `device`: where received parts are put."""

    def __init__(
        self,
        peer: int,
        name: str,
        outgoing: Route,
        incoming: Route,
        deadline_s: float,
        cause: Cause,
        device: str = "cpu",
    ) -> None:
        super().__init__(peer, name, outgoing, incoming, deadline_s, cause)
        self.device = device

    # What a fabric does

    @abstractmethod
    def _post(self, messages: Sequence[torch.Tensor]) -> None:
        """Start to send these messages (flat), in order, and return. They are not written to any more."""

    @abstractmethod
    def _first(self, nbytes: int, until: float) -> memoryview:
        """Wait for the next frame's first message. It should have so many bytes; at least the header's fixed part is
        there.

        Errors: TimeoutError once `time.monotonic()` is past `until`; OSError when the peer is gone.
        """

    @abstractmethod
    def _fill(self, part: torch.Tensor, until: float) -> None:
        """Wait for the next message, into `part` (flat, one piece at most). Errors: as `_first`, and FrameError."""

    # What a link does

    def send(self, label: str, parts: Sequence[torch.Tensor], clock: int = 0) -> None:
        """Send one frame; returns at once."""
        self._check_usable(label)
        header = self._header(label, parts, clock)
        payload = sum(part.nbytes for part in parts)
        if len(header) + payload <= WHOLE_BYTES:
            whole = b"".join([header, *(memory_of(part.cpu()) for part in parts if part.numel())])
            messages = [torch.frombuffer(bytearray(whole), dtype=torch.uint8)]
        else:
            messages = [torch.frombuffer(bytearray(header), dtype=torch.uint8)]
            messages += [piece for part in parts for piece in _pieces(part)]
        try:
            self._post(messages)
        except OSError as error:
            raise self._lost(f"{self.name} went away before it got {label!r}") from error

    def _why(self, label: str, error: OSError) -> Exception:
        if isinstance(error, TimeoutError):
            return self._lost(f"{self.name} did not send {label!r} within {self.deadline_s:g} s")
        return self._lost(f"{self.name} went away while this party waits for {label!r}")

    def _read(self, label: str, expected: Sequence[Part], until: float) -> tuple[list[torch.Tensor], int]:
        size, payload = header_bytes(len(expected)), payload_bytes(expected)
        whole = size + payload <= WHOLE_BYTES
        wanted = size + payload if whole else size
        first = self._first(wanted, until)
        if len(first) != wanted:
            check_fixed(first[:FIXED_BYTES], self._incoming, label, expected, self._received)
            raise FrameError(
                f"the frame {label!r} from {self.name}: {wanted} bytes expected at first, {len(first)} came"
            )
        clock = check(first[:size], self._incoming, label, expected, self._received)
        parts, at = [], size
        for part in expected:
            if whole:
                made = torch.empty(part.numel, dtype=part.dtype)
                if part.numel:
                    memory_of(made)[:] = first[at : at + part.nbytes]
                    at += part.nbytes
                parts.append(made.to(self.device))
            else:
                made = torch.empty(part.numel, dtype=part.dtype, device=self.device)
                for piece in _pieces(made):
                    self._fill(piece, until)
                parts.append(made)
        return parts, clock

    def interrupt(self) -> None:
        """Wake whoever waits in `receive`, with the network's cause. Any thread."""
        self._broken = self._broken or PeerLost(f"the link to {self.name} was ended by this party")

    def _lost(self, reason: str) -> Exception:
        return self._cause_or(self._broken or PeerLost(reason))


def _pieces(part: torch.Tensor) -> list[torch.Tensor]:
    """A part's bytes in place, as messages; [] if it has none."""
    return list(part.view(torch.uint8).split(PIECE_BYTES)) if part.numel() else []  # type: ignore[no-untyped-call]
