"""A simulated GPU that serves requests from a queue in batches. Nothing is real here but the numbers it is made of.

arrivals ──> queue ──> the batch fills ──> the batch runs ──> results
                        idle power of the   power of the
                        clocks meanwhile    batch's clocks
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mpcpipe.errors import PowerError
from mpcpipe.services.power.policies.batching import Fill
from mpcpipe.services.power.requests import Times
from mpcpipe.services.power.serving_plant import ServingPlant
from mpcpipe.services.power.setting import Observation, Setting


@dataclass(frozen=True)
class Batch:
    """One batch. first: index of its first request. decided_s, start_s, finish_s: when its setting was chosen, when it
    began, when it ended. waiting_j, busy_j: energy before its start (since the decision) and of the run.
    oldest_latency_s: of its first request, from arrival to result. setting: as it ran."""

    first: int
    count: int
    decided_s: float
    start_s: float
    finish_s: float
    waiting_j: float
    busy_j: float
    oldest_latency_s: float
    setting: Setting

    @property
    def exec_s(self) -> float:
        """Of the run."""
        return self.finish_s - self.start_s


WINDOW_S = 2.0


def window_s(slo_s: float | None) -> float:
    """What arrivals are counted over: two seconds, or an objective that is longer."""
    return max(WINDOW_S, slo_s or 0.0)


class Server:
    """One GPU, one queue. Ask `observation`, then call `serve` with a setting, until `done`.

    arrivals: (requests,) rising seconds. plant: the simulated GPU; where it starts is also where clocks stay that a
    setting leaves to the driver. more_than: GREENDLS's authors start a batch of b when *more* than b requests wait;
    True does so, too. first_rate_per_s: the rate that is known before anything has arrived. rate_window_s: what
    arrivals are counted over.
    """

    def __init__(
        self,
        arrivals: Times,
        plant: ServingPlant,
        *,
        more_than: bool = False,
        first_rate_per_s: float | None = None,
        rate_window_s: float = WINDOW_S,
    ) -> None:
        if len(arrivals) == 0:
            raise PowerError("no request arrives in the trace; give one with rates above 0")
        self.arrivals = arrivals
        self.plant = plant
        self.start = plant.setting
        self.rate_window_s = rate_window_s
        self.head = 0
        self.batches: list[Batch] = []
        self._more_than = more_than
        self._first_rate = first_rate_per_s

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return self.plant.time_s

    @property
    def done(self) -> bool:
        """Has every request been served?"""
        return self.head >= len(self.arrivals)

    def waiting(self) -> int:
        """Requests in the queue now."""
        return int(np.searchsorted(self.arrivals, self.now_s, side="right")) - self.head

    def rate_per_s(self) -> float:
        """Arrivals a second, as seen in the window; at least 0.1."""
        since = max(0.0, self.now_s - self.rate_window_s)
        seen = np.searchsorted(self.arrivals, [since, self.now_s], side="right")
        count, window = float(seen[1] - seen[0]), self.now_s - since
        if window < self.rate_window_s and self._first_rate is not None:
            count, window = count + self._first_rate * (self.rate_window_s - window), self.rate_window_s
        return max(0.1, count / window) if window > 0 else 0.1

    def wait_for_work(self) -> None:
        """Let time pass until a request waits."""
        if not self.done:
            self.plant.idle_until(float(self.arrivals[self.head]))

    def observation(self) -> Observation:
        """What a policy may know now. Power is the mean of the last batch, as its authors take it."""
        last = self.batches[-1] if self.batches else None
        waiting = self.waiting()
        return Observation(
            time_s=self.now_s,
            setting=self.plant.setting,
            window_s=last.exec_s if last else None,
            power_w=last.busy_j / last.exec_s if last else None,
            power_mean_w=last.busy_j / last.exec_s if last else None,
            energy_j=last.busy_j if last else None,
            sm_clock_mhz=self.plant.clocks[1],
            memory_clock_mhz=self.plant.clocks[0],
            throughput_per_s=last.count / (last.finish_s - last.decided_s) if last else None,
            exec_s=last.exec_s if last else None,
            latency_s=last.oldest_latency_s if last else None,
            queue=waiting,
            oldest_wait_s=self.now_s - float(self.arrivals[self.head]) if waiting else 0.0,
            rate_per_s=self.rate_per_s(),
        )

    def serve(self, setting: Setting, fill: Fill | None = None, who: str = "the policy") -> Batch:
        """Fill a batch, run it, and be at its end."""
        fill = fill or Fill()
        decided, before_j = self.now_s, self.plant.energy_j
        ready = self._ready(max(1, setting.batch), fill)
        if fill.meanwhile:
            self.plant.apply(self._resolved(fill.meanwhile), who)
            self.plant.idle_until(ready if fill.wake_s is None else min(ready, fill.wake_s))
        self.plant.apply(self._resolved(setting), who)
        self.plant.idle_until(ready)
        start, start_j = self.now_s, self.plant.energy_j
        count = min(max(1, setting.batch), self.waiting())
        self.plant.run_batch(count)
        batch = Batch(
            first=self.head,
            count=count,
            decided_s=decided,
            start_s=start,
            finish_s=self.now_s,
            waiting_j=start_j - before_j,
            busy_j=self.plant.energy_j - start_j,
            oldest_latency_s=self.now_s - float(self.arrivals[self.head]),
            setting=replace(self.plant.setting, batch=count),
        )
        self.head += count
        self.batches.append(batch)
        return batch

    def latencies_s(self) -> Times:
        """From arrival to result, of each request that was served: (requests,)."""
        counts = [batch.count for batch in self.batches]
        finished = np.repeat([batch.finish_s for batch in self.batches], counts)
        return np.asarray(finished - self.arrivals[: self.head], dtype=np.float64)

    def _resolved(self, setting: Setting) -> Setting:
        """Clocks that are left to the driver are those of the start."""
        sm, memory = setting.sm_clock_mhz, setting.memory_clock_mhz
        return replace(
            setting,
            sm_clock_mhz=self.start.sm_clock_mhz if sm is None else sm,
            memory_clock_mhz=self.start.memory_clock_mhz if memory is None else memory,
        )

    def _ready(self, size: int, fill: Fill) -> float:
        """When the batch is full or has waited long enough; never before its first request, nor before now."""
        last = min(self.head + size - 1 + self._more_than, len(self.arrivals) - 1)
        ready = float(self.arrivals[last])
        if fill.until_s is not None:
            ready = min(ready, max(fill.until_s, float(self.arrivals[self.head])))
        return max(ready, self.now_s)
