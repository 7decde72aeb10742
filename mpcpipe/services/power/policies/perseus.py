"""perseus: the slowest clocks that leave the step its time, from the graph of the step with communication as nodes.

    spans of a step ──> graph ──> longest path at every clock ──> the cheapest clock that is done by the target

The target is the step's own time at full clocks, or a later one: the job's deadline, or what the slowest party needs
(the one number that parties exchange). The GPU of a party is all its workers', so it gets one clock for the step;
`clockplan.clocks_of_actions` has the frontier by minimum cuts for workers with GPUs of their own and long actions.

Source: Chung et al., "Reducing Energy Bloat in Large Model Training" (Perseus), SOSP 2024. Ours: communication nodes,
and that it goes on trying: a little lower while steps are on time, and back up where one became longer (after EnvPipe,
Choi et al., USENIX ATC 2023, which goes the other way).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mpcpipe.services.power.clockplan import Curve, clocks_of_gpus, fastest_s, step_energy_j
from mpcpipe.services.power.phases import PhasePlan, plan_phases
from mpcpipe.services.power.policies.base import Policy, Scene
from mpcpipe.services.power.setting import Limits, Observation, Setting
from mpcpipe.services.power.stepgraph import Part, longest_s

TOLERANCE = 0.005
"""By so much the predicted step may be longer than the target; half of what is promised."""

PROMISED = 0.01
"""A measured step that is longer than the target by more takes the clock up again."""

PROBE = 0.04
"""By so much of the clock a lower one is tried, while steps are on time."""

WORTH_PHASES = 0.01
"""Clocks for actions must save so much more than one for the step."""

WARM_UP, KEPT = 2, 3
"""Steps before the first decision; steps and proposals that a decision looks back on."""


class Perseus(Policy):
    """One clock for a party's GPU. `watch` is told each step's graph, at the clock that it ran at."""

    name = "perseus"

    def __init__(self, scene: Scene, **options: Any) -> None:
        super().__init__(scene)
        memory = scene.start.memory_clock_mhz or scene.memory_clocks_mhz[-1]
        self.curve = Curve(scene.card, memory, scene.sm_clocks_mhz, float(options.get("stretch", 1.0)))
        self._graph: list[Part] | None = None
        self._proposed: deque[int] = deque(maxlen=KEPT)
        self._steps_s: deque[float] = deque(maxlen=KEPT)
        self._full_s: list[float] = []
        self._seen = 0
        self._floor_mhz = scene.sm_clocks_mhz[0]
        self._probed_mhz: int | None = None
        self._clock_mhz: int | None = None
        self.phases: PhasePlan | None = None
        self.call_s = scene.card.transition.call_s
        self._phases_failed = False
        self.target_s: float | None = None
        self.common_s = 0.0

    @property
    def full_clock_mhz(self) -> int:
        """The highest that the card keeps."""
        return min(self.curve.clocks_mhz[-1], self.scene.card.sustained_mhz)

    @property
    def fastest_s(self) -> float | None:
        """The shortest step here, at full clocks; None before enough is known."""
        return statistics.median(self._full_s) if len(self._full_s) >= 1 and self._seen > WARM_UP else None

    def fastest_at_s(self, ceiling_mhz: int | None) -> float | None:
        """The shortest step if no clock may be above the ceiling."""
        fastest, graph = self.fastest_s, self._graph
        if fastest is None or graph is None or ceiling_mhz is None:
            return fastest
        slower = self.curve.slower(ceiling_mhz)
        return fastest + longest_s(graph, lambda worker: slower) - fastest_s(graph)

    def watch(self, parts: Sequence[Part], step_s: float, clock_mhz: float | None) -> None:
        """A step's graph and time, and the clock at which it ran. The graph is kept as it would be at full clocks."""
        self._seen += 1
        if self._seen <= WARM_UP:
            return
        self._base(clock_mhz)
        slower = self.curve.slower(round(clock_mhz)) if clock_mhz else 1.0
        plan = self.phases
        by = {} if plan is None else {name: self.curve.slower(clock) for name, clock in plan.clocks_mhz.items()}
        at_full = [replace(part, compute_s=part.compute_s / by.get(part.name, slower)) for part in parts]
        if plan is not None:
            slower = math.inf  # no step at full clocks, whatever the clock was at the moment
        self._graph = at_full
        self._steps_s.append(step_s)
        if slower < 1.0 + PROMISED:
            self._full_s = [*self._full_s[-(4 * KEPT) :], step_s]

    def _base(self, clock_mhz: float | None) -> None:
        """What the card keeps without a lock of ours is its full clock here: its power limit or heat may be in the way
        of a higher one."""
        if clock_mhz is None or (self._clock_mhz is not None and clock_mhz <= self.full_clock_mhz):
            return
        kept = tuple(clock for clock in self.scene.sm_clocks_mhz if clock <= clock_mhz)
        self.curve = replace(self.curve, clocks_mhz=kept or self.scene.sm_clocks_mhz[:1])

    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """The clock that is cheapest and on time, the highest of the last proposals; the driver's before that."""
        fastest = self.fastest_s
        if fastest is None or self._graph is None:
            return observation.setting
        self.target_s = max(fastest, self.common_s, limits.deadline_s or 0.0)
        self._learn()
        self._proposed.append(self._clock_for(self._graph))
        clock = max(self._proposed)
        if self._probed_mhz is not None:
            clock = min(clock, self._probed_mhz)
        clock = self._probe(max(self._floor_mhz, clock))
        if clock != self._clock_mhz:
            self._steps_s.clear()
        self._clock_mhz = clock
        self._plan_phases(clock)
        return replace(observation.setting, sm_clock_mhz=clock)

    def _plan_phases(self, clock_mhz: int) -> None:
        """Clocks for actions, where the model says that they save more than one clock, and no step was too long."""
        assert self.target_s is not None and self.fastest_s is not None and self._graph is not None
        if self._phases_failed:
            self.phases = None
            return
        gpus = [0] * (1 + max(part.worker for part in self._graph))
        change_s, slack_s = self.call_s + self.scene.card.transition.median_s, TOLERANCE * self.target_s
        plan = plan_phases(self._graph, self.curve, gpus, {0: clock_mhz}, slack_s, change_s, self.target_s)
        one_j = step_energy_j(self._graph, self.curve, {0: clock_mhz}, gpus, self.target_s)
        before = self.phases
        self.phases = plan if plan is not None and plan.joules <= (1 - WORTH_PHASES) * one_j else None
        if (before is None) != (self.phases is None):
            self._steps_s.clear()

    def _clock_for(self, parts: Sequence[Part]) -> int:
        """The graph's time is a little less than the step's (checks, bookkeeping); its allowance is the same."""
        assert self.target_s is not None and self.fastest_s is not None
        allowed_s = fastest_s(parts) + (self.target_s - self.fastest_s) + TOLERANCE * self.target_s
        gpus = [0] * (1 + max(part.worker for part in parts))
        return clocks_of_gpus(parts, self.curve, gpus, allowed_s)[0]

    def _probe(self, clock_mhz: int) -> int:
        """A little lower, if all steps since the last change were on time and it is cheaper. To the graph a wait is a
        wait; really it gets shorter where others send less at the same time, and only trying shows how much."""
        assert self.target_s is not None and self._graph is not None
        on_time = [step_s <= (1 + TOLERANCE) * self.target_s for step_s in self._steps_s]
        lower = [clock for clock in self.curve.clocks_mhz if self._floor_mhz <= clock <= (1 - PROBE) * clock_mhz]
        if clock_mhz != self._clock_mhz or len(on_time) < KEPT or not all(on_time) or not lower:
            return clock_mhz
        gpus = [0] * (1 + max(part.worker for part in self._graph))
        now_j, lower_j = (
            step_energy_j(self._graph, self.curve, {0: clock}, gpus, self.target_s) for clock in (clock_mhz, lower[-1])
        )
        if lower_j >= now_j:
            return clock_mhz
        self._probed_mhz = lower[-1]
        return lower[-1]

    def _learn(self) -> None:
        """Steps that became longer than promised take the clock up, and it does not go below that again."""
        if self._clock_mhz is None or self.target_s is None or len(self._steps_s) < KEPT:
            return
        if statistics.median(self._steps_s) > (1 + PROMISED) * self.target_s:
            if self.phases is not None:
                self._phases_failed, self.phases = True, None
                self._steps_s.clear()
                return
            higher = [clock for clock in self.scene.sm_clocks_mhz if clock >= 1.05 * self._clock_mhz]
            self._floor_mhz = min(self.full_clock_mhz, higher[0] if higher else self.full_clock_mhz)
            self._probed_mhz = self._floor_mhz
            self._steps_s.clear()
