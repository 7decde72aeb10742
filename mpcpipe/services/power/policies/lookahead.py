"""Look ahead over the predictors: each decision weighs all clocks and batches by energy a request, waiting included."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from mpcpipe.services.power.model import idle_w
from mpcpipe.services.power.policies.base import Scene
from mpcpipe.services.power.policies.batching import BatchPolicy, Fill, start_in_time
from mpcpipe.services.power.policies.clipper import objective_s
from mpcpipe.services.power.policies.tables import Table, ladder
from mpcpipe.services.power.setting import Limits, Observation, Setting

BATCHES = (1, 2, 3, *range(4, 64, 4), *range(64, 128, 8), *range(128, 257, 32))
CLOCKS = 48
"""Tried, evenly spaced."""
MARGIN = 0.95
"""Of the objective, what the oldest request may take."""
KEEP = 0.02
"""A change of clocks must save this much."""
BUSY = 0.9
"""Largest share of time that batches may take: queues grow without bound above."""


class Lookahead(BatchPolicy):
    """GREENDLS's problem without its agent: the predictors that the agent learns from are enough to decide.

    A cycle of b requests takes b / rate seconds, of which t(b) at the batch's power and the rest at the idle power of
    the same clocks. Among clocks and batches whose oldest request is done in time the cycle with the least energy a
    request is chosen, and a batch starts, full or not, when its oldest request would get late otherwise.
    """

    name: ClassVar[str] = "lookahead"

    def __init__(self, scene: Scene, margin: float = MARGIN) -> None:
        super().__init__(scene)
        self.margin = margin
        batches = tuple(batch for batch in BATCHES if batch <= scene.batches[-1])
        self.table = Table.of(scene.known(), scene.memory_clocks_mhz, ladder(scene.sm_clocks_mhz, CLOCKS), batches)
        self.batches = np.array(batches)
        self.waiting_w = np.array(
            [
                [float(idle_w(scene.card, memory, sm)) for sm in self.table.sm_clocks_mhz]
                for memory in scene.memory_clocks_mhz
            ]
        )[:, :, None]

    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """The cheapest cycle in time; the fastest clocks and all that waits where there is none."""
        objective = objective_s(limits, self.name)
        rate = observation.rate_per_s or 1.0
        queue, age_s = observation.queue or 0, observation.oldest_wait_s or 0.0
        exec_s = self.table.exec_s
        fill_s = np.maximum(0.0, (self.batches - queue) / rate)
        cycle_s = self.batches / rate
        in_time = (age_s + fill_s + exec_s <= self.margin * objective) & (exec_s <= BUSY * cycle_s)
        if not in_time.any():
            return self._hurry(queue)
        energy_j = (exec_s * self.table.power_w + np.maximum(0.0, cycle_s - exec_s) * self.waiting_w) / self.batches
        energy_j = np.where(in_time, energy_j, np.inf)
        best = int(energy_j.argmin())
        stay = self._same_clocks(observation.setting)
        if stay is not None and energy_j[stay].min() <= energy_j.flat[best] * (1 + KEEP):
            return Setting(*stay_clocks(self.table, stay), int(self.batches[int(energy_j[stay].argmin())]))
        return self.table.setting(best)

    def fill(self, observation: Observation, limits: Limits, setting: Setting) -> Fill:
        """Until the oldest request must start."""
        exec_s = self.scene.known().exec_s(setting)
        return start_in_time(observation, exec_s, self.margin * objective_s(limits, self.name))

    def _same_clocks(self, setting: Setting) -> tuple[int, int] | None:
        memory, sm = setting.memory_clock_mhz, setting.sm_clock_mhz
        if memory not in self.table.memory_clocks_mhz or sm not in self.table.sm_clocks_mhz:
            return None
        return self.table.memory_clocks_mhz.index(memory), self.table.sm_clocks_mhz.index(sm)

    def _hurry(self, queue: int) -> Setting:
        fitting = self.batches[self.batches <= max(1, queue)]
        return Setting(self.table.sm_clocks_mhz[-1], self.table.memory_clocks_mhz[-1], int(fitting[-1]))


def stay_clocks(table: Table, at: tuple[int, int]) -> tuple[int, int]:
    """(SM, memory) clock in MHz at a pair of indices."""
    return table.sm_clocks_mhz[at[1]], table.memory_clocks_mhz[at[0]]
