"""GREENDLS: a trained dueling Q-network chooses memory clock, SM clock and batch; a guard bounds the waiting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from mpcpipe.errors import PowerError
from mpcpipe.services.power.greendls.reward import MARGIN, guarded, state
from mpcpipe.services.power.greendls.weights import load_policy
from mpcpipe.services.power.policies.base import Scene
from mpcpipe.services.power.policies.batching import BatchPolicy, Fill, resting, start_in_time
from mpcpipe.services.power.policies.clipper import objective_s
from mpcpipe.services.power.setting import Limits, Observation, Setting

KEEP = 0.05
"""A change of clocks must promise this much more; of rewards in the horizon of the agent."""


class GreenDLS(BatchPolicy):
    """The published agent's decision, with weights from `mpcpipe power train`.

    weights: a file of it. With weights that were trained `paper_exact` the policy acts as published: the greedy choice
    over all actions, the guard once, the memory clock at its lowest only between a batch and the next decision.
    Otherwise the choice is among what can be filled in time, clocks are kept unless others are clearly better, a batch
    starts before its oldest request gets late, and where that is too late already the highest clocks are taken.
    Source: "GREENDLS", HIT-HPC-Group/GreenDLS (its authors' published agent).
    """

    name: ClassVar[str] = "greendls"

    def __init__(self, scene: Scene, weights: str | Path | None = None) -> None:
        super().__init__(scene)
        if weights is None:
            raise PowerError("greendls needs a trained agent: pass --agent FILE, made by `mpcpipe power train`")
        self.network, self.actions, learning = load_policy(Path(weights))
        self.paper_exact = learning.paper_exact
        strange = [
            f"{kind} clock of {clock} MHz"
            for kind, wanted, there in (
                ("memory", self.actions.memory_clocks_mhz, scene.memory_clocks_mhz),
                ("SM", self.actions.sm_clocks_mhz, scene.sm_clocks_mhz),
            )
            for clock in wanted
            if clock not in there
        ]
        if strange:
            raise PowerError(
                f"{weights}: was trained for another card: it may choose a {strange[0]}, which {scene.card.title} or "
                "its grid has not; train one with `mpcpipe power train`"
            )

    @torch.no_grad()
    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """The action with the highest Q, and the guard over its batch."""
        objective = objective_s(limits, self.name)
        rate = observation.rate_per_s or 1.0
        values = self.network(torch.tensor([state(observation, objective, self.scene.card.tdp_w)])).squeeze(0).numpy()
        action = int(values.argmax()) if self.paper_exact else self._chosen(values, observation, rate, objective)
        setting = self.actions.setting(action)
        batch = guarded(setting.batch, observation.queue or 0, observation.oldest_wait_s or 0.0, rate, objective)
        return replace(setting, batch=batch)

    def _chosen(self, values: NDArray[np.float32], observation: Observation, rate: float, objective: float) -> int:
        """The best action that can be filled in time; the clocks as they are where that is nearly as good."""
        actions = self.actions
        table = values.reshape(len(actions.memory_clocks_mhz), len(actions.sm_clocks_mhz), len(actions.batches))
        table = table[:, :, : actions.filled(rate, objective)]
        memory, sm, batch = (int(i) for i in np.unravel_index(int(table.argmax()), table.shape))
        now = observation.setting
        if now.memory_clock_mhz in actions.memory_clocks_mhz and now.sm_clock_mhz in actions.sm_clocks_mhz:
            same = (
                actions.memory_clocks_mhz.index(now.memory_clock_mhz),
                actions.sm_clocks_mhz.index(now.sm_clock_mhz),
            )
            if table[same].max() >= table[memory, sm, batch] - KEEP:
                memory, sm, batch = *same, int(table[same].argmax())
        action = (memory * len(actions.sm_clocks_mhz) + sm) * len(actions.batches) + batch
        exec_s = self.scene.known().exec_s(actions.setting(action))
        waiting = observation.queue or 0, observation.oldest_wait_s or 0.0
        return actions.hurry(action, *waiting, exec_s, MARGIN * objective)

    def fill(self, observation: Observation, limits: Limits, setting: Setting) -> Fill:
        """As published, the memory rests until the clocks are set, which is at once; ours starts in time."""
        if self.paper_exact:
            rest = replace(setting, memory_clock_mhz=resting(self.scene).memory_clock_mhz)
            return Fill(meanwhile=rest, wake_s=observation.time_s)
        exec_s = self.scene.known().exec_s(setting)
        return start_in_time(observation, exec_s, MARGIN * objective_s(limits, self.name))
