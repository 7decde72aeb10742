"""What the service does with steps and readings, without threads, clocks or devices: it returns settings.

    steps ──> graph, observation ──> policy ──> hold ──┐
    readings ──> cap ──────────────> ceiling ──────────┴──> the setting that should be in force

A change costs time and is rare: at most one in DWELL_S, and only if it is a change worth it. The cap does not wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol, runtime_checkable

from mpcpipe.errors import MpcpipeError
from mpcpipe.plan.actions import Schedule
from mpcpipe.services.base import StepFacts, Tell
from mpcpipe.services.power.cap import Cap, memory_clock_for
from mpcpipe.services.power.device import Capabilities, DeviceError, Sample, supported
from mpcpipe.services.power.phases import PhasePlan, Running
from mpcpipe.services.power.policies.base import Policy
from mpcpipe.services.power.setting import Limits, Observation, Setting
from mpcpipe.services.power.stepgraph import Part, step_graph

DWELL_S = 2.0
"""Between two changes that are not for the cap's sake."""

WORTH = 0.02
"""A clock that differs by a smaller share is no change."""

ASK_S, MOST_ASK_S = 1.0, 16.0
"""The policy is asked so often at first, and less often while it says the same."""

IN_FORCE_S = 0.5
"""After a change: a step that begins later is all at the new clocks."""

KEPT_STEPS = 256
"""So many of the latest steps are told a policy that wants their lengths."""

MOST_MISTAKES = 3
"""So many settings that the device does not have, and the policy is not asked any more."""


@runtime_checkable
class Watches(Protocol):
    """A policy that wants the graphs of steps."""

    fastest_s: float | None

    def watch(self, parts: list[Part], step_s: float, clock_mhz: float | None) -> None:
        """A step's graph and time, and the clock at which it ran."""


@runtime_checkable
class Times(Protocol):
    """A policy that wants the length of each step. searching: it is to be asked often."""

    searching: bool

    def timed(self, step_s: float, clock_mhz: int | None, step: int) -> None:
        """A step, counted from the first of this run, all of it at this SM clock; None: the driver's."""


