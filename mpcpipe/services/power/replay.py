"""Policies under the same caps on the same simulated GPUs: who does more, who saves, who breaks the cap, how fast.

A task is a network and a schedule of caps. Each policy meets each task with each seed: the same start, the same GPU,
the same noise. Requests that arrive one by one are `serving`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mpcpipe.errors import PowerError
from mpcpipe.services.power.saturated import Outcome, Phase, replay
from mpcpipe.services.power.serving import Interval
from mpcpipe.services.power.setting import Limits
from mpcpipe.services.power.world import World
from mpcpipe.services.registry import build

PUBLISHED_START_BATCHES = {"batch-dvfs": 1, "batch-dvfs-variant": 256, "morak": 96}
"""Where the published comparisons start these; the others start with the common batch."""
PUBLISHED_OPTIONS: dict[str, dict[str, Any]] = {"pctodl": {"at_once": False}}
"""PctoDL does nothing between two decisions there."""
PUBLISHED_MORAK: dict[str, dict[str, Any]] = {
    "densenet201": {"shares": (60, 40), "slo_s": 0.2, "beta": 0.98, "alpha": 0.98},
    "mobilenet_v2": {"shares": (40, 40), "slo_s": 0.12, "beta": 0.9, "alpha": 0.98},
    "mnasnet": {"shares": (40, 40), "slo_s": 0.06, "beta": 0.98, "alpha": 1.0},
    "resnet50": {"shares": (40, 40), "slo_s": 0.1, "beta": 0.9, "alpha": 0.98},
}
"""Morak's shares (most leave a fifth of the GPU alone) and its latency, by network, as PctoDL's authors ran it. It
alone is held to a latency there."""


def published_options(policy: str, network: str) -> dict[str, Any]:
    """What a policy of the published comparison had there; the last of Morak's for other networks."""
    if policy != "morak":
        return PUBLISHED_OPTIONS.get(policy, {})
    return next((own for name, own in PUBLISHED_MORAK.items() if name in network), PUBLISHED_MORAK["resnet50"])


@dataclass(frozen=True)
class Task:
    """A network under a schedule of caps."""

    world: World
    phases: tuple[Phase, ...]
    slo_s: float | None = None

    @property
    def name(self) -> str:
        """Network and caps."""
        return f"{self.world.grid.name} {'-'.join(f'{phase.cap_w:g}' for phase in self.phases)} W"


@dataclass(frozen=True)
class Comparison:
    """outcomes: by task and policy, one for each seed."""

    policy: str
    against: tuple[str, ...]
    tasks: tuple[Task, ...]
    seeds: int
    outcomes: Mapping[tuple[str, str], tuple[Outcome, ...]]

    @property
    def policies(self) -> tuple[str, ...]:
        """All, the one in question first."""
        return (self.policy, *self.against)

    def over(self, other: str, figure: Callable[[Outcome], float]) -> list[float]:
        """Figure of the policy over that of another, minus 1: a mean over the tasks, one for each seed."""
        return [
            float(np.mean([self._ratio(task, other, seed, figure) - 1.0 for task in self.tasks]))
            for seed in range(self.seeds)
        ]

    def by_task(self, task: Task, other: str, figure: Callable[[Outcome], float]) -> Interval:
        """The same for one task."""
        return Interval.of([self._ratio(task, other, seed, figure) - 1.0 for seed in range(self.seeds)])

    def _ratio(self, task: Task, other: str, seed: int, figure: Callable[[Outcome], float]) -> float:
        ours, theirs = (self.outcomes[task.name, name][seed] for name in (self.policy, other))
        return figure(ours) / figure(theirs)

    def mean(self, name: str, figure: Callable[[Outcome], float]) -> Interval:
        """A policy's figure: a mean over the tasks, with an interval over the seeds."""
        rows = [[figure(self.outcomes[task.name, name][seed]) for task in self.tasks] for seed in range(self.seeds)]
        return Interval.of([float(np.mean(row)) for row in rows])


