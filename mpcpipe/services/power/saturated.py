"""A policy on a simulated GPU that always has work, under a cap that may change: throughput, energy, cap violations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpcpipe.errors import PowerError
from mpcpipe.services.power.plant import OVER, Plant, Reading
from mpcpipe.services.power.policies.base import Policy, Scene
from mpcpipe.services.power.setting import Limits, Observation, Setting
from mpcpipe.services.power.sharing import Shared

_SAMPLE_S = 0.1
_SETTLE_S = 1.5
_BAND = 0.05
_SMOOTH = 20
_COUNTED_S = 0.5


@dataclass(frozen=True)
class Phase:
    """A cap, and for how long it holds."""

    cap_w: float
    seconds: float


@dataclass(frozen=True)
class PhaseResult:
    """How one cap was followed. Power is the simulated truth, not the sensor.

    throughput_per_s: of the second half; whole_per_s: of all of it. settling_s: until the power (mean of two seconds)
    stays within 5 % of where it ends. overshoot_ws: energy above the cap. over_s: seconds more than 2 % above it;
    longest_over_s: of these the longest time without a break.
    """

    cap_w: float
    seconds: float
    throughput_per_s: float
    whole_per_s: float
    mean_power_w: float
    settling_s: float
    overshoot_ws: float
    over_s: float
    longest_over_s: float
    energy_j: float
    requests: float


@dataclass(frozen=True)
class Outcome:
    """One policy, one seed. trace: (seconds, watts, requests a second, SM clock in MHz), a tenth of a second each."""

    policy: str
    seed: int
    phases: tuple[PhaseResult, ...]
    idle_floor_w: float
    last: Setting
    changes: int
    trace: tuple[tuple[float, float, float, float], ...]

    @property
    def seconds(self) -> float:
        """Of the whole replay."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def gross_j(self) -> float:
        """Joules a request."""
        return sum(p.energy_j for p in self.phases) / max(1e-9, sum(p.requests for p in self.phases))

    @property
    def net_j(self) -> float:
        """Joules a request, beyond what the card takes idle at its lowest clocks."""
        energy = sum(p.energy_j for p in self.phases) - self.idle_floor_w * self.seconds
        return energy / max(1e-9, sum(p.requests for p in self.phases))

    @property
    def throughput_per_s(self) -> float:
        """Mean over the second halves of the phases, as the published comparisons have it."""
        return float(np.mean([phase.throughput_per_s for phase in self.phases]))

    @property
    def violation_share(self) -> float:
        """Of the time, more than 2 % above the cap."""
        return sum(phase.over_s for phase in self.phases) / self.seconds


def replay(policy: Policy, scene: Scene, truth: Shared, phases: Sequence[Phase], slo_s: float | None = None) -> Outcome:
    """Run a policy with cadence "interval" through the phases. Every policy begins at the start, and is asked for its
    first decision after an interval; what it does at once (`react`) it may do before."""
    if policy.cadence != "interval":
        raise PowerError(f"{policy.name} decides batch by batch: give it requests (--rate)")
    plant = Plant(scene.card, truth, scene.start, scene.seed)
    observed = Observation(0.0, scene.start)
    results, trace, first = [], [], True
    at_once: Setting | None = None
    for phase in phases:
        limits = Limits(cap_w=phase.cap_w, slo_s=slo_s)
        plant.cap_w, plant.stretch_s, plant.longest_s = phase.cap_w, 0.0, 0.0
        began = plant.time_s, plant.energy_j, plant.over_s, plant.over_ws
        rows: list[tuple[float, float, float, float]] = []
        while plant.time_s < began[0] + phase.seconds - 1e-6:
            if at_once is not None:
                plant.apply(at_once, policy.name)
            elif not first:
                plant.apply(policy.decide(observed, limits), policy.name)
            first = False
            left = min(scene.interval_s, began[0] + phase.seconds - plant.time_s)
            observed, at_once = _interval(plant, left, rows, policy, limits)
        results.append(_result(phase, plant, began, rows))
        trace.extend(rows)
    floor = scene.card.idle_w[min(scene.card.idle_w)]
    return Outcome(policy.name, scene.seed, tuple(results), floor, plant.setting, plant.changes, tuple(trace))


