"""Links to a dealer that is not there: corrections come from a store, or go into one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mpcpipe.dealt.records import Reader, Writer
from mpcpipe.errors import LinkError
from mpcpipe.link.base import Link, Part


class FromStore(Link):
    """At a party, in place of the link to the dealer. `reader`: None at the party that is sent nothing."""

    def __init__(self, dealer: int, reader: Reader | None) -> None:
        super().__init__(dealer)
        self._reader = reader

    def send(self, label: str, parts: Sequence[torch.Tensor], clock: int = 0) -> None:
        """Nobody is there: a LinkError."""
        raise LinkError(f"{label!r} cannot be sent to the dealer, whose part was dealt beforehand")

    def receive(self, label: str, expected: Sequence[Part]) -> tuple[list[torch.Tensor], int]:
        """The next record. It depends on no message, so its clock is 0. StoreError as `Reader.read`."""
        if self._reader is None:
            raise LinkError(f"{label!r} is not in this party's part of the store")
        parts = self._reader.read(label, expected)
        self.traffic.received_payload_bytes += sum(part.nbytes for part in expected)
        return parts, 0

    def close(self) -> None:
        """Close the file."""
        if self._reader is not None:
            self._reader.close()


class IntoStore(Link):
    """At the dealer, in place of the link to a party. `writer`: None for the party that is sent nothing."""

    def __init__(self, peer: int, writer: Writer | None) -> None:
        super().__init__(peer)
        self._writer = writer

    def send(self, label: str, parts: Sequence[torch.Tensor], clock: int = 0) -> None:
        """Write one record."""
        if self._writer is None:
            raise LinkError(f"{label!r} would go to a party that gets no corrections")
        self._writer.write(label, parts)
        self.traffic.sent_payload_bytes += sum(part.nbytes for part in parts)

    def receive(self, label: str, expected: Sequence[Part]) -> tuple[list[torch.Tensor], int]:
        """Nobody sends anything to a dealer: a LinkError."""
        raise LinkError(f"{label!r} cannot come to a dealer, to which nobody sends anything")

    def close(self) -> None:
        """The file is the dealer's to finish."""
        return None
