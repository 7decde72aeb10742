"""BatchDVFS and its relatives: batch first, clocks when the batch is at its end, by what the sensor says alone.

Source: Nabavinejad, Reda, Ebrahimi, "Coordinated Batching and DVFS for DNN Inference on GPU Accelerators", TPDS 2022,
and the variants that PctoDL's authors compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mpcpipe.services.power.policies.base import Policy, Scene
from mpcpipe.services.power.setting import Limits, Observation, Setting

LEVELS = 10


def levels(clocks_mhz: Sequence[int], count: int = LEVELS) -> tuple[int, ...]:
    """`count` of the clocks, evenly, with the lowest and the highest; all of them where there are fewer."""
    if len(clocks_mhz) <= count:
        return tuple(clocks_mhz)
    return tuple(clocks_mhz[round(i * (len(clocks_mhz) - 1) / (count - 1))] for i in range(count))


def ladder(batches: Sequence[int], count: int = 24) -> tuple[int, ...]:
    """About `count` batch sizes between the smallest and the largest, evenly in ratio."""
    low, high = batches[0], batches[-1]
    return tuple(sorted({round(low * (high / low) ** (i / (count - 1))) for i in range(count)}))


class BatchDvfs(Policy):
    """Binary search over the batch; a level of the SM clock only when the batch cannot go further.

    alpha: of the cap, from where on it holds. Ten clocks, as published. Like the published one it keeps the bounds of
    its search, so a batch that was once too much is tried again only from the other side.
    """

    name = "batch-dvfs"
    needs_cap = True

    def __init__(self, scene: Scene, alpha: float = 0.8, levels_count: int = LEVELS) -> None:
        super().__init__(scene)
        self.alpha = alpha
        self.clocks = levels(scene.sm_clocks_mhz, levels_count)
        self.least, self.most = scene.batches[0], scene.batches[-1]
        self.low, self.high = self.least, self.most

    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """One step of the search."""
        power, cap, now = observation.power_w, limits.cap_w, observation.setting
        if power is None or cap is None or self.alpha * cap <= power <= cap:
            return now
        level, batch = nearest_index(self.clocks, now.sm_clock_mhz or self.clocks[-1]), now.batch
        if power < self.alpha * cap:
            if batch >= self.most:
                level += 1
            else:
                self.low, self.high = (batch, self.most) if batch == self.high else (batch, self.high)
                batch = -(-(self.low + self.high) // 2)
        elif batch <= self.least:
            level -= 1
        else:
            self.low, self.high = (self.least, batch) if batch == self.low else (self.low, batch)
            batch = (self.low + self.high) // 2
        level = min(max(level, 0), len(self.clocks) - 1)
        batch = min(max(batch, self.least), self.most)
        return replace(now, sm_clock_mhz=self.clocks[level], batch=batch, partition=())


class BatchDvfsVariant(Policy):
    """As PctoDL's authors compare with: the same search over a ladder of batches, and finer clocks near the cap.

    alpha 0.97; the SM clock goes 4 supported steps at a time, or 1 within 15 W of the cap.
    """

    name = "batch-dvfs-variant"
    needs_cap = True

    def __init__(self, scene: Scene, alpha: float = 0.97) -> None:
        super().__init__(scene)
        self.alpha = alpha
        self.rungs = ladder(scene.batches)
        self.low, self.high = 0, len(self.rungs) - 1

    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """One step of the search."""
        power, cap, now = observation.power_w, limits.cap_w, observation.setting
        if power is None or cap is None or self.alpha * cap <= power <= cap:
            return now
        clocks, last = self.scene.sm_clocks_mhz, len(self.rungs) - 1
        level, rung = nearest_index(clocks, now.sm_clock_mhz or clocks[-1]), nearest_index(self.rungs, now.batch)
        step = 1 if abs(power - cap) <= 15 else 4
        if power < self.alpha * cap:
            if rung == last:
                level += step
            else:
                self.low, self.high = (rung, last) if rung >= self.high else (rung, self.high)
                rung = -(-(self.low + self.high) // 2)
        elif rung == 0:
            level -= step
        else:
            self.low, self.high = (0, rung) if rung <= self.low else (self.low, rung)
            rung = (self.low + self.high) // 2
        level = min(max(level, 0), len(clocks) - 1)
        return replace(now, sm_clock_mhz=clocks[level], batch=self.rungs[rung], partition=())


class DvfsOnly(Policy):
    """The same band, clocks alone: one level up or down."""

    name = "dvfs"
    needs_cap = True

    def __init__(self, scene: Scene, alpha: float = 0.95) -> None:
        super().__init__(scene)
        self.alpha = alpha

    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """A level further, or none. Levels are four supported clocks apart."""
        power, cap, now = observation.power_w, limits.cap_w, observation.setting
        if power is None or cap is None or self.alpha * cap <= power <= cap:
            return now
        clocks = self.scene.sm_clocks_mhz[::4]
        level = nearest_index(clocks, now.sm_clock_mhz or clocks[-1]) + (1 if power < cap else -1)
        return replace(now, sm_clock_mhz=clocks[min(max(level, 0), len(clocks) - 1)])


def nearest_index(values: Sequence[int], wanted: float) -> int:
    """Index of the value nearest to what is wanted; the lower of two."""
    return min(range(len(values)), key=lambda i: (abs(values[i] - wanted), values[i]))
