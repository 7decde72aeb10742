"""Clipper: the batch size by additive increase and multiplicative decrease, the clocks left to the driver."""

from __future__ import annotations

from typing import ClassVar

from mpcpipe.errors import PowerError
from mpcpipe.services.power.policies.base import Scene
from mpcpipe.services.power.policies.batching import BatchPolicy, Fill
from mpcpipe.services.power.setting import Limits, Observation, Setting


def objective_s(limits: Limits, who: str) -> float:
    """The latency objective; a clear error where a policy needs one and there is none."""
    if limits.slo_s is None:
        raise PowerError(f"{who} needs a latency objective: pass --slo SECONDS")
    return limits.slo_s


class Clipper(BatchPolicy):
    """The largest batch grows by `step` while results come in time, and shrinks to `backoff` of itself when late.

    A batch does not wait to be full: it takes what is there, up to the largest batch.
    Source: Crankshaw et al., "Clipper: A Low-Latency Online Prediction Serving System", NSDI 2017, section 4.3.1.
    """

    name: ClassVar[str] = "clipper"

    def __init__(self, scene: Scene, step: int = 1, backoff: float = 0.9) -> None:
        super().__init__(scene)
        self.step, self.backoff = step, backoff
        self.largest = max(1, scene.start.batch)

    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """One step of the size, from the latency of the last batch's oldest request."""
        objective = objective_s(limits, "clipper")
        if observation.latency_s is not None:
            self.largest = min(self._next(observation.latency_s / objective), self.scene.batches[-1])
        return Setting(batch=self.largest)

    def fill(self, observation: Observation, limits: Limits, setting: Setting) -> Fill:
        """Do not wait."""
        return Fill(until_s=observation.time_s)

    def _next(self, share: float) -> int:
        """share: latency over objective."""
        return self.largest + self.step if share <= 1.0 else max(1, int(self.backoff * self.largest))


class ClipperVariant(Clipper):
    """The variant that GREENDLS's authors compare with: waits for full batches, and halves when late.

    +1 up to 95 % of the objective, -2 up to the objective, half of it above; never below 1.
    Source: GREENDLS's published baselines.
    """

    name: ClassVar[str] = "clipper-variant"

    def fill(self, observation: Observation, limits: Limits, setting: Setting) -> Fill:
        """Wait until it is full."""
        return Fill()

    def _next(self, share: float) -> int:
        if share > 1.0:
            return max(1, self.largest // 2)
        return max(1, self.largest - 2) if share > 0.95 else self.largest + 1
