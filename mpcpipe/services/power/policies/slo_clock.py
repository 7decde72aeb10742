"""SLO-aware clock scaling (after Yu et al.): a fixed batch, and the lowest SM clock that is still in time."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from mpcpipe.services.power.policies.base import Scene
from mpcpipe.services.power.policies.batching import BatchPolicy
from mpcpipe.services.power.policies.clipper import objective_s
from mpcpipe.services.power.policies.tables import Table, ladder
from mpcpipe.services.power.setting import Limits, Observation, Setting

CLOCKS = 27
"""Tried, evenly spaced."""


class SloClock(BatchPolicy):
    """f = min {f : wait + t(b, f) <= SLO}; the highest clock after a violation, until `hold` batches were in time.

    batch: the fixed size; without it the largest whose filling leaves half of the objective, at the first rate seen.
    wait: until the batch is full, at the rate seen.
    Source: our reading of the comparison in GREENDLS; probably Yu, Kim and Seo, HPCA 2023, which we could not confirm.
    """

    name: ClassVar[str] = "slo-clock"

    def __init__(self, scene: Scene, batch: int | None = None, hold: int = 4) -> None:
        super().__init__(scene)
        self.batch = batch
        self.hold = hold
        self.held = 0
        self.times: dict[int, list[float]] = {}
        self.memory = scene.start.memory_clock_mhz
        self.clocks = ladder(scene.sm_clocks_mhz, CLOCKS)
        self.table = Table.of(scene.known(), (self.memory or scene.memory_clocks_mhz[-1],), self.clocks, scene.batches)

    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """The lowest clock in time."""
        objective = objective_s(limits, self.name)
        rate = observation.rate_per_s or 1.0
        if self.batch is None:
            fitting = [b for b in self.scene.batches if b / rate <= objective / 2]
            self.batch = fitting[-1] if fitting else self.scene.batches[0]
        late = observation.latency_s is not None and observation.latency_s > objective
        self.held = self.hold if late else max(0, self.held - 1)
        wait_s = (observation.oldest_wait_s or 0.0) + max(0, self.batch - (observation.queue or 0)) / rate
        if self.batch not in self.times:
            rows = self.table.exec_s[0]
            self.times[self.batch] = [float(np.interp(self.batch, self.scene.batches, row)) for row in rows]
        times = self.times[self.batch]
        enough = [clock for clock, exec_s in zip(self.clocks, times, strict=True) if wait_s + exec_s <= objective]
        return Setting(self.clocks[-1] if self.held or not enough else enough[0], self.memory, self.batch)
