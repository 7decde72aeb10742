"""What a predictor says of all clocks and batches, in arrays: policies that search ask it once, not each time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpcpipe.services.power.policies.base import Predictor
from mpcpipe.services.power.setting import Setting

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Table:
    """exec_s, power_w, energy_j: (memory clocks, SM clocks, batches); energy is a request's, with idle power."""

    memory_clocks_mhz: tuple[int, ...]
    sm_clocks_mhz: tuple[int, ...]
    batches: tuple[int, ...]
    exec_s: Floats
    power_w: Floats

    @property
    def energy_j(self) -> Floats:
        """Of one request."""
        found: Floats = self.exec_s * self.power_w / np.array(self.batches)
        return found

    def setting(self, flat: int) -> Setting:
        """The setting at an index of the flattened arrays."""
        memory, sm, batch = np.unravel_index(flat, self.exec_s.shape)
        return Setting(self.sm_clocks_mhz[int(sm)], self.memory_clocks_mhz[int(memory)], self.batches[int(batch)])

    def request_j(self, setting: Setting) -> float:
        """Energy of one request at clocks of the table and any batch."""
        memory = self.memory_clocks_mhz.index(setting.memory_clock_mhz or 0)
        sm = self.sm_clocks_mhz.index(setting.sm_clock_mhz or 0)
        return float(np.interp(setting.batch, self.batches, self.energy_j[memory, sm]))

    @classmethod
    def of(cls, predictor: Predictor, memory: tuple[int, ...], sm: tuple[int, ...], batches: tuple[int, ...]) -> Table:
        """Ask for every combination."""
        shape = (len(memory), len(sm), len(batches))
        settings = [Setting(s, m, b) for m in memory for s in sm for b in batches]
        return cls(
            memory,
            sm,
            batches,
            np.array([predictor.exec_s(setting) for setting in settings]).reshape(shape),
            np.array([predictor.power_w(setting) for setting in settings]).reshape(shape),
        )


def ladder(clocks: tuple[int, ...], most: int) -> tuple[int, ...]:
    """At most that many of the clocks, evenly spaced, both ends among them."""
    if len(clocks) <= most:
        return clocks
    return tuple(clocks[i] for i in np.linspace(0, len(clocks) - 1, most).round().astype(int))