def compare(
    policy: str,
    against: Sequence[str],
    tasks: Sequence[Task],
    seeds: int = 10,
    as_published: bool = False,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Run everything. options: keyword arguments of a policy's class, by its name.

    A policy that says that it cannot keep a cap at all (PowerError) ends the comparison with that message.
    """
    if seeds < 1:
        raise PowerError(f"{seeds} seeds: there must be at least one")
    names = tuple(dict.fromkeys((policy, *against)))
    outcomes: dict[tuple[str, str], tuple[Outcome, ...]] = {}
    for task in tasks:
        for phase in task.phases:
            task.world.check(Limits(cap_w=phase.cap_w, slo_s=task.slo_s))
        for name in names:
            batch = PUBLISHED_START_BATCHES.get(name) if as_published else None
            progress(f"{task.name}: {name}")
            published = published_options(name, task.world.grid.name) if as_published else {}
            given = {**published, **(options or {}).get(name, {})}
            outcomes[task.name, name] = tuple(one(task, name, seed, batch, given) for seed in range(seeds))
    return Comparison(policy, names[1:] if names[0] == policy else names, tuple(tasks), seeds, outcomes)


def one(task: Task, name: str, seed: int, start_batch: int | None, options: Mapping[str, Any]) -> Outcome:
    """One policy, one task, one seed. The policy does not see the truth, but for the oracle."""
    scene = task.world.scene(seed, start=task.world.start(start_batch))
    truth = task.world.truth(seed)
    told = scene if name == "oracle" else replace(scene, truth=None)
    return replay(build(name, told, **options), scene, truth, task.phases, task.slo_s)


def as_json(found: Comparison) -> dict[str, Any]:
    """For --json. Fractions are means over tasks and seeds; keys with `_half` are 95 % intervals over the seeds."""

    def savings(figure: Callable[[Outcome], float]) -> tuple[dict[str, float], dict[str, float]]:
        intervals = {other: Interval.of([-x for x in found.over(other, figure)]) for other in found.against}
        return {k: v.mean for k, v in intervals.items()}, {k: v.half for k, v in intervals.items()}

    gross, gross_half = savings(lambda o: o.gross_j)
    net, net_half = savings(lambda o: o.net_j)
    gains = {other: Interval.of(found.over(other, lambda o: o.throughput_per_s)) for other in found.against}
    return {
        "replayed": True,
        "load": "saturated",
        "policy": found.policy,
        "seeds": found.seeds,
        "throughput_gain": {other: gain.mean for other, gain in gains.items()},
        "throughput_gain_half": {other: gain.half for other, gain in gains.items()},
        "throughput_gain_range": {other: _range(found, other) for other in found.against},
        "gross_saving": gross,
        "gross_saving_half": gross_half,
        "net_saving": net,
        "net_saving_half": net_half,
        "violation_share": {name: found.mean(name, lambda o: o.violation_share).mean for name in found.policies},
        "tasks": [_task_json(found, task) for task in found.tasks],
    }


def _range(found: Comparison, other: str) -> dict[str, float]:
    """Over the tasks."""
    gains = [found.by_task(task, other, lambda o: o.throughput_per_s).mean for task in found.tasks]
    return {"least": min(gains), "median": float(np.median(gains)), "most": max(gains)}


def _task_json(found: Comparison, task: Task) -> dict[str, Any]:
    def of(outcomes: Sequence[Outcome], figure: Callable[[Outcome], float]) -> dict[str, float]:
        interval = Interval.of([figure(outcome) for outcome in outcomes])
        return {"mean": interval.mean, "half": interval.half}

    policies = {}
    for name in found.policies:
        outcomes = found.outcomes[task.name, name]
        policies[name] = {
            "throughput_per_s": of(outcomes, lambda o: o.throughput_per_s),
            "gross_j": of(outcomes, lambda o: o.gross_j),
            "net_j": of(outcomes, lambda o: o.net_j),
            "phases": [
                {
                    "cap_w": phase.cap_w,
                    "seconds": phase.seconds,
                    "throughput_per_s": of(outcomes, lambda o, i=i: o.phases[i].throughput_per_s),  # type: ignore[misc]
                    "mean_power_w": of(outcomes, lambda o, i=i: o.phases[i].mean_power_w),  # type: ignore[misc]
                    "settling_s": of(outcomes, lambda o, i=i: o.phases[i].settling_s),  # type: ignore[misc]
                    "overshoot_ws": of(outcomes, lambda o, i=i: o.phases[i].overshoot_ws),  # type: ignore[misc]
                    "over_s": of(outcomes, lambda o, i=i: o.phases[i].over_s),  # type: ignore[misc]
                    "longest_over_s": of(outcomes, lambda o, i=i: o.phases[i].longest_over_s),  # type: ignore[misc]
                }
                for i, phase in enumerate(task.phases)
            ],
            "last_setting": {
                "sm_clock_mhz": outcomes[0].last.sm_clock_mhz,
                "memory_clock_mhz": outcomes[0].last.memory_clock_mhz,
                "workers": [[w.percent, w.batch] for w in outcomes[0].last.workers],
            },
        }
    return {"network": task.world.grid.name, "caps_w": [phase.cap_w for phase in task.phases], "policies": policies}
