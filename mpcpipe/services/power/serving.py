"""Policies that serve the same requests on the same simulated GPU: energy, violations, who saves how much over whom."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mpcpipe.services.power.policies.base import Policy
from mpcpipe.services.power.policies.batching import BatchPolicy, floor_w
from mpcpipe.services.power.requests import Times
from mpcpipe.services.power.server import Server
from mpcpipe.services.power.serving_plant import ServingPlant
from mpcpipe.services.power.setting import Limits

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
    arrivals: Times,
    limits: Limits,
    seed: int,
    first_rate_per_s: float | None = None,
    more_than: bool = False,
) -> tuple[Outcome, Server]:
    """Serve every request of the trace with one policy."""
    server = Server(arrivals, plant, more_than=more_than, first_rate_per_s=first_rate_per_s)
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


def over_seeds(
    one: Callable[[str, int], Outcome], policies: Sequence[str], seeds: Sequence[int]
) -> dict[str, list[Outcome]]:
    """Each policy on each seed; the same seed means the same requests and the same GPU."""
    return {policy: [one(policy, seed) for seed in seeds] for policy in policies}