class Control:
    """Of one device, of a training with this schedule. `setting`: what should be in force. busy_w: what the card draws
    at an SM clock if it works all the time; memories: the same by memory clock, where that may be lowered for a cap."""

    def __init__(
        self,
        policy: Policy,
        limits: Limits,
        can: Capabilities,
        schedule: Schedule,
        tell: Tell,
        busy_w: Callable[[int], float],
        memories: Mapping[int, Callable[[int], float]] | None = None,
    ) -> None:
        self.policy, self.limits, self.can, self._schedule, self._tell = policy, limits, can, schedule, tell
        self.setting = policy.scene.start
        self._busy_w = busy_w
        self._memories = memories if memories is not None and "memory" in can.knobs else {}
        self._memory_mhz: int | None = None
        self.cap = None if limits.cap_w is None else self._cap_of(limits.cap_w)
        self.changes = 0
        self._wanted = self.setting
        self._done: StepFacts | None = None
        self._first_step: int | None = None
        self._lengths: deque[tuple[float, int | None, int]] = deque(maxlen=KEPT_STEPS)
        self._sample: Sample | None = None
        self._window: list[Sample] = []
        self._asked_at_s = self._changed_at_s = float("-inf")
        self._ask_s = ASK_S
        self._mistakes = 0
        self._said_mistake = ""
        self._said_late = False

    def step(self, done: StepFacts) -> None:
        """A step is done; it is looked at when the policy is asked next."""
        self._done = done
        if self._first_step is None:
            self._first_step = done.step
        if done.begin_s >= self._changed_at_s + IN_FORCE_S:
            self._lengths.append((done.step_s, self.setting.sm_clock_mhz, done.step - self._first_step))

    def tick(self, now_s: float, sample: Sample | None) -> Setting:
        """A reading, or that there is none. What should be in force from now on."""
        if sample is not None:
            self._sample = sample
            self._window.append(sample)
            if self.cap is not None:
                self.cap.see(now_s, sample.power_w, sample.sm_clock_mhz)
        if self._done is not None and now_s - self._asked_at_s >= self._ask_s and self._may_be_asked:
            self._asked_at_s = now_s
            self._ask(now_s, self._done)
            self._done = None
        self._settle(now_s)
        return self.setting

    @property
    def _may_be_asked(self) -> bool:
        """Not after too many mistakes; nor without a cap, where that is all that the policy works to."""
        return self._mistakes < MOST_MISTAKES and not (self.policy.needs_cap and self.limits.cap_w is None)

    @property
    def phases(self) -> PhasePlan | None:
        """The policy's plan of clocks for actions, if it has one now."""
        return getattr(self.policy, "phases", None)

    def now(self, running: Running) -> Setting:
        """`setting`, with the clock for what runs where actions have their own; under the cap's ceiling."""
        plan = self.phases
        if plan is None or "sm" not in self.can.knobs or self._mistakes >= MOST_MISTAKES:
            return self.setting
        clock = running.clock_mhz(plan)
        return replace(self.setting, sm_clock_mhz=clock if self.cap is None else min(clock, self.cap.ceiling_mhz))

    def change_cap(self, cap_w: float | None) -> None:
        """Another cap from now on; None: none."""
        self.limits = replace(self.limits, cap_w=cap_w)
        self._memory_mhz = None
        self.cap = None if cap_w is None else self._cap_of(cap_w)

    def _cap_of(self, cap_w: float) -> Cap:
        """With the memory clock that leaves the most to the multiprocessors; None of ours if that is the highest."""
        clocks = self.policy.scene.sm_clocks_mhz
        if not self._memories:
            return Cap(cap_w, clocks, self._busy_w)
        kept = tuple(clock for clock in clocks if clock <= self.policy.scene.card.sustained_mhz) or clocks[:1]
        memory = memory_clock_for(cap_w, kept, self._memories)
        self._memory_mhz = None if memory == max(self._memories) else memory
        return Cap(cap_w, clocks, self._memories[memory])

    def _ask(self, now_s: float, done: StepFacts) -> None:
        clock_mhz = None if self._sample is None else self._sample.sm_clock_mhz
        if isinstance(self.policy, Watches) and done.steps == 1:
            try:
                self.policy.watch(step_graph(self._schedule, done.spans), done.step_s, clock_mhz)
            except ValueError as error:
                self._mistake(f"the graph of step {done.step} is not complete: {error}")
                return
        try:
            if isinstance(self.policy, Times):
                while self._lengths:
                    self.policy.timed(*self._lengths.popleft())
            wanted = supported(self.policy.decide(self._observed(now_s, done), self.limits), self.can)
        except DeviceError as error:
            self._mistake(f"{error}; what was in force stays")
            return
        except MpcpipeError as error:
            self._mistake(str(error))
            return
        except Exception as error:
            # A policy may be anybody's code.
            self._mistake(f"{type(error).__name__}: {error}")
            return
        ready = getattr(self.policy, "fastest_s", 0.0) is not None and not getattr(self.policy, "searching", False)
        self._ask_s = min(MOST_ASK_S, 2 * self._ask_s) if ready and wanted == self._wanted else ASK_S
        self._wanted = wanted
        self._check_deadline()

    def _mistake(self, what: str) -> None:
        self._mistakes += 1
        if what != self._said_mistake:  # a policy that is wrong is mostly wrong the same way each time
            self._said_mistake = what
            self._tell(f"the policy {self.policy.name!r}: {what}")
        if self._mistakes == MOST_MISTAKES:
            self._tell(f"the policy {self.policy.name!r} is not asked any more; the last setting stays")

    def _check_deadline(self) -> None:
        """Once, if the deadline is earlier than the fastest step that was seen."""
        fastest_s = getattr(self.policy, "fastest_s", None)
        deadline_s = self.limits.deadline_s
        if deadline_s is None or fastest_s is None or fastest_s <= deadline_s or self._said_late:
            return
        self._said_late = True
        self._tell(
            f"services.power.deadline_s = {deadline_s:g} cannot be met: the fastest step here takes {fastest_s:.3g} s, "
            "at the highest clocks; steps are done in that time"
        )

    def _observed(self, now_s: float, done: StepFacts) -> Observation:
        known = [sample.power_w for sample in self._window if sample.power_w is not None]
        counted = [sample.energy_j for sample in self._window if sample.energy_j is not None]
        last = self._sample
        window_s = self._window[-1].at_s - self._window[0].at_s if len(self._window) > 1 else None
        self._window = self._window[-1:]
        return Observation(
            now_s,
            self.setting,
            window_s,
            max(known, default=None),
            sum(known) / len(known) if known else None,
            counted[-1] - counted[0] if len(counted) > 1 else None,
            None if last is None else last.sm_clock_mhz,
            None if last is None else last.memory_clock_mhz,
            None if last is None else last.temperature_c,
            throughput_per_s=done.steps / (done.end_s - done.begin_s),
            step_s=done.step_s,
            compute_s=done.compute_s / done.steps,
            waiting_s=done.waiting_s / done.steps,
            ceiling_mhz=None if self.cap is None else self.cap.ceiling_mhz,
        )

    def _settle(self, now_s: float) -> None:
        """The policy's wish under the cap's ceiling; unless it is too early for a change, or it is none."""
        wanted, now = self._wanted, self.setting
        urgent = False
        if self.cap is not None:
            ceiling = self.cap.ceiling_mhz
            if wanted.sm_clock_mhz is None or wanted.sm_clock_mhz > ceiling:
                wanted = replace(wanted, sm_clock_mhz=ceiling)
            urgent = now.sm_clock_mhz is None or now.sm_clock_mhz > ceiling
            if self._memories:
                wanted = replace(wanted, memory_clock_mhz=self._memory_mhz)
                urgent = urgent or now.memory_clock_mhz != self._memory_mhz
            if "limit" in self.can.knobs and self.can.limit_w is not None and wanted.power_limit_w is None:
                low_w, high_w = self.can.limit_w
                limit_w = min(high_w, max(low_w, self.cap.cap_w))
                wanted = replace(wanted, power_limit_w=limit_w)
                urgent = urgent or now.power_limit_w is None or now.power_limit_w > limit_w
        if wanted == now or not (urgent or self._worth(now_s, now, wanted)):
            return
        self.setting = wanted
        self._changed_at_s = now_s
        self.changes += 1

    def _worth(self, now_s: float, now: Setting, wanted: Setting) -> bool:
        if now_s - self._changed_at_s < DWELL_S:
            return False
        if replace(now, sm_clock_mhz=None) != replace(wanted, sm_clock_mhz=None):
            return True
        a, b = now.sm_clock_mhz, wanted.sm_clock_mhz
        return a is None or b is None or abs(a - b) >= WORTH * a
