"""Policies that serve the same requests on the same simulated GPU: energy, violations, who saves how much over whom."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mpcpipe.services.power.policies.base import Policy, Scene
from mpcpipe.services.power.policies.batching import BatchPolicy, floor_w
from mpcpipe.services.power.requests import Rates, Spacing, Times, arrivals
from mpcpipe.services.power.server import Server, window_s
from mpcpipe.services.power.serving_plant import ServingPlant
from mpcpipe.services.power.setting import Limits, Setting
from mpcpipe.services.power.world import World
from mpcpipe.services.registry import build

_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t for an interval of 95 %, by degrees of freedom from 1."""


@dataclass(frozen=True)
class Outcome:
    """One policy, one seed. gross_j: all energy. net_j: beyond a GPU at rest for the same time. busy_share: of the
    time. violation_share: of the requests. changes: of clocks. mean_batch: requests a batch."""

    policy: str
    seed: int
    requests: int
    duration_s: float
    gross_j: float
    net_j: float
    busy_share: float
    violation_share: float
    median_s: float
    p99_s: float
    mean_batch: float
    changes: int

    @property
    def mean_power_w(self) -> float:
        """Over the whole replay."""
        return self.gross_j / self.duration_s


def serve_all(
    policy: Policy,
    plant: ServingPlant,
    times: Times,
    limits: Limits,
    seed: int,
    first_rate_per_s: float | None = None,
    more_than: bool = False,
) -> tuple[Outcome, Server]:
    """Serve every request of the trace with one policy."""
    server = Server(
        times, plant, more_than=more_than, first_rate_per_s=first_rate_per_s, rate_window_s=window_s(limits.slo_s)
    )
    server.wait_for_work()
    while not server.done:
        observation = server.observation()
        setting = policy.decide(observation, limits)
        fill = policy.fill(observation, limits, setting) if isinstance(policy, BatchPolicy) else None
        server.serve(setting, fill, policy.name)
        server.wait_for_work()
    return _outcome(policy, server, limits, seed), server


def _outcome(policy: Policy, server: Server, limits: Limits, seed: int) -> Outcome:
    plant, latencies = server.plant, server.latencies_s()
    late = float(np.mean(latencies > limits.slo_s)) if limits.slo_s is not None else 0.0
    return Outcome(
        policy=policy.name,
        seed=seed,
        requests=server.head,
        duration_s=plant.time_s,
        gross_j=plant.energy_j,
        net_j=plant.energy_j - floor_w(policy.scene) * plant.time_s,
        busy_share=plant.busy_s / plant.time_s,
        violation_share=late,
        median_s=float(np.median(latencies)),
        p99_s=float(np.quantile(latencies, 0.99)),
        mean_batch=server.head / len(server.batches),
        changes=plant.changes,
    )


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, and half the width of its 95 % interval (Student's t); 0 for one seed."""

    mean: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """From one value a seed."""
        mean, n = float(np.mean(values)), len(values)
        if n < 2:
            return cls(mean, 0.0)
        t = _T_975[n - 2] if n - 2 < len(_T_975) else 1.96 + 2.4 / (n - 1)
        return cls(mean, t * float(np.std(values, ddof=1)) / math.sqrt(n))


def savings(outcomes: Mapping[str, Sequence[Outcome]], policy: str, over: str) -> tuple[Interval, Interval]:
    """(gross, net) energy that `policy` saves over another, as shares of the other's, seed by seed."""
    pairs = list(zip(outcomes[policy], outcomes[over], strict=True))
    return (
        Interval.of([1 - ours.gross_j / theirs.gross_j for ours, theirs in pairs]),
        Interval.of([1 - ours.net_j / theirs.net_j for ours, theirs in pairs]),
    )


DRIVER_CLOCKS = {"rtx3080ti": (1665, 9251)}
"""(SM, memory) that the driver keeps under such load, by card: read in the logs that GREENDLS's authors publish. Cards
that are not named keep their highest sustained clocks."""


@dataclass(frozen=True)
class Bench:
    """Requests at a simulated GPU. world: card, network and what policies may know. spacing: of the arrivals."""

    world: World
    rates: Rates
    slo_s: float
    spacing: Spacing = "poisson"

    def start(self) -> Setting:
        """The driver's clocks and single requests, for every policy."""
        card = self.world.card
        sm, memory = DRIVER_CLOCKS.get(card.name, (card.sustained_mhz, self.world.grid.memory_clocks_mhz[-1]))
        return Setting(sm, memory, 1)

    def scene(self, seed: int) -> Scene:
        """For policies."""
        return replace(self.world.scene(seed, start=self.start()), truth=None)

    def plant(self, seed: int) -> ServingPlant:
        """A new GPU."""
        return ServingPlant(self.world.card, self.world.truth(seed), self.start(), seed)

    def outcome(self, name: str, seed: int, **options: Any) -> Outcome:
        """One policy, one seed. The same seed means the same requests on the same GPU."""
        policy = build(name, self.scene(seed), **options)
        more_than = bool(getattr(policy, "paper_exact", False))
        limits = Limits(slo_s=self.slo_s)
        times = arrivals(self.rates, seed, self.spacing)
        outcome, _ = serve_all(policy, self.plant(seed), times, limits, seed, self.rates.per_s[0], more_than)
        return outcome


def compare(
    bench: Bench, policies: Sequence[str], seeds: Sequence[int], options: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, list[Outcome]]:
    """Each policy on each seed. options: keyword arguments of a policy's class, by its name."""
    given = options or {}
    return {name: [bench.outcome(name, seed, **given.get(name, {})) for seed in seeds] for name in policies}


def summary(outcomes: Mapping[str, Sequence[Outcome]], policy: str) -> dict[str, Any]:
    """For JSON and tables: gross_saving and net_saving of `policy` over each other one, and what each did by itself.

    Every figure is [mean, half of the 95 % interval over the seeds].
    """

    def of(values: Sequence[float]) -> list[float]:
        interval = Interval.of(values)
        return [interval.mean, interval.half]

    saved = {other: savings(outcomes, policy, other) for other in outcomes if other != policy}
    return {
        "policy": policy,
        "seeds": len(outcomes[policy]),
        "gross_saving": {other: [gross.mean, gross.half] for other, (gross, _) in saved.items()},
        "net_saving": {other: [net.mean, net.half] for other, (_, net) in saved.items()},
        "violation_share": {name: of([one.violation_share for one in found]) for name, found in outcomes.items()},
        "mean_power_w": {name: of([one.mean_power_w for one in found]) for name, found in outcomes.items()},
        "net_power_w": {name: of([one.net_j / one.duration_s for one in found]) for name, found in outcomes.items()},
        "p99_s": {name: of([one.p99_s for one in found]) for name, found in outcomes.items()},
        "mean_batch": {name: of([one.mean_batch for one in found]) for name, found in outcomes.items()},
    }
