"""The power service of one party: reads its GPU, asks the policy after steps, and applies through the guard.

    trainer's thread: begin, step (hands over a reference), end
    thread "power":   every 0.1 s a reading ──> meter, control ──> guard ──> device
    workers' threads: an action begins or ends ──> thread "power" wakes up, if actions have clocks of their own

Nothing that the training computes, draws or sends depends on it. It is off unless the job says `services.power.policy`.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mpcpipe.errors import PowerError
from mpcpipe.services.base import RunFacts, Service, StepFacts, Tell
from mpcpipe.services.power.cards import CARDS, Card, Voltage
from mpcpipe.services.power.clockplan import Curve
from mpcpipe.services.power.control import Control
from mpcpipe.services.power.device import Capabilities, PowerDevice, Sample
from mpcpipe.services.power.guard import Guard
from mpcpipe.services.power.meter import LEAST_WINDOW_S, Energy, Meter
from mpcpipe.services.power.phases import Running
from mpcpipe.services.power.policies.base import Scene
from mpcpipe.services.power.policies.perseus import Perseus
from mpcpipe.services.power.setting import Limits, Setting
from mpcpipe.services.power.simulated import Simulated
from mpcpipe.services.power.stepmodel import StepModel
from mpcpipe.services.power.vendors import open_device
from mpcpipe.services.power.wanted import Watched
from mpcpipe.services.registry import beside_training, policy_named

INTERVAL_S = 0.1
"""Between readings."""

TRACE_S = 0.25
"""Between the readings that are written down."""


def card_of(can: Capabilities) -> Card:
    """The card of the table that a device's name means; else one with its clocks and limits and assumed constants."""
    words = can.name.lower().replace("-", " ").replace(",", " ").split()
    for card in CARDS.values():
        if all(word in words for word in card.title.lower().split()[:2] if word not in ("pcie", "sxm")):
            return card
    clocks = can.sm_clocks_mhz or (1000,)
    memory = can.memory_clocks_mhz or (1000,)
    high_w = can.limit_w[1] if can.limit_w else can.default_limit_w or 300.0
    low_w = can.limit_w[0] if can.limit_w else 0.3 * high_w
    top_ghz = clocks[-1] / 1000
    voltage = Voltage(0.7 * clocks[-1], 0.3 / max(0.1, 0.3 * top_ghz))
    return Card(
        name="unknown",
        title=can.name,
        sm_clocks_mhz=clocks,
        memory_clocks_mhz=memory,
        sustained_mhz=clocks[-1],
        limit_w=(low_w, high_w),
        voltage=voltage,
        idle_w=dict.fromkeys(memory, 0.12 * high_w),
        idle_rise_w=(0.0, 0.0, 0.05 * high_w / clocks[-1]),
        busy_w_per_ghz=0.7 * high_w / (1.3**2 * top_ghz),
        memory_w=dict.fromkeys(memory, 0.2 * high_w),
        bandwidth_bytes_per_s=1e12,
        multiprocessors=1,
        assumed=("everything",),
    )


