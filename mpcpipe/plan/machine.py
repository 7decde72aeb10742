"""What a machine can do, as rates; machines that are not here, from public figures; and traces in seconds on them."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field

from mpcpipe.errors import PlanError
from mpcpipe.plan.trace import Recorded, Segment, Timed, TimedTrace, Trace, Work


@dataclass(frozen=True)
class Machine:
    """Rates of one worker, and what a round costs it.

    macs_per_s: multiply-adds of 64-bit ring elements. touched_bytes_per_s: bytes that element-by-element operations
    read and write. drawn_bytes_per_s: bytes of pseudo-random streams. call_s: what an operation costs besides. round_s:
    computing time of a round. wire_bytes_per_s: bytes a second of a core that does nothing but send and receive them.
    cores: how many workers compute at full speed. estimated: the figures were not measured.
    """

    name: str
    macs_per_s: float
    touched_bytes_per_s: float
    drawn_bytes_per_s: float
    call_s: float
    round_s: float
    wire_bytes_per_s: float
    cores: float = 1.0
    estimated: bool = False

    def compute_s(self, work: Work) -> float:
        """Seconds of one worker that has a core for itself."""
        return (
            work.macs / self.macs_per_s
            + work.touched_bytes / self.touched_bytes_per_s
            + work.drawn_bytes / self.drawn_bytes_per_s
            + work.calls * self.call_s
        )

    def timed(self, segment: Segment, compute_s: float | None = None) -> Timed:
        """A segment in seconds; compute_s: what was measured for its work."""
        seconds = self.compute_s(segment.work) if compute_s is None else compute_s
        if segment.is_round:
            seconds += self.round_s
        return Timed(seconds, sum(segment.sent), sum(segment.received))

    def trace(self, trace: Trace) -> TimedTrace:
        """A trace in seconds."""
        return tuple(self.timed(segment) for segment in trace)


@dataclass(frozen=True)
class Node:
    """A layer (or the loss, or sharing the features) in seconds: what it does in each direction.

    row_numel: elements of a row of its result; 0 if it is never worked on in pieces.
    """

    name: str
    traces: dict[str, TimedTrace] = field(default_factory=dict)
    row_numel: int = 0


def nodes(layers: tuple[Recorded, ...], machine: Machine) -> tuple[Node, ...]:
    """Every layer on a machine, from its rates."""
    return tuple(Node(r.name, {d: machine.trace(trace) for d, trace in r.traces.items()}, r.row_numel) for r in layers)


# Exact 64-bit products take six products of float64 numbers, so a device's figure here is its float64 rate (two
# operations a multiply-add) over six, at half of the peak; memory at 60 % of its peak.
def _device(name: str, float64_flops: float, memory_bytes_per_s: float) -> Machine:
    reached = 0.6 * memory_bytes_per_s
    return Machine(name, float64_flops / 2 / 6 / 2, reached, reached / 3, 8e-6, 40e-6, 20e9, 1.0, True)


DEVICES = {
    device.name: device
    for device in (
        _device("v100", 7.8e12, 0.9e12),
        _device("a100", 19.5e12, 2.0e12),
        _device("h100", 67e12, 3.35e12),
        _device("h200", 67e12, 4.8e12),
        _device("mi210", 45.3e12, 1.6e12),
        _device("mi300x", 163e12, 5.3e12),
    )
}
"""Estimates from the vendors' public data sheets (float64, with matrix units where there are some; memory rate)."""


def device(name: str) -> Machine:
    """A machine that is not here, by name. A wrong name is a PlanError."""
    if name not in DEVICES:
        near = difflib.get_close_matches(name, DEVICES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        raise PlanError(f"there is no device {name!r}{hint} there are {', '.join(DEVICES)}")
    return DEVICES[name]
