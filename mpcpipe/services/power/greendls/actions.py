"""The agent's actions: every combination of memory clock, SM clock and batch."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpcpipe.services.power.policies.base import Scene
from mpcpipe.services.power.policies.tables import ladder
from mpcpipe.services.power.setting import Setting

BATCHES = (1, 2, *range(4, 65, 4))
"""18 sizes."""
MOST_CLOCKS = 27
LEAST_MHZ = 500
SLOW_MHZ = 5000
FILLED = 0.9


@dataclass(frozen=True)
class Actions:
    """memory_clocks_mhz, sm_clocks_mhz, batches: the axes; the batch varies fastest.

    On an RTX 3080 Ti 5 x 27 x 18 = 2,430 actions. A card with one memory clock has an axis of one.
    """

    memory_clocks_mhz: tuple[int, ...]
    sm_clocks_mhz: tuple[int, ...]
    batches: tuple[int, ...] = BATCHES

    def __len__(self) -> int:
        return len(self.memory_clocks_mhz) * len(self.sm_clocks_mhz) * len(self.batches)

    def setting(self, action: int) -> Setting:
        """What an action means."""
        rest, batch = divmod(action, len(self.batches))
        memory, sm = divmod(rest, len(self.sm_clocks_mhz))
        return Setting(self.sm_clocks_mhz[sm], self.memory_clocks_mhz[memory], self.batches[batch])

    def action(self, setting: Setting) -> int:
        """The action that means exactly this."""
        memory = self.memory_clocks_mhz.index(setting.memory_clock_mhz or 0)
        sm = self.sm_clocks_mhz.index(setting.sm_clock_mhz or 0)
        return (memory * len(self.sm_clocks_mhz) + sm) * len(self.batches) + self.batches.index(setting.batch)

    @classmethod
    def of(cls, scene: Scene) -> Actions:
        """For a place: its memory clocks, at most 27 of its SM clocks from 500 MHz, the batches up to its largest."""
        clocks = tuple(clock for clock in scene.sm_clocks_mhz if clock >= LEAST_MHZ) or scene.sm_clocks_mhz
        batches = tuple(batch for batch in BATCHES if batch <= scene.batches[-1])
        return cls(scene.memory_clocks_mhz, ladder(clocks, MOST_CLOCKS), batches)

    def explorable(self, rate_per_s: float, slo_s: float, slow_memory: bool) -> NDArray[np.bool_]:
        """Which actions a random choice may be: (actions,).

        Not those that take more than 0.9 of the objective to fill (the smallest batch always may be), nor, without
        slow_memory, those at 5000 MHz and less on a card whose memory is faster.
        Source: GREENDLS's published agent, which has no slow_memory.
        """
        memory = np.array(self.memory_clocks_mhz)
        fast = slow_memory | (memory > SLOW_MHZ) | (memory.max() <= SLOW_MHZ)
        filled = np.arange(len(self.batches)) < self.filled(rate_per_s, slo_s)
        shape = (len(memory), len(self.sm_clocks_mhz), len(self.batches))
        return np.broadcast_to(fast[:, None, None] & filled, shape).reshape(-1)

    def filled(self, rate_per_s: float, slo_s: float) -> int:
        """How many of the batches, from the smallest, can be filled within 0.9 of the objective; at least one."""
        return max(1, sum(batch / rate_per_s <= FILLED * slo_s for batch in self.batches))

    def hurry(self, action: int, queue: int, age_s: float, exec_s: float, within_s: float) -> int:
        """The action; the highest clocks and what waits, where its run would end too late for the oldest request."""
        if not queue or age_s + exec_s <= within_s:
            return action
        fitting = [batch for batch in self.batches if batch <= queue] or [self.batches[0]]
        return self.action(Setting(self.sm_clocks_mhz[-1], self.memory_clocks_mhz[-1], fitting[-1]))

    def text(self) -> str:
        """For the header of a weights file."""
        return json.dumps([self.memory_clocks_mhz, self.sm_clocks_mhz, self.batches])

    @classmethod
    def from_text(cls, text: str) -> Actions:
        """Back from `text`."""
        memory, sm, batches = json.loads(text)
        return cls(tuple(memory), tuple(sm), tuple(batches))