class PowerService(Service):
    """options: the table [services.power] of the job. device, now: for tests and for a time of their own."""

    def __init__(
        self,
        options: Mapping[str, Any],
        tell: Tell,
        device: PowerDevice | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(options, tell)
        self._policy_class = policy_named(options["policy"])
        self._check_policy(options["policy"])
        if device is None and not options["device"]:
            raise PowerError(
                "services.power.device is missing: say which GPU, such as nvidia, nvidia:GPU-5f3a..., amd, hygon:0, "
                "zeusd:0 or simulated:a100-40gb"
            )
        self._device = open_device(options["device"]) if device is None else device
        self._can = self._device.capabilities()
        self._card = card_of(self._can) if not isinstance(self._device, Simulated) else self._device.card
        self._limits = Limits(options.get("cap_w") or None, None, options.get("deadline_s") or None)
        self._check_cap(self._limits.cap_w, "services.power.cap_w")
        if self._policy_class.needs_cap and self._limits.cap_w is None:
            self.tell(
                f"the policy {options['policy']!r} works to a power cap, and none is given: it changes nothing until "
                "services.power.cap_w is set, or `mpcpipe power cap WATTS` says one"
            )
        self._now = now
        self._meter = Meter()
        self._guard: Guard | None = None
        self._control: Control | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._running = Running()
        self._steps: deque[StepFacts] = deque()
        self._unmeasured: deque[StepFacts] = deque()
        self._file: Path | None = None
        self._wanted: Watched | None = None
        self._origin_s = 0.0
        self._joules: list[float | None] = []
        self._how: set[str] = set()
        self._traced_at_s = float("-inf")
        self.busy_s = 0.0

    def _check_policy(self, name: str) -> None:
        """PowerError, before the parties meet, for a policy that a training cannot give what it needs."""
        if self._policy_class.needs:
            raise PowerError(
                f"services.power.policy = {name!r} cannot work beside a training: it needs {self._policy_class.needs}. "
                f"Those that can: {', '.join(beside_training())}"
            )

    def _check_cap(self, cap_w: float | None, says: str) -> None:
        """A cap that no clock can keep is a mistake: PowerError. says: where it stands."""
        if cap_w is None:
            return
        lowest = self._clocks()[0]
        curves = list(self._curves().values())
        least_w = min(curve.idle_w(lowest) for curve in curves)
        busy_w = min(curve.busy_w(lowest) for curve in curves)
        if cap_w <= least_w:
            assumed = " (assumed: this card is not in the table)" if "everything" in self._card.assumed else ""
            raise PowerError(
                f"{says} = {cap_w:g} is below what {self._can.name} draws when it does nothing, "
                f"{least_w:.0f} W{assumed}; no clock can keep that"
            )
        if cap_w < busy_w:
            self.tell(
                f"{says} = {cap_w:g} is below what {self._can.name} may draw under full load at its "
                f"lowest clocks, {busy_w:.0f} W; it is kept as well as they can"
            )

    def _clocks(self) -> tuple[int, ...]:
        return self._can.sm_clocks_mhz or self._card.sm_clocks_mhz

    def _curves(self) -> dict[int, Curve]:
        """By memory clock, of those that can be set; the highest is the last."""
        memory = self._card.memory_clocks_mhz
        settable = "memory" in self._can.knobs and set(memory) <= set(self._can.memory_clocks_mhz)
        return {clock: Curve(self._card, clock, self._clocks()) for clock in (memory if settable else memory[-1:])}

    # trainer's thread

    def begin(self, run: RunFacts) -> None:
        """Take the GPU, and start the thread."""
        self._guard = Guard(self._device, self.tell, now=self._now)
        if "everything" in self._card.assumed and self._guard.controls:
            self.tell(f"{self._can.name} is not in the table of cards: what it draws at which clock is assumed")
        memory = self._can.memory_clocks_mhz or self._card.memory_clocks_mhz
        curves = self._curves()
        scene = Scene(
            *(self._card, self._clocks(), memory, (1,), Setting(), StepModel(curves)),
            interval_s=1.0,
            seed=run.party,
            party=run.party,
            parties=run.parties,
        )
        policy = self._policy_class(scene)
        busy_w = curves[max(curves)].busy_w
        memories = {clock: curve.busy_w for clock, curve in curves.items()}
        self._control = Control(policy, self._limits, self._can, run.schedule, self.tell, busy_w, memories)
        self._origin_s = run.origin_s
        if run.run_folder is not None:
            self._file = run.run_folder / f"power.{run.name}.jsonl"
            self._write({"device": self._can.name, "simulated": self._can.simulated, "policy": policy.name})
            self._write({"cap_w": self._limits.cap_w, "from_s": 0.0})
            self._wanted = Watched(run.run_folder, run.name)
        self.tick()
        self._thread = threading.Thread(target=self._run, name="power", daemon=True)
        self._thread.start()

    def step(self, done: StepFacts) -> None:
        """Hands the step over."""
        self._steps.append(done)

    def action(self, worker: str, action: str, begins: bool) -> None:
        """In a worker's thread: noted, and the thread that sets clocks is woken up, if that changes any."""
        if begins:
            self._running.begins(worker, action)
        else:
            self._running.ends(worker)
        if self._control is not None and self._control.phases is not None:
            self._wake.set()

    def target_s(self) -> float | None:
        """The fastest step that was seen at full clocks, or at the highest that the cap allows."""
        if self._control is None or not isinstance(self._control.policy, Perseus):
            return None
        return self._control.policy.fastest_s

    def agreed(self, target_s: float) -> None:
        """Nobody's step is shorter."""
        if self._control is not None and isinstance(self._control.policy, Perseus):
            self._control.policy.common_s = target_s

    def end(self) -> dict[str, Any]:
        """Clocks as they were; joules of all steps."""
        self._end_thread()
        if self._guard is None or self._control is None:
            return {}
        self._read(last=True)
        known = [joules for joules in self._joules if joules is not None]
        report = {
            "device": self._can.name,
            "simulated": self._can.simulated,
            "policy": self._control.policy.name,
            "controlled": self._guard.writes > 0,
            "joules_per_step": sum(known) / len(known) if known else None,
            "joules_known_of_steps": [len(known), len(self._joules)],
            "energy_from": sorted(self._how) or None,
            "changes": self._control.changes,
            "drifts": self._guard.drifts,
            "lost": self._guard.lost,
            "service_cpu_s": self.busy_s,
        }
        self.close()
        return report

    def close(self) -> None:
        """End the thread, put the GPU back."""
        self._end_thread()
        if self._guard is not None:
            self._guard.close()
            self._guard = None
            self._device.close()

    def _end_thread(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(10)
            self._thread = None

    # thread "power"

    def _run(self) -> None:
        read_at_s = self._now()
        while not self._stop.is_set():
            woken = self._wake.wait(max(0.0, read_at_s + INTERVAL_S - self._now()))
            began = time.thread_time()
            if self._stop.is_set():
                return
            self._wake.clear()
            try:
                if woken and self._now() < read_at_s + INTERVAL_S:
                    self.follow()
                else:
                    read_at_s = self._now()
                    self.tick()
            except PowerError as error:  # what the guard could not handle: observe no more
                self.tell(f"the power service stops: {error}")
                return
            self.busy_s += time.thread_time() - began

    def tick(self) -> None:
        """One reading, and what follows from it."""
        assert self._guard is not None and self._control is not None
        sample = self._read()
        if self._guard.lost:
            self._stop.set()
            return
        if self._wanted is not None:
            self._look_for_cap(self._wanted, self._guard, self._control)
        self._control.tick(self._now(), sample)
        self.follow()

    def _look_for_cap(self, watched: Watched, guard: Guard, control: Control) -> None:
        """Another cap that the user wants meanwhile; whoever asked gets an answer in the party's file."""
        answer: dict[str, Any] = {"from_s": round(self._now() - self._origin_s, 3)}
        try:
            wanted = watched.new()
            if wanted is None:
                return
            answer["asked"] = wanted.asked
            if not guard.controls:
                raise PowerError(
                    f"the cap stays as it was: nothing is set on {self._can.name} here, it is observed only"
                )
            self._check_cap(wanted.cap_w, "the cap")
            control.change_cap(wanted.cap_w)
            answer["cap_w"] = wanted.cap_w
            self.tell(f"power cap: {'none' if wanted.cap_w is None else f'{wanted.cap_w:g} W'} from now on")
        except PowerError as error:
            answer["cap_refused"] = str(error)
            self.tell(str(error))
        self._write(answer)

    def follow(self) -> None:
        """What should be in force now: the control's setting, with the clock of the actions that run."""
        assert self._guard is not None and self._control is not None
        wanted = self._control.now(self._running)
        if self._guard.controls and wanted != self._guard.setting:
            began_s = self._now()
            self._guard.apply(wanted)
            policy = self._control.policy
            if isinstance(policy, Perseus):  # what a change costs is declared by the card first, then measured
                policy.call_s += 0.2 * (self._now() - began_s - policy.call_s)

    def _read(self, last: bool = False) -> Sample | None:
        assert self._guard is not None and self._control is not None
        while self._steps:
            done = self._steps.popleft()
            self._control.step(done)
            self._unmeasured.append(done)
            if isinstance(self._device, Simulated):
                self._device.work(min(1.0, done.compute_s / (done.end_s - done.begin_s)))
        sample = self._guard.read()
        if sample is not None:
            self._meter.add(sample)
            if sample.at_s - self._traced_at_s >= TRACE_S:
                self._traced_at_s = sample.at_s
                self._write(
                    {
                        "at_s": round(sample.at_s - self._origin_s, 3),
                        "power_w": sample.power_w,
                        "sm_clock_mhz": sample.sm_clock_mhz,
                        "memory_clock_mhz": sample.memory_clock_mhz,
                    }
                )
        now_s = self._now()
        while self._unmeasured and (last or self._unmeasured[0].end_s + LEAST_WINDOW_S < now_s):
            self._measure(self._unmeasured.popleft())
        return sample

    def _measure(self, done: StepFacts) -> None:
        energy: Energy = self._meter.energy(done.begin_s, done.end_s)
        each = None if energy.joules is None else energy.joules / done.steps
        self._joules += [each] * done.steps
        if energy.how is not None:
            self._how.add(energy.how)
        self._write({"step": done.step, "steps": done.steps, "joules": each, "how": energy.how})

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        try:
            with self._file.open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            self.tell(f"{self._file} cannot be written: {error.strerror}; the report will lack joules and clocks")
            self._file = None
