"""What links have in common that carry frames with a header, whatever is underneath: routes, counts, and one cause."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch

from mpcpipe.errors import FrameError, PeerLost
from mpcpipe.link.base import Link, Part
from mpcpipe.link.frame import Route, encode_for, payload_bytes

Cause = Callable[[], Exception | None]


class FramedLink(Link):
    """One worker's link to the same worker of one peer.

    `outgoing` and `incoming` are the routes that frames of either direction carry, `name` is the peer's. `cause` is
    asked when the link ends: if the network knows why, that error is raised instead of PeerLost. `deadline_s` bounds
    the wait for one whole frame, from the call on.
    """

    def __init__(self, peer: int, name: str, outgoing: Route, incoming: Route, deadline_s: float, cause: Cause) -> None:
        super().__init__(peer)
        self.name, self.deadline_s = name, deadline_s
        self._outgoing, self._incoming = outgoing, incoming
        self._cause = cause
        self._sent = self._received = 0
        self._broken: Exception | None = None
        self._closed = False

    @abstractmethod
    def _read(self, label: str, expected: Sequence[Part], until: float) -> tuple[list[torch.Tensor], int]:
        """The next frame's parts and clock, by `until` (`time.monotonic`). Errors: FrameError, OSError, PeerLost."""

    @abstractmethod
    def _why(self, label: str, error: OSError) -> Exception:
        """What to raise where `_read` ended with this error."""

    def receive(self, label: str, expected: Sequence[Part]) -> tuple[list[torch.Tensor], int]:
        """Wait for the next frame, which must be `label` with the `expected` parts."""
        self._check_usable(label)
        started_s = time.monotonic()
        try:
            parts, clock = self._read(label, expected, started_s + self.deadline_s)
        except FrameError as error:
            # Where the next frame starts is no longer known.
            self._broken = error
            raise
        except OSError as error:
            raise self._why(label, error) from error
        finally:
            self.traffic.wait_s += time.monotonic() - started_s
        self._received += 1
        self.traffic.received_payload_bytes += payload_bytes(expected)
        return parts, clock

    def _header(self, label: str, parts: Sequence[torch.Tensor], clock: int) -> bytes:
        """The next frame's header. Counts the frame as sent."""
        header = encode_for(self._outgoing, label, [(part.dtype, part.numel()) for part in parts], self._sent, clock)
        payload = sum(part.nbytes for part in parts)
        self._sent += 1
        self.traffic.sent_frames += 1
        self.traffic.sent_payload_bytes += payload
        self.traffic.sent_wire_bytes += payload + len(header)
        return header

    def _check_usable(self, label: str) -> None:
        if self._broken is not None:
            raise self._cause_or(self._broken)
        if self._closed:
            raise PeerLost(f"the link to {self.name} is closed; {label!r} cannot pass it")

    def _cause_or(self, error: Exception) -> Exception:
        return error if isinstance(error, FrameError) else self._cause() or error
