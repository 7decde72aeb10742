"""What a policy chooses, what it is held to, and what it sees."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Slice:
    """A worker's share of a GPU (percent of its multiprocessors) and the batch that it works on."""

    percent: int
    batch: int


@dataclass(frozen=True)
class Setting:
    """A choice of clocks, batch and partition.

    sm_clock_mhz: the locked clock of the multiprocessors; None leaves it to the driver. memory_clock_mhz: likewise.
    batch: requests (or rows) that are worked on together. partition: the shares of several workers on one GPU, each
    with a batch of its own, or () for one worker that has it all and works on `batch`. power_limit_w: the driver's
    own limit, where a policy uses that.
    """

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    batch: int = 1
    partition: tuple[Slice, ...] = ()
    power_limit_w: float | None = None

    @property
    def workers(self) -> tuple[Slice, ...]:
        """The partition; one worker with everything where there is none."""
        return self.partition or (Slice(100, self.batch),)


@dataclass(frozen=True)
class Limits:
    """What must be kept: power of the GPU, latency of a request, time of a training step. None: no such limit."""

    cap_w: float | None = None
    slo_s: float | None = None
    deadline_s: float | None = None


@dataclass(frozen=True)
class Observation:
    """What is known when a policy decides. Whatever was not measured is None, never 0.

    time_s: since the start. window_s: what the measurements are taken over. setting: what is in effect, read back.
    power_w: the highest sample of the window, power_mean_w its mean, energy_j its energy. exec_s: of the last batch.
    latency_s: of the last batch's oldest request from arrival to result; tail_latency_s: the 99th percentile of the
    window's. queue: requests that wait; oldest_wait_s: the first of them. rate_per_s: arrivals. compute_s, waiting_s:
    of the last training step. ceiling_mhz: no higher SM clock is set now, for a cap's sake.
    """

    time_s: float
    setting: Setting
    window_s: float | None = None
    power_w: float | None = None
    power_mean_w: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    throughput_per_s: float | None = None
    exec_s: float | None = None
    latency_s: float | None = None
    tail_latency_s: float | None = None
    queue: int | None = None
    oldest_wait_s: float | None = None
    rate_per_s: float | None = None
    step_s: float | None = None
    compute_s: float | None = None
    waiting_s: float | None = None
    ceiling_mhz: int | None = None
