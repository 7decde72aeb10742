"""What a party measures of its steps, and how the parties tell each other."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.rounds import Round


@dataclass(frozen=True)
class Span:
    """One action of a worker: when it began and ended (`time.perf_counter`), and how long of that it waited.

    wait_s: for other parties' messages; idle_s, at its beginning: for other workers of this party; queued_s: for its
    turn at computing, once a message was there. `waits` has the noticeable ones of the first and the last. The rest is
    computing. sent_bytes: payload, to all parties.
    """

    worker: str
    action: str
    begin_s: float
    end_s: float
    wait_s: float
    idle_s: float
    waits: tuple[tuple[float, float], ...] = ()
    sent_bytes: int = 0
    queued_s: float = 0.0

    def line(self, step: int, origin_s: float) -> str:
        """As a line of the run's events, times in seconds after `origin_s`; `step` is the first that it belongs to."""
        plain = {
            "step": step,
            "worker": self.worker,
            "action": self.action,
            "begin_s": round(self.begin_s - origin_s, 6),
            "end_s": round(self.end_s - origin_s, 6),
            "wait_s": round(self.wait_s, 6),
            "idle_s": round(self.idle_s, 6),
            "sent_bytes": self.sent_bytes,
            "waits": [[round(a - origin_s, 6), round(b - origin_s, 6)] for a, b in self.waits],
        }
        return json.dumps(plain) + "\n"


def steps_seconds(spans: Sequence[Span], began_s: float, ended_s: float, steps: int) -> list[float]:
    """Seconds of each of so many steps that ran through without a flush: from the update of one step's last stage to
    that of the next. The first has the time from `began_s` on, the last what is left until `ended_s`.
    """
    updates: dict[str, list[float]] = {}
    for span in spans:
        for action in span.action.split():
            if action.endswith("U"):
                updates.setdefault(action, []).append(span.end_s)
    ends = [max(stage) for stage in zip(*map(sorted, updates.values()), strict=True)]
    return [end - begin for begin, end in itertools.pairwise([began_s, *ends[: steps - 1], ended_s])]


@dataclass(frozen=True)
class Measured:
    """One party's figures of a run: seconds and bytes a step, means over all steps but the first; peak memory.

    compute_s, wait_s and idle_s divide a step's seconds (for several workers, their mean). cpu_s: processor time of all
    threads, which a busy machine does not stretch.
    """

    compute_s: float = 0.0
    cpu_s: float = 0.0
    wait_s: float = 0.0
    idle_s: float = 0.0
    sent_bytes: float = 0.0
    payload_bytes: float = 0.0
    rounds: float = 0.0
    peak_rss_bytes: float = 0.0

    def per_step(self, steps: int) -> Measured:
        """The share of one of so many steps that ran through without a flush."""
        return Measured(*(getattr(self, f.name) / steps for f in fields(self)))


@dataclass
class StepLog:
    """Seconds of every step, and sums of what the workers counted."""

    steps_s: list[float] = field(default_factory=list)
    counted: list[Measured] = field(default_factory=list)

    def add(self, seconds: float, measured: Measured) -> None:
        """One step."""
        self.steps_s.append(seconds)
        self.counted.append(measured)

    @property
    def median_s(self) -> float:
        """Median seconds of a step; the first one, which pays for warming up, counts only if it is alone. 0 of none:
        a run that resumed after the last step."""
        return statistics.median(self.steps_s[1:] or self.steps_s or [0.0])

    def mean(self, peak_rss_bytes: int) -> Measured:
        """Means over the steps, without the first if there are others."""
        steps = self.counted[1:] or self.counted or [Measured()]
        means = {
            f.name: statistics.fmean(getattr(step, f.name) for step in steps)
            for f in fields(Measured)
            if f.name != "peak_rss_bytes"
        }
        return Measured(**means, peak_rss_bytes=peak_rss_bytes)


async def exchange(p: Protocol, own: Measured) -> list[Measured]:
    """The figures of every party of this run, at every party. They are public: times and sizes. 1 round."""
    micro = torch.tensor([round(1e6 * getattr(own, f.name)) for f in fields(Measured)], dtype=torch.int64)
    others = p.peers
    part = [Part(torch.int64, micro.numel())]
    received = await Round(p.label("figures"), {party: [micro] for party in others}, dict.fromkeys(others, part))
    by_party = {party: received[party][0] for party in others} | {p.party: micro}
    return [Measured(*(float(v) / 1e6 for v in by_party[party].tolist())) for party in p.present]


def column(measured: Sequence[Measured], name: str) -> list[float]:
    """One figure of every party."""
    return [getattr(m, name) for m in measured]
