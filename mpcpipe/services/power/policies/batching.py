"""What a policy for requests adds: how a batch fills, and what the GPU does meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from mpcpipe.services.power.model import idle_w
from mpcpipe.services.power.policies.base import Policy, Scene
from mpcpipe.services.power.setting import Limits, Observation, Setting


@dataclass(frozen=True)
class Fill:
    """How the next batch comes together.

        batch done          wake_s                  full, or until_s
        |-- meanwhile ------|-- clocks change ------|-- the batch runs --|

    until_s: start then with whatever has come, at the latest; None waits until the batch is full. meanwhile: the
    clocks while it fills; None applies those of the batch at once. wake_s: when to go to those of the batch; None
    waits until it is full.
    """

    until_s: float | None = None
    meanwhile: Setting | None = None
    wake_s: float | None = None


class BatchPolicy(Policy):
    """A policy that is asked before each batch."""

    cadence: ClassVar[Literal["interval", "batch"]] = "batch"
    needs = "requests that arrive, and a latency that they must keep"

    def fill(self, observation: Observation, limits: Limits, setting: Setting) -> Fill:
        """How the batch fills for which `decide` has just returned `setting`. Here: wait until it is full."""
        return Fill()


def resting(scene: Scene) -> Setting:
    """The lowest clocks of the card: what it idles at. A card with one memory clock keeps it."""
    return Setting(scene.card.sm_clocks_mhz[0], scene.memory_clocks_mhz[0])


def floor_w(scene: Scene) -> float:
    """Power of the card when it idles at these clocks; what "net" figures leave out."""
    return float(idle_w(scene.card, scene.memory_clocks_mhz[0], scene.card.sm_clocks_mhz[0]))


def start_in_time(observation: Observation, exec_s: float, within_s: float) -> Fill:
    """Start at the latest when the oldest request, waiting or yet to come, has its run left of `within_s`."""
    oldest_s = observation.time_s - (observation.oldest_wait_s or 0.0)
    if not observation.queue:
        oldest_s += 1.0 / max(observation.rate_per_s or 1.0, 0.1)
    return Fill(until_s=oldest_s + within_s - exec_s)
