"""Traces: an action as a worker lives it, computing and exchanging in turn.

    compute ─ round ─ compute ─ round ─ ... ─ compute

`Segment` counts work in units; `Timed` has it in seconds on some machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from mpcpipe.plan.actions import Action


@dataclass(frozen=True)
class Work:
    """Local work in units: multiply-adds of matrix products and convolutions, bytes that element-by-element operations
    read and write, bytes of pseudo-random streams, and how many operations these were.
    """

    macs: int = 0
    touched_bytes: int = 0
    drawn_bytes: int = 0
    calls: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.macs + other.macs,
            self.touched_bytes + other.touched_bytes,
            self.drawn_bytes + other.drawn_bytes,
            self.calls + other.calls,
        )


@dataclass(frozen=True)
class Segment:
    """Work, and the round after it: payload bytes to and from each party, by its number. No bytes: no round."""

    work: Work = Work()
    sent: tuple[int, ...] = ()
    received: tuple[int, ...] = ()

    @property
    def is_round(self) -> bool:
        """Does anything travel?"""
        return any(self.sent) or any(self.received)


Trace = tuple[Segment, ...]


@dataclass(frozen=True)
class Timed:
    """Seconds of computing on one core, and the round after it: payload bytes out and in. No bytes: no round.

    pieces: this so many times, one of them computing while another's messages travel; one round all the same.
    """

    compute_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    pieces: int = 1

    @property
    def is_round(self) -> bool:
        """Does anything travel?"""
        return bool(self.sent_bytes or self.received_bytes)


@dataclass(frozen=True)
class Totals:
    """A timed trace summed up: seconds of computing, payload bytes that this party sends, dependent rounds."""

    compute_s: float = 0.0
    sent_bytes: int = 0
    rounds: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.compute_s + other.compute_s, self.sent_bytes + other.sent_bytes, self.rounds + other.rounds)


TimedTrace = tuple[Timed, ...]
TraceOf = Callable[[Action], TimedTrace]


def totals(trace: Sequence[Timed]) -> Totals:
    """Sums over a trace."""
    return Totals(
        sum(t.compute_s * t.pieces for t in trace),
        sum(t.sent_bytes * t.pieces for t in trace),
        sum(t.is_round for t in trace),
    )


def side_by_side(traces: Sequence[TimedTrace]) -> TimedTrace:
    """Independent traces in the same rounds, as `gather` joins them."""
    rows = zip_longest(*traces, fillvalue=Timed())
    return tuple(
        Timed(sum(t.compute_s for t in row), sum(t.sent_bytes for t in row), sum(t.received_bytes for t in row))
        for row in rows
    )


@dataclass(frozen=True)
class Recorded:
    """What one layer does for one micro-batch, by direction: F, I, W; and U, once a step.

    A direction that is spared (the first layer's I) or that the loss does not have is absent. row_numel: elements of a
    row of its result, 0 where that does not matter (`nn.pieces.row_numel`).
    """

    name: str
    traces: dict[str, Trace] = field(default_factory=dict)
    row_numel: int = 0