def _interval(
    plant: Plant, seconds: float, rows: list[tuple[float, float, float, float]], policy: Policy, limits: Limits
) -> tuple[Observation, Setting | None]:
    """Work for an interval, or until the policy wants something at once, which is the second value then. For `decide`
    the sensor is read in the second half only: before, it still shows what was."""
    began, before_j = plant.time_s, plant.energy_j
    shown: list[float] = []
    done_late, late_s = 0.0, 0.0
    counted: list[tuple[float, float]] = []
    at_once: Setting | None = None
    settle = min(_SETTLE_S, seconds / 2)
    while plant.time_s < began + seconds - 1e-6:
        dt = min(_SAMPLE_S, began + seconds - plant.time_s)
        energy = plant.energy_j
        done = plant.saturated(dt)
        reading = plant.read()
        rows.append((plant.time_s, (plant.energy_j - energy) / dt, done / dt, reading.sm_clock_mhz))
        if plant.time_s > began + settle + 1e-9:
            done_late, late_s = done_late + done, late_s + dt
            if reading.power_w is not None:
                shown.append(reading.power_w)
        at_once = policy.react(_between(plant, reading, counted), limits)
        if at_once == plant.setting:
            at_once = None
        if at_once is not None:
            break
    reading = plant.read()
    steady = plant.steady(plant.setting.workers)
    seen = Observation(
        time_s=plant.time_s,
        setting=plant.setting,
        window_s=late_s,
        power_w=max(shown, default=None),
        power_mean_w=float(np.mean(shown)) if shown else None,
        energy_j=plant.energy_j - before_j,
        sm_clock_mhz=reading.sm_clock_mhz,
        memory_clock_mhz=reading.memory_clock_mhz,
        temperature_c=reading.temperature_c,
        throughput_per_s=done_late / late_s if late_s else None,
        exec_s=max(steady.exec_s),
    )
    return seen, at_once


def _between(plant: Plant, reading: Reading, counted: list[tuple[float, float]]) -> Observation:
    """What is known between two decisions. counted: (time, joules) since the clocks in force are those asked for and
    all workers are up, which whoever starts them knows."""
    wanted_mhz = plant.setting.sm_clock_mhz
    if plant.restarting or (wanted_mhz is not None and reading.sm_clock_mhz != wanted_mhz):
        counted.clear()
    counted.append((reading.time_s, reading.energy_j))
    known = [entry for entry in counted if reading.time_s - entry[0] >= _COUNTED_S - 1e-9]
    since_s, before_j = known[-1] if known else (reading.time_s, reading.energy_j)
    window_s, energy_j = reading.time_s - since_s, reading.energy_j - before_j
    return Observation(
        time_s=reading.time_s,
        setting=plant.setting,
        window_s=window_s if known else None,
        power_w=reading.power_w,
        power_mean_w=energy_j / window_s if known else None,
        energy_j=energy_j if known else None,
        sm_clock_mhz=reading.sm_clock_mhz,
        memory_clock_mhz=reading.memory_clock_mhz,
        temperature_c=reading.temperature_c,
    )


def _result(
    phase: Phase, plant: Plant, began: tuple[float, float, float, float], rows: list[tuple[float, float, float, float]]
) -> PhaseResult:
    table = np.array(rows)
    power, rate = table[:, 1], table[:, 2]
    smooth = np.convolve(power, np.ones(_SMOOTH) / _SMOOTH, mode="valid")
    end = float(np.mean(power[2 * len(power) // 3 :]))
    outside = np.nonzero(np.abs(smooth - end) > _BAND * end)[0]
    settled = 0 if len(outside) == 0 else int(outside[-1]) + 1
    return PhaseResult(
        phase.cap_w,
        phase.seconds,
        float(np.mean(rate[len(rate) // 2 :])),
        float(np.mean(rate)),
        float(np.mean(power)),
        min(phase.seconds, settled * _SAMPLE_S + _SMOOTH * _SAMPLE_S * (settled > 0)),
        plant.over_ws - began[3],
        plant.over_s - began[2],
        plant.longest_s,
        plant.energy_j - began[1],
        float(np.sum(rate)) * _SAMPLE_S,
    )


__all__ = ["OVER", "Outcome", "Phase", "PhaseResult", "replay"]
