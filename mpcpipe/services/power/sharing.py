"""Several workers on one GPU, each with a share of its multiprocessors (MPS), from what one alone does.

A worker's batch is a part that no multiprocessor speeds up (launches, copies) and a part on the GPU. With a share r the
second takes 1 / speed(r), speed(r) = (r + k) / (1 + k): a small batch does not fill the GPU and loses less. Others slow
it down a little, and all together cannot draw more from the memory than it has. Power adds up: idle, what running
costs once, and energy a request.

Source: constants after iGniter's and gpulet's published fits, see docs/power.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mpcpipe.errors import PowerError
from mpcpipe.services.power import model
from mpcpipe.services.power.cards import Card
from mpcpipe.services.power.setting import Setting, Slice

Alone = Callable[[int, float, float], tuple[float, float]]
"""(memory clock, SM clock, batch) -> (ms a batch, watts while it works) of one worker that has the whole GPU."""


@dataclass(frozen=True)
class Sharing:
    """launch_ms: of a batch, not on the GPU. memory_ms: of a request, by memory clock; what limits all together.
    active_w_per_ghz: of V^2 f, once for all workers. small: k at batch 1 beyond `large`, k of large batches. slowdown:
    of a worker whose neighbours fill the rest of the GPU."""

    launch_ms: float = 0.5
    memory_ms: Mapping[int, float] = field(default_factory=dict)
    active_w_per_ghz: float = 11.2
    large: float = 0.05
    small: float = 0.30
    slowdown: float = 0.08

    def speed(self, share: float, batch: float) -> float:
        """Of the part on the GPU, relative to the whole GPU. share: 0 to 1."""
        k = self.large + self.small / max(1.0, batch)
        return (share + k) / (1.0 + k)


@dataclass(frozen=True)
class Steady:
    """A steady state. exec_s and throughput_per_s: by worker."""

    exec_s: tuple[float, ...]
    throughput_per_s: tuple[float, ...]
    power_w: float


class Shared:
    """A network on a card with any partition: a `Predictor`."""

    def __init__(self, card: Card, alone: Alone, sharing: Sharing) -> None:
        self.card, self.alone, self.sharing = card, alone, sharing
        self._known: dict[tuple[int, float, tuple[Slice, ...]], Steady] = {}
        self._alone: dict[tuple[int, float, float], tuple[float, float]] = {}

    def steady(self, memory_clock_mhz: int, sm_clock_mhz: float, workers: tuple[Slice, ...]) -> Steady:
        """What the workers do at these clocks, without limits of power."""
        key = (memory_clock_mhz, sm_clock_mhz, workers)
        if key not in self._known:
            self._known[key] = self._work_out(*key)
        return self._known[key]

    def exec_s(self, setting: Setting) -> float:
        """Seconds for a batch of the slowest worker."""
        return max(self._of(setting).exec_s)

    def throughput_per_s(self, setting: Setting) -> float:
        """Requests a second of all workers."""
        return sum(self._of(setting).throughput_per_s)

    def power_w(self, setting: Setting) -> float:
        """While all work all the time; the driver's limit is not applied."""
        return self._of(setting).power_w

    def _of(self, setting: Setting) -> Steady:
        memory, sm = clocks_of(self.card, setting)
        return self.steady(memory, sm, setting.workers)

    def _work_out(self, memory: int, sm: float, workers: tuple[Slice, ...]) -> Steady:
        total = sum(w.percent for w in workers)
        if not workers or total > 100 or any(w.percent <= 0 or w.batch < 1 for w in workers):
            shown = ", ".join(f"{w.percent} % with batch {w.batch}" for w in workers)
            raise PowerError(f"a partition of {shown or 'nothing'}: shares are above 0 and at most 100 % together")
        alone = [self._one(memory, sm, worker.batch) for worker in workers]
        if len(workers) == 1 and workers[0].percent == 100:
            ms, watts = alone[0]
            return Steady((ms / 1000,), (1000 * workers[0].batch / ms,), watts)
        times = [self._exec_ms(ms, worker, total) for (ms, _), worker in zip(alone, workers, strict=True)]
        rates = [worker.batch / ms for ms, worker in zip(times, workers, strict=True)]
        per_item_ms = self.sharing.memory_ms.get(memory, 0.0)
        # The memory serves no more than it can; everybody waits alike.
        stretch = max(1.0, sum(rates) * per_item_ms)
        rates = [rate / stretch for rate in rates]
        idle = float(model.idle_w(self.card, memory, sm))
        active = self.sharing.active_w_per_ghz * float(model.switching_ghz(self.card.voltage, sm))
        busy = 1.0
        watts = idle
        for (ms, power), worker, rate in zip(alone, workers, rates, strict=True):
            once = min(active, 0.9 * max(0.0, power - idle))
            watts += rate * max(0.0, power - idle - once) * ms / worker.batch
            busy *= 1.0 - min(1.0, rate * ms / worker.batch)
        watts += active * (1.0 - busy)
        return Steady(tuple(ms * stretch / 1000 for ms in times), tuple(1000 * rate for rate in rates), watts)

    def _one(self, memory: int, sm: float, batch: float) -> tuple[float, float]:
        key = (memory, sm, batch)
        if key not in self._alone:
            self._alone[key] = self.alone(*key)
        return self._alone[key]

    def _exec_ms(self, alone_ms: float, worker: Slice, total_percent: int) -> float:
        launch = min(self.sharing.launch_ms, 0.9 * alone_ms)
        others = (total_percent - worker.percent) / 100
        slower = 1.0 + self.sharing.slowdown * others
        return launch + (alone_ms - launch) * slower / self.sharing.speed(worker.percent / 100, worker.batch)


def clocks_of(card: Card, setting: Setting) -> tuple[int, float]:
    """(memory, SM) in MHz under load; what is left to the driver is as high as it keeps under load."""
    memory = card.memory_clocks_mhz[-1] if setting.memory_clock_mhz is None else setting.memory_clock_mhz
    sm = card.sustained_mhz if setting.sm_clock_mhz is None else setting.sm_clock_mhz
    return memory, sm


def check_setting(card: Card, setting: Setting, who: str) -> None:
    """A clear error for a clock, a limit, a batch or a partition that the card does not have."""
    for kind, clock, known in (
        ("SM", setting.sm_clock_mhz, card.sm_clocks_mhz),
        ("memory", setting.memory_clock_mhz, card.memory_clocks_mhz),
    ):
        if clock is not None and clock not in known:
            near = min(known, key=lambda value: abs(value - clock))
            raise PowerError(
                f"{who} chose a{'n' if kind == 'SM' else ''} {kind} clock of {clock} MHz, "
                f"which {card.title} does not have; the nearest is {near} MHz"
            )
    low, high = card.limit_w
    if setting.power_limit_w is not None and not low <= setting.power_limit_w <= high:
        raise PowerError(
            f"{who} chose a power limit of {setting.power_limit_w:g} W; {card.title} takes {low:g} to {high:g} W"
        )
    if setting.batch < 1:
        raise PowerError(f"{who} chose a batch of {setting.batch}; it must be at least 1")
    if sum(worker.percent for worker in setting.workers) > 100 or any(w.percent < 1 for w in setting.workers):
        shares = [worker.percent for worker in setting.workers]
        raise PowerError(f"{who} chose shares {shares}; they must be above 0 and make 100 % at most")
    if any(worker.batch < 1 for worker in setting.workers):
        raise PowerError(f"{who} chose batches {[w.batch for w in setting.workers]}; each must be at least 1")
