"""EAIS: batch and SM clock together, from a straight line of latency over batch at each clock."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mpcpipe.services.power.policies.base import Scene
from mpcpipe.services.power.policies.batching import BatchPolicy
from mpcpipe.services.power.policies.clipper import objective_s
from mpcpipe.services.power.policies.tables import Table, ladder
from mpcpipe.services.power.setting import Limits, Observation, Setting

STRIDE = 4
"""Batches are tried downwards in steps of this."""
MARGIN = 1.2
"""Waiting times count this much."""
LARGEST = 256
CLOCKS = 14
"""Tried, evenly spaced."""


def straight_line(batches: tuple[int, ...], exec_s: NDArray[np.float64]) -> tuple[float, float]:
    """(seconds a request, seconds a batch): least squares of exec_s over the batch. exec_s: (batches,)."""
    slope, offset = np.polyfit(np.array(batches, dtype=float), exec_s, 1)
    return float(slope), float(offset)


def largest_batch(line: tuple[float, float], rate_per_s: float, queue: int, age_s: float, slo_s: float) -> int:
    """The largest batch, in steps of 4 from above, that is filled and done in time; 1 where none is."""
    slope, offset = line
    top = int(rate_per_s * (slo_s / MARGIN - age_s) + queue)
    for batch in range(top, -1, -STRIDE):
        wait_s = MARGIN * (age_s + (batch - queue) / rate_per_s)
        if wait_s + slope * batch + offset < slo_s:
            return batch
    return 1


class Eais(BatchPolicy):
    """For each SM clock the largest batch in time; of these the one with the least predicted energy a request.

    The memory clock stays the driver's. The predicted energy is looked up at the nearest batch of the table.
    Source: the variant that GREENDLS's authors compare with, after Yao et al., FGCS 130 (2022), pp. 253-268.
    """

    name: ClassVar[str] = "eais"
    share: ClassVar[float] = 1.0
    """Of the objective, that a batch must be done in."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        memory = scene.start.memory_clock_mhz or scene.memory_clocks_mhz[-1]
        self.clocks = ladder(scene.sm_clocks_mhz, CLOCKS)
        table = Table.of(scene.known(), (memory,), self.clocks, scene.batches)
        self.lines = [straight_line(scene.batches, table.exec_s[0, row]) for row in range(len(self.clocks))]
        every = np.arange(1, LARGEST + 1)
        self.energy_j = np.stack([np.interp(every, scene.batches, row) for row in table.energy_j[0]])

    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """The choice described above."""
        objective = objective_s(limits, self.name)
        best, least = Setting(self.clocks[-1], self.scene.start.memory_clock_mhz, 1), np.inf
        for row, clock in enumerate(self.clocks):
            found = largest_batch(
                self.lines[row],
                observation.rate_per_s or 1.0,
                observation.queue or 0,
                observation.oldest_wait_s or 0.0,
                self.share * objective,
            )
            batch = min(max(found, 1), self.scene.batches[-1], LARGEST)
            energy = float(self.energy_j[row, batch - 1])
            if energy < least:
                best, least = Setting(clock, self.scene.start.memory_clock_mhz, batch), energy
        return best


class EaisLlm(Eais):
    """As GREENDLS's authors compare with where they serve a language model: within 0.9 of the objective."""

    name: ClassVar[str] = "eais-llm"
    share: ClassVar[float] = 0.9
