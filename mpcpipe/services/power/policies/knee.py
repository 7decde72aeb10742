"""One clock for everything: the highest one before the voltage rises. Needs to know nothing but the card."""

from __future__ import annotations

from dataclasses import replace

from mpcpipe.services.power.policies.base import Policy
from mpcpipe.services.power.setting import Limits, Observation, Setting


class Knee(Policy):
    """The SM clock at the knee of V(f), the highest memory clock; a step lower whenever a cap is exceeded."""

    name = "knee"

    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """The knee, or less."""
        scene = self.scene
        knee = scene.nearest_sm(min(scene.card.voltage.knee_mhz, scene.sm_clocks_mhz[-1]))
        now = observation.setting.sm_clock_mhz
        above = limits.cap_w is not None and observation.power_w is not None and observation.power_w > limits.cap_w
        if above and now is not None and now <= knee:
            knee = scene.sm_clocks_mhz[max(0, scene.sm_clocks_mhz.index(scene.nearest_sm(now)) - 1)]
        elif now is not None and now < knee:
            knee = now
        return replace(scene.start, sm_clock_mhz=knee, memory_clock_mhz=scene.memory_clocks_mhz[-1])
