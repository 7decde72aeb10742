"""What no schedule can beat, and what it is that limits it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from mpcpipe.plan.actions import Action, Schedule, together
from mpcpipe.plan.net import Net
from mpcpipe.plan.trace import TimedTrace, Totals, TraceOf, side_by_side, totals


@dataclass(frozen=True)
class Bound:
    """What no schedule can beat (design: max(C, B, T0 / K, the busiest worker)), and its parts, in seconds.

    compute_s: all computing over the cores, with what the line takes of them. bytes_s: all bytes over the rate.
    latency_s: one latency a round, one after another. sequential_s: a whole step, one thing after another (T0).
    in_flight: K, the workers times the pieces of each.
    """

    compute_s: float
    bytes_s: float
    latency_s: float
    sequential_s: float
    busiest_s: float
    in_flight: int

    @property
    def bound_s(self) -> float:
        """The largest of them."""
        return max(seconds for seconds, _ in self._limits())

    @property
    def limited_by(self) -> str:
        """Which of them: compute, bandwidth, "the busiest worker" or "the number of pieces in flight"."""
        return max(self._limits())[1]

    def _limits(self) -> list[tuple[float, str]]:
        return [
            (self.compute_s, "compute"),
            (self.bytes_s, "bandwidth"),
            (self.sequential_s / self.in_flight, "the number of pieces in flight"),
            (self.busiest_s, "the busiest worker"),
        ]


@dataclass(frozen=True)
class _Alone:
    """A trace, what it adds up to, the least that a worker takes for it, and the most pieces that it has."""

    trace: TimedTrace
    sums: Totals
    least_s: float
    pieces: int


@dataclass
class Bounds:
    """Bounds of schedules on one network, for a party with `cores` cores (its share: may be less than one)."""

    net: Net
    cores: float
    _known: dict[int, _Alone] = field(default_factory=dict)

    def of(self, schedule: Schedule, trace_of: TraceOf, sequential_s: float | None = None) -> Bound:
        """What limits a step of the schedule. sequential_s: T0, if it is that of other (larger) micro-batches."""
        net, cores = self.net, self.cores
        compute_s = sent_bytes = busiest_s = 0.0
        rounds, pieces = 0, 1
        for worker in schedule.workers:
            least_s = 0.0
            for group in together(worker.actions):
                alone = self._alone(trace_of, group)
                compute_s += alone.sums.compute_s
                sent_bytes += alone.sums.sent_bytes
                rounds += alone.sums.rounds
                least_s += alone.least_s
                pieces = max(pieces, alone.pieces)
            busiest_s = max(busiest_s, least_s)
        count, steps = len(schedule.workers), schedule.steps
        if sequential_s is None:
            sending_s = sent_bytes / net.leaves_per_s(cores)
            sequential_s = (compute_s / min(1.0, cores) + sending_s + rounds * net.latency_s) / steps
        with_line_s = (compute_s + sent_bytes * net.work_s_per_byte) / cores
        return Bound(
            max(compute_s / min(cores, count), with_line_s) / steps,
            sent_bytes / net.line_bytes_per_s / steps,
            rounds * net.latency_s / steps,
            sequential_s,
            busiest_s / steps,
            count * pieces,
        )

    def _alone(self, trace_of: TraceOf, group: tuple[Action, ...]) -> _Alone:
        """Of actions that are done together. Most differ in their micro-batch only, and share a trace."""
        traces = [trace_of(action) for action in group]
        if len(traces) > 1:
            return self._of_trace(side_by_side(traces))
        if (found := self._known.get(id(traces[0]))) is None:
            found = self._known[id(traces[0])] = self._of_trace(traces[0])
        return found

    def _of_trace(self, trace: TimedTrace) -> _Alone:
        """Of pieces, computing and sending overlap, but one goes all the way."""
        rate, least_s, most = self.net.leaves_per_s(self.cores), 0.0, 1
        for pieces, run in itertools.groupby(trace, lambda one: one.pieces):
            computing_s = sending_s = latency_s = 0.0
            for one in run:
                computing_s += one.compute_s / min(1.0, self.cores)
                sending_s += one.sent_bytes / rate
                latency_s += self.net.latency_s * one.is_round
            least_s += max(pieces * computing_s, pieces * sending_s, computing_s + sending_s + latency_s)
            most = max(most, pieces)
        return _Alone(trace, totals(trace), least_s, most)
