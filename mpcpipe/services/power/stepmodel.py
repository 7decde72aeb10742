"""What a policy may believe of a training step before anything is measured: the card's physics at full load.

A policy that works to a power cap with a model of the network (PctoDL, the receding horizon) asks this one beside a
training: one worker, all of the GPU, the job's own batch. What is measured corrects it from there.
"""

from __future__ import annotations

from collections.abc import Mapping

from mpcpipe.services.power.cap import MEMORY_USED
from mpcpipe.services.power.clockplan import Curve
from mpcpipe.services.power.setting import Setting


class StepModel:
    """A `Predictor` of a step's computing, in that at the highest clocks. curves: by memory clock, that may be set.

    All computing goes with the SM clock, or with the memory where that is slower: half of its rate is used, as the
    service assumes where it chooses a memory clock for a cap.
    """

    def __init__(self, curves: Mapping[int, Curve]) -> None:
        self._curves = dict(curves)

    def exec_s(self, setting: Setting) -> float:
        """Of one; longer at lower clocks."""
        highest, (memory, clock) = max(self._curves), self._clocks(setting)
        return max(self._curves[memory].slower(clock), MEMORY_USED * highest / memory)

    def throughput_per_s(self, setting: Setting) -> float:
        """So many of them."""
        return 1.0 / self.exec_s(setting)

    def power_w(self, setting: Setting) -> float:
        """While it computes."""
        memory, clock = self._clocks(setting)
        return self._curves[memory].busy_w(clock)

    def _clocks(self, setting: Setting) -> tuple[int, int]:
        """Memory and SM clock; the highest where the driver has the choice, or there is no curve."""
        memory = setting.memory_clock_mhz if setting.memory_clock_mhz in self._curves else max(self._curves)
        return memory, setting.sm_clock_mhz or self._curves[memory].clocks_mhz[-1]
