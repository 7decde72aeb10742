"""What nobody chose: the driver's own clocks, or the highest ones, with the batch of the start."""

from __future__ import annotations

from dataclasses import replace

from mpcpipe.services.power.policies.base import Policy
from mpcpipe.services.power.setting import Limits, Observation, Setting


class DriverDefault(Policy):
    """The driver chooses clocks; nothing is set. Knows no cap but the card's own."""

    name = "static"

    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """The batch of the start, no clocks."""
        return Setting(batch=self.scene.start.batch, partition=self.scene.start.partition)


class StaticMax(Policy):
    """All clocks locked at their highest."""

    name = "static-max"

    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """The start at the highest clocks."""
        scene = self.scene
        return replace(scene.start, sm_clock_mhz=scene.sm_clocks_mhz[-1], memory_clock_mhz=scene.memory_clocks_mhz[-1])
