"""The driver's own power limit, and no clocks: what an administrator does with one command."""

from __future__ import annotations

from mpcpipe.services.power.policies.base import Policy
from mpcpipe.services.power.setting import Limits, Observation, Setting


class PowerLimit(Policy):
    """The cap as the driver's limit; below the lowest that the driver takes, that one, and the cap is not kept."""

    name = "power-limit"
    needs_cap = True

    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """The batch of the start under the limit."""
        low, high = self.scene.card.limit_w
        limit = high if limits.cap_w is None else min(max(limits.cap_w, low), high)
        return Setting(batch=self.scene.start.batch, partition=self.scene.start.partition, power_limit_w=limit)
