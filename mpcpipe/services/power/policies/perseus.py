"""perseus: the slowest clocks that leave the step its time, from the graph of the step with communication as nodes.

    spans of a step ──> graph ──> longest path at every clock ──> the cheapest clock that is done by the target
    lengths of steps ──────────> pace: is it on time? is a lower one? ──> the clock

The target is the step's own time at full clocks, or a later one: the job's deadline, or what the slowest party needs
(the one number that parties exchange). The GPU of a party is all its workers', so it gets one clock for the step;
`clockplan.clocks_of_actions` has the frontier by minimum cuts for workers with GPUs of their own and long actions.

Source: Chung et al., "Reducing Energy Bloat in Large Model Training" (Perseus), SOSP 2024. Ours: communication nodes,
and that it goes on trying: a little lower while steps are on time, and back up where one became longer (after EnvPipe,
Choi et al., USENIX ATC 2023, which goes the other way).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mpcpipe.services.power.clockplan import Curve, clocks_of_gpus, fastest_s, step_energy_j
from mpcpipe.services.power.pace import LONGER, NEAR, Pace
from mpcpipe.services.power.phases import PhasePlan, plan_phases
from mpcpipe.services.power.policies.base import Policy, Scene
from mpcpipe.services.power.setting import Limits, Observation, Setting
from mpcpipe.services.power.stepgraph import Part, longest_s
from mpcpipe.services.power.turns import Turn, Turns

WORTH_PHASES = 0.01
"""Clocks for actions must save so much more than one for the step."""

PHASES = -1
"""In place of a clock, where actions have their own."""

WARM_UP, KEPT = 2, 3
"""Steps before the first that counts; predictions from graphs, of which the highest clock counts."""


class Perseus(Policy):
    """One clock for a party's GPU. `watch` is told graphs of steps, `timed` how long every step took at which clock."""

    name = "perseus"

    def __init__(self, scene: Scene, **options: Any) -> None:
        super().__init__(scene)
        memory = scene.start.memory_clock_mhz or scene.memory_clocks_mhz[-1]
        self.curve = Curve(scene.card, memory, scene.sm_clocks_mhz, float(options.get("stretch", 1.0)))
        self.turns = Turns(scene.party, scene.parties)
        self.pace = Pace(self.turns.alone)
        self.phases: PhasePlan | None = None
        self.call_s = scene.card.transition.call_s
        self.common_s = 0.0
        self._graph: list[Part] | None = None
        self._proposed: deque[int] = deque(maxlen=KEPT)
        self._seen = 0
        self._step = 0
        self._turn = Turn.BASE
        self._ceiling_mhz: int | None = None
        self._clock_mhz: int | None = None
        self._phases_failed = False

    @property
    def full_clock_mhz(self) -> int:
        """The highest that the card keeps, and a cap allows."""
        highest = min(self.curve.clocks_mhz[-1], self.scene.card.sustained_mhz)
        return highest if self._ceiling_mhz is None else min(highest, self._ceiling_mhz)

    @property
    def fastest_s(self) -> float | None:
        """The shortest step here, at full clocks; None before enough is known."""
        return self.pace.fastest_s

    @property
    def searching(self) -> bool:
        """Will the clock change soon? Where parties take turns, it may be this one's any moment."""
        return self.pace.searching or not self.turns.alone

    def turn(self, step: int) -> Turn:
        """Of a step that is counted from the first of this run. By the number that the parties exchange, if they do:
        all have nearly the same anyhow."""
        return self.turns.at(step, self.common_s or self.fastest_s)

    def watch(self, parts: Sequence[Part], step_s: float, clock_mhz: float | None) -> None:
        """A step's graph and time, and the clock at which it ran. The graph is kept as it would be at full clocks."""
        self._base(clock_mhz)
        slower = self.curve.slower(round(clock_mhz)) if clock_mhz else 1.0
        by = {} if self.phases is None else {n: self.curve.slower(c) for n, c in self.phases.clocks_mhz.items()}
        self._graph = [replace(part, compute_s=part.compute_s / by.get(part.name, slower)) for part in parts]

    def timed(self, step_s: float, clock_mhz: int | None, step: int) -> None:
        """A step, all of it at this clock; None: the driver's."""
        self._seen += 1
        self._step = step
        if self._seen <= WARM_UP or self.turn(step) in (Turn.FULL, Turn.OTHERS):
            return
        full = self.full_clock_mhz
        clock = full if clock_mhz is None or clock_mhz > (1 - NEAR / 2) * full else clock_mhz
        self.pace.add(clock if self.phases is None else PHASES, step_s)

    def _base(self, clock_mhz: float | None) -> None:
        """What the card keeps without a lock of ours is its full clock here: its power limit or heat may be in the way
        of a higher one."""
        if clock_mhz is None or (self._clock_mhz is not None and clock_mhz <= self.full_clock_mhz):
            return
        kept = tuple(clock for clock in self.scene.sm_clocks_mhz if clock <= clock_mhz)
        self.curve = replace(self.curve, clocks_mhz=kept or self.scene.sm_clocks_mhz[:1])

    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """The lowest clock that is worth it and on time; the driver's before enough is known."""
        graph = self._graph
        if graph is None:
            return observation.setting
        self._ceiling_mhz = observation.ceiling_mhz
        later_s = max((1 + LONGER) * self.common_s, limits.deadline_s or 0.0)
        if self.fastest_s is None or self._clock_mhz is None:
            self._proposed.append(self._predicted(graph, later_s))
        before, self._turn = self._turn, self.turn(self._step + 1)
        if self._turn is not Turn.OWN:
            return self._held(before, observation)
        if self.phases is not None and self._phases_on_time(later_s):
            return observation.setting
        least = self._cheapest(graph, later_s)
        clock = self.pace.clock(
            self.full_clock_mhz,
            least,
            self.curve.clocks_mhz,
            lambda: max([self._predicted(graph, later_s), *self._proposed]),
            later_s,
        )
        if self.fastest_s is None and self._clock_mhz is None:
            return observation.setting
        self._clock_mhz = clock
        if not self.pace.searching:
            self._plan_phases(graph, clock, max(self.pace.fastest_s or 0.0, later_s))
        return replace(observation.setting, sm_clock_mhz=clock)

    def _held(self, before: Turn, observation: Observation) -> Setting:
        """In steps in which nothing is tried: at full clocks with all others, or at the clock that is kept."""
        if self._turn is Turn.BASE:
            self.pace.time_base(self.full_clock_mhz, before is not Turn.BASE)
        full = self._turn in (Turn.FULL, Turn.BASE)
        if full:
            self.phases = None
        if self._clock_mhz is None:  # the driver's are full ones
            return observation.setting
        self._clock_mhz = self.full_clock_mhz if full else self.pace.kept or self.full_clock_mhz
        return replace(observation.setting, sm_clock_mhz=self._clock_mhz)

    def _phases_on_time(self, later_s: float) -> bool:
        """False, and no clocks for actions any more, once steps with them are too long."""
        allowed_s = max((1 + LONGER) * (self.fastest_s or 0.0), later_s)
        self._phases_failed = bool(self.pace.late(PHASES, allowed_s))
        if self._phases_failed:
            self.phases = None
        return not self._phases_failed

    def _plan_phases(self, graph: Sequence[Part], clock_mhz: int, step_s: float) -> None:
        """Clocks for actions, where the model says that they save more than one clock, within what the clock has left
        of the allowance."""
        slack_s = self.pace.room_s
        if self._phases_failed or slack_s is None:
            return
        gpus = _one_gpu(graph)
        change_s = self.call_s + self.scene.card.transition.median_s
        plan = plan_phases(graph, self.curve, gpus, {0: clock_mhz}, slack_s, change_s, step_s)
        one_j = step_energy_j(graph, self.curve, {0: clock_mhz}, gpus, step_s)
        self.phases = plan if plan is not None and plan.joules <= (1 - WORTH_PHASES) * one_j else None

    def _predicted(self, graph: Sequence[Part], later_s: float) -> int:
        """The lowest clock by the graph. Its time is a little less than the step's (checks, bookkeeping); its allowance
        is the same."""
        slower = self.curve.slower(self.full_clock_mhz)
        graph_s = longest_s(graph, lambda worker: slower)
        base_s = self.fastest_s or graph_s
        allowed_s = graph_s + max(LONGER * base_s, later_s - base_s)
        return clocks_of_gpus(graph, self.curve, _one_gpu(graph), allowed_s)[0]

    def _cheapest(self, graph: Sequence[Part], later_s: float) -> int:
        """The clock at which a step takes the least energy, however long it takes: no lower one is of use."""
        whole = [Part("step", 0, sum(part.compute_s for part in graph), 0.0, ())]
        step_s = max(fastest_s(graph), self.fastest_s or 0.0, later_s)
        clocks = self.curve.clocks_mhz
        return min(clocks, key=lambda clock: step_energy_j(whole, self.curve, {0: clock}, [0], step_s))


def _one_gpu(graph: Sequence[Part]) -> list[int]:
    """The GPU of each worker: a party has one."""
    return [0] * (1 + max(part.worker for part in graph))
