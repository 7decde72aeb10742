"""PctoDL, and while it runs a search for better plans: what the model gets wrong is learned from what was measured.

Two Gaussian processes learn how throughput and power differ from the prediction. A plan near the one in effect is
tried when its expected improvement, times the probability that it keeps the cap, is worth it; and given up again when
it turns out worse than the best so far.

Source: PctoDL's "shadow optimiser", after its authors' description. Unlike theirs, a candidate is judged at the clock
that the cap leaves it, so shares, batches and clocks are chosen jointly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpcpipe.services.power.partitioning import STEP, Room, best_clocks, neighbours
from mpcpipe.services.power.policies.base import Scene
from mpcpipe.services.power.policies.pctodl import PctoDL, PowerCurve, needed_cap
from mpcpipe.services.power.setting import Limits, Observation, Setting, Slice

Array = NDArray[np.float64]
_MOST_POINTS = 300
_NOISE = 1e-3
_EVERY = 3
_TRIED = 24
_RATE_OFF, _POWER_OFF = 0.25, 0.05


@dataclass(frozen=True)
class Belief:
    """Mean and standard deviation of a Gaussian process at some points: (points,) each."""

    mean: Array
    deviation: Array


def believe(inputs: Array, values: Array, at: Array, scale: Array, least: float = 0.0) -> Belief:
    """Matern 5/2 with unit length scales after division by `scale`, values standardised, noise 1e-3.

    inputs: (seen, features), values: (seen,), at: (points, features). least: spread of values that is assumed anyway:
    the few that were seen first say little of how far off the rest can be.
    """
    middle, spread = float(values.mean()), max(float(values.std()), least, 1e-6)
    inside = np.linalg.cholesky(_matern(inputs, inputs, scale) + _NOISE * np.eye(len(inputs)))
    across = _matern(at, inputs, scale)
    solved = np.linalg.solve(inside, across.T)
    mean = middle + spread * (solved.T @ np.linalg.solve(inside, (values - middle) / spread))
    return Belief(mean, spread * np.sqrt(np.maximum(1e-9, 1.0 - (solved**2).sum(axis=0))))


def expected_improvement(belief: Belief, best: float) -> Array:
    """Of a maximum over `best`."""
    gain = belief.mean - best
    z = gain / belief.deviation
    return gain * normal_cdf(z) + belief.deviation * np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)


def normal_cdf(z: Array) -> Array:
    """Of the standard normal distribution."""
    found: Array = 0.5 * (1.0 + np.vectorize(math.erf, otypes=[float])(z / math.sqrt(2)))
    return found


def _matern(a: Array, b: Array, scale: Array) -> Array:
    d = np.sqrt(5.0 * (((a[:, None, :] - b[None, :, :]) / scale) ** 2).sum(axis=2))
    found: Array = (1.0 + d + d**2 / 3.0) * np.exp(-d)
    return found


class PctoDLRefined(PctoDL):
    """horizon: decisions after which trying should have come to an end."""

    name = "pctodl-refined"
    needs = "shares of the GPU that can be changed while it runs"

    def __init__(self, scene: Scene, horizon: int = 24, all_memory_clocks: bool = True) -> None:
        super().__init__(scene, True, all_memory_clocks)
        self.horizon, self.count = horizon, 0
        self.seen: list[tuple[Array, float, float]] = []
        self.best: tuple[float, Setting] | None = None
        self._settled = 0

    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """As PctoDL, and every third time perhaps another plan."""
        cap, same_cap = needed_cap(limits, self.name), limits.cap_w == self.cap_w
        if not same_cap:
            self.best = None
        elif self.wanted is not None and observation.throughput_per_s is not None:
            self._note(observation, cap)
        wanted = super().decide(observation, limits)
        self.count += 1
        self._settled = self._settled + 1 if same_cap else 0
        if same_cap and self._settled % _EVERY == 0 and self.best is not None:
            other = self._other(self.room(limits), wanted, observation)
            if other is not None:
                self.wanted, self._settled = other, 0
                self.curve = PowerCurve.of(self.scene.known(), other, self.scene.sm_clocks_mhz)
        assert self.wanted is not None
        return self.wanted

    def _note(self, observation: Observation, cap_w: float) -> None:
        """What was measured, beside what was predicted; the first interval of a plan is its workers' start."""
        now, rate, mean = observation.setting, observation.throughput_per_s, observation.power_mean_w
        if self._settled < 1 or rate is None or mean is None or now.sm_clock_mhz is None:
            return
        known = self.scene.known()
        error = rate / known.throughput_per_s(now) - 1.0, mean / known.power_w(now) - 1.0
        self.seen = [*self.seen[-_MOST_POINTS + 1 :], (self._features(now), *error)]
        if mean <= cap_w and (self.best is None or rate > self.best[0]):
            self.best = rate, now

    def _other(self, room: Room, now: Setting, observation: Observation) -> Setting | None:
        """A plan that is worth trying, or the best so far if the one in effect is clearly worse than it."""
        assert self.best is not None
        rate = observation.throughput_per_s or 0.0
        progress = min(1.0, self.count / self.horizon)
        if rate < 0.98 * self.best[0] and self.best[1].workers != now.workers:
            return self.best[1]
        near = list(_near(now.workers, room))
        every = -(-len(near) // _TRIED)
        tried = near[self.count % every :: every]
        settings = [found[1] for found in (best_clocks(room, workers) for workers in tried) if found is not None]
        if not settings or len(self.seen) < 2 or progress >= 1.0:
            return None
        inputs = np.array([point for point, _, _ in self.seen])
        at = np.array([self._features(s) for s in settings])
        scale = np.maximum(np.concatenate([inputs, at]).std(axis=0), 1e-2) * 2.0
        rates, powers = (
            believe(inputs, np.array([point[which] for point in self.seen]), at, scale, least)
            for which, least in ((1, _RATE_OFF), (2, _POWER_OFF))
        )
        prior_rate = np.array([room.predictor.throughput_per_s(s) for s in settings])
        prior_power = np.array([room.predictor.power_w(s) for s in settings])
        mean_power = prior_power * (1.0 + powers.mean)
        gain = expected_improvement(Belief(prior_rate * (1.0 + rates.mean), prior_rate * rates.deviation), self.best[0])
        # A little over the cap is no loss: the controller lowers the clock at once.
        keeps = normal_cdf((1.02 * room.cap_w - mean_power) / (prior_power * powers.deviation + 1.0))
        worth = gain * keeps
        i = int(np.argmax(worth))
        return settings[i] if worth[i] > self._threshold(progress) * self.best[0] else None

    @staticmethod
    def _threshold(progress: float) -> float:
        """Share of the best throughput: little at first, more later, as a restart has less time to pay off."""
        if progress < 1 / 3:
            return 0.01
        return 0.02 * (1.0 - math.exp(-4.0 * progress))

    def _features(self, setting: Setting) -> Array:
        """Clocks, number of workers, mean and scatter of batches (in powers of two) and of shares."""
        batches = np.log2([w.batch for w in setting.workers])
        shares = np.array([w.percent for w in setting.workers]) / 100.0
        clock = (setting.sm_clock_mhz or self.scene.sm_clocks_mhz[-1]) / 1000.0
        memory = (setting.memory_clock_mhz or self.scene.memory_clocks_mhz[-1]) / 10000.0
        return np.array([clock, memory, len(batches), batches.mean(), batches.std(), shares.max(), shares.std()])


def _near(workers: tuple[Slice, ...], room: Room) -> Iterator[tuple[Slice, ...]]:
    """One worker less (the two smallest as one), one more (the largest in two), and the same number one move away."""
    if len(workers) > 1:
        *others, b, a = sorted(workers, key=lambda w: -w.percent)
        yield (*others, Slice(a.percent + b.percent, max(a.batch, b.batch)))
    largest = max(workers, key=lambda w: w.percent)
    if len(workers) < room.max_workers and largest.percent >= 2 * STEP:
        rest = list(workers)
        rest.remove(largest)
        half = largest.percent // (2 * STEP) * STEP
        yield (*rest, Slice(largest.percent - half, largest.batch), Slice(half, largest.batch))
    yield from neighbours(workers, room.batches, rungs=3)
