"""Morak: fixed equal shares of the GPU; batch while latency allows, clocks otherwise.

Source: Liu, Ma, Zhang, Zheng, IEEE MASS 2023, in the form that PctoDL's authors compare with; the paper itself was not
at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mpcpipe.services.power.partitioning import checked_shares, equal
from mpcpipe.services.power.policies.base import Policy, Scene
from mpcpipe.services.power.policies.batch_dvfs import ladder, nearest_index
from mpcpipe.services.power.setting import Limits, Observation, Setting, Slice

_STEPS = ((0.20, 10), (0.10, 5), (0.05, 2))


class Morak(Policy):
    """alpha: of the cap, beta: of the latency objective, from where on it holds. slo_s: where the limits name none.
    shares: of the GPU, in percent, for other ones than equal ones."""

    name = "morak"
    needs_cap = True

    def __init__(
        self,
        scene: Scene,
        workers: int = 2,
        alpha: float = 0.97,
        beta: float = 0.95,
        slo_s: float = 0.2,
        shares: Sequence[int] = (),
    ) -> None:
        super().__init__(scene)
        self.shares = checked_shares(shares, scene.max_workers)
        self.workers, self.alpha, self.beta, self.slo_s = min(workers, scene.max_workers), alpha, beta, slo_s
        self.rungs = ladder(scene.batches)

    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """One step of batch or clock; larger ones further from the cap."""
        now, cap, power = self._shared(observation.setting), limits.cap_w, observation.power_w
        if power is None or cap is None or self.alpha * cap < power <= 1.02 * cap:
            return now
        clocks, rungs = self.scene.sm_clocks_mhz, self.rungs
        level = nearest_index(clocks, now.sm_clock_mhz or clocks[-1])
        rung = nearest_index(rungs, now.batch)
        slo = self.beta * (limits.slo_s or self.slo_s)
        quick = observation.exec_s is None or observation.exec_s <= slo
        gap = abs(cap - power) / cap
        step = next((size for least, size in _STEPS if gap > least), 1)
        if power < cap:
            if quick and rung < len(rungs) - 1:
                rung += step
            else:
                level += step
        elif not quick and rung > 0:
            rung -= step
        else:
            level -= step
        level, rung = min(max(level, 0), len(clocks) - 1), min(max(rung, 0), len(rungs) - 1)
        return self._shared(replace(now, sm_clock_mhz=clocks[level], batch=rungs[rung]))

    def _shared(self, setting: Setting) -> Setting:
        if self.workers == 1:
            return replace(setting, partition=())
        percents = self.shares or tuple(part.percent for part in equal(self.workers, setting.batch))
        return replace(setting, partition=tuple(Slice(percent, setting.batch) for percent in percents))
