"""A service that says every so many steps how long they took, and a policy that halves a GPU's clock."""

from __future__ import annotations

import dataclasses
from typing import Any

from mpcpipe.errors import PowerError
from mpcpipe.services.base import RunFacts, Service, StepFacts
from mpcpipe.services.power.policies.base import Policy
from mpcpipe.services.power.setting import Limits, Observation, Setting


class Heartbeat(Service):
    """options: every, a number of steps."""

    def begin(self, run: RunFacts) -> None:
        """Check the options: what is raised here is told, and the training goes on without this service."""
        self.every = self.options.get("every", 10)
        if not isinstance(self.every, int) or self.every < 1:
            raise PowerError(f"services.options.heartbeat.every is {self.every!r}; it must be a number of steps")
        self.name, self.seconds, self.steps = run.name, 0.0, 0

    def step(self, done: StepFacts) -> None:
        """In the trainer's thread: be quick."""
        self.seconds += done.end_s - done.begin_s
        self.steps += done.steps
        if done.step % self.every == 0:
            self.tell(f"step {done.step}: {self.seconds / self.steps:.3f} s a step so far")

    def end(self) -> dict[str, Any]:
        """For the report."""
        return {"steps": self.steps, "seconds": self.seconds}


class HalfSpeed(Policy):
    """The supported clock nearest to half of the highest, whatever happens. Not a good idea; a short one."""

    name = "half-speed"

    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """The same every time."""
        clock = self.scene.nearest_sm(self.scene.sm_clocks_mhz[-1] / 2)
        return dataclasses.replace(observation.setting, sm_clock_mhz=clock)
