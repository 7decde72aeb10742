"""PctoDL: a partition planned from physics, then the SM clock held at the cap: feed-forward, Newton, single steps.

    cap changed ──> plan shares, batches, memory clock ──> clock from the power curve      (feed-forward)
    far from it ──> clock += 0.8 * error / slope of the curve                              (Newton)
    near it     ──> one step towards it; one step down whenever the cap is exceeded
    between two decisions ──> a new cap is planned for at once; one that is exceeded lowers the clock at once   (ours)

Source: "PctoDL: Adaptive GPU Throughput Optimization for Deep Learning Inference with Power Constraints", after its
authors' published description of algorithm and controller. They call the controller "thermodynamic MPC"; it does not
look ahead, `receding_horizon` does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mpcpipe.errors import PowerError
from mpcpipe.services.power.partitioning import (
    LADDER,
    Room,
    best_clocks,
    checked_shares,
    greedy,
    neighbours,
    nothing_fits,
)
from mpcpipe.services.power.policies.base import Policy, Predictor, Scene
from mpcpipe.services.power.setting import Limits, Observation, Setting, Slice

NEAR_W = 7.0
GAIN = 0.8
SMALLEST_MHZ, LARGEST_MHZ = 15.0, 300.0
ABOVE = 0.005
"""By so much of the cap the power may be above it until the next decision."""
FIRST = 0.03
"""Below a cap that is new, or exceeded, by so much, until it is seen what the clock takes."""
_WORTH_A_RESTART = 1.03
_STRONG_MEMORY = 0.5


@dataclass(frozen=True)
class PowerCurve:
    """P(f) = low + (high - low) * ((f - least) / (most - least))^gamma, in watts and MHz."""

    least_mhz: float
    most_mhz: float
    low_w: float
    high_w: float
    gamma: float

    @classmethod
    def of(cls, predictor: Predictor, setting: Setting, clocks_mhz: tuple[int, ...]) -> PowerCurve:
        """Through the predictions at the lowest and the highest clock; gamma from those between, by least squares."""
        least, most = clocks_mhz[0], clocks_mhz[-1]
        low, high = (predictor.power_w(replace(setting, sm_clock_mhz=f)) for f in (least, most))
        top = bottom = 0.0
        for part in (0.2, 0.4, 0.6, 0.8):
            clock = min(clocks_mhz, key=lambda f, part=part: abs(f - least - part * (most - least)))  # type: ignore[misc]
            rise = (predictor.power_w(replace(setting, sm_clock_mhz=clock)) - low) / max(high - low, 1e-9)
            if 0 < rise < 1 and least < clock < most:
                x = math.log((clock - least) / (most - least))
                top, bottom = top + x * math.log(rise), bottom + x * x
        return cls(least, most, low, max(high, low + 1e-6), top / bottom if bottom else 1.0)

    def clock_at(self, power_w: float) -> float:
        """The clock at which the curve reaches a power, within its ends."""
        share = (power_w - self.low_w) / (self.high_w - self.low_w)
        reached: float = min(max(share, 0.0), 1.0) ** (1.0 / self.gamma)
        return self.least_mhz + (self.most_mhz - self.least_mhz) * reached

    def slope(self, clock_mhz: float) -> float:
        """dP/df in W/MHz; never 0, so that one can divide by it."""
        span = self.most_mhz - self.least_mhz
        x = min(max((clock_mhz - self.least_mhz) / span, 0.05), 1.0)
        rise: float = x ** (self.gamma - 1.0)
        return max((self.high_w - self.low_w) * self.gamma * rise / span, 1e-3)


class PctoDL(Policy):
    """Most requests a second under the cap.

    partitions: False leaves the GPU whole, so that only clocks and batch are chosen. all_memory_clocks: also those
    below half of the highest, which the published sets leave out. at_once: False waits for the next decision, as
    published, with whatever happens. lower_memory: False keeps the highest memory clock. shares: percents of the GPU,
    a worker each, instead of planned ones.
    """

    name = "pctodl"
    needs_cap = True

    def __init__(
        self,
        scene: Scene,
        partitions: bool = True,
        all_memory_clocks: bool = False,
        at_once: bool = True,
        lower_memory: bool = True,
        shares: Sequence[int] = (),
    ) -> None:
        super().__init__(scene)
        self.at_once = at_once
        self.shares = checked_shares(shares, scene.max_workers)
        least = 0.0 if all_memory_clocks else _STRONG_MEMORY * scene.memory_clocks_mhz[-1]
        least = least if lower_memory else scene.memory_clocks_mhz[-1]
        self.memory_clocks = tuple(m for m in scene.memory_clocks_mhz if m >= least)
        self.batches = tuple(b for b in LADDER if scene.batches[0] <= b <= scene.batches[-1]) or scene.batches
        self.max_workers = scene.max_workers if partitions else 1
        self.cap_w: float | None = None
        self.wanted: Setting | None = None
        self.curve: PowerCurve | None = None

    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """Plan where the cap is new, else hold the power at it."""
        cap = needed_cap(limits, self.name)
        if cap != self.cap_w or self.wanted is None or self.curve is None:
            self.wanted = self.plan(limits)
            self.curve = PowerCurve.of(self.scene.known(), self.wanted, self.scene.sm_clocks_mhz)
            self.cap_w = cap
            aimed_w = (1 - FIRST) * cap if self.at_once else cap
            self.wanted = replace(self.wanted, sm_clock_mhz=self.scene.nearest_sm(self.curve.clock_at(aimed_w)))
            return self.wanted
        if observation.power_w is not None:
            clock = self.stepped(observation.power_w, cap, float(self.wanted.sm_clock_mhz or 0), self.curve)
            self.wanted = replace(self.wanted, sm_clock_mhz=clock)
        return self.wanted

    def react(self, observation: Observation, limits: Limits) -> Setting | None:
        """A new cap at once; and the clock down as soon as the cap is seen to be exceeded."""
        if not self.at_once:
            return None
        cap, mean = needed_cap(limits, self.name), observation.power_mean_w
        if cap != self.cap_w or self.wanted is None:
            return self.decide(observation, limits)
        if mean is None or mean <= (1 + ABOVE) * cap:
            return None
        clock = self.lowered(mean, cap, observation)
        if clock >= (self.wanted.sm_clock_mhz or 0):
            return None
        self.wanted = replace(self.wanted, sm_clock_mhz=clock)
        return self.wanted

    def lowered(self, power_w: float, cap_w: float, observation: Observation) -> int:
        """The clock for a cap that is exceeded: an undamped Newton step to a little below it, one step at least."""
        assert self.wanted is not None and self.curve is not None
        now = float(self.wanted.sm_clock_mhz or self.scene.sm_clocks_mhz[-1])
        aimed_w = (1 - FIRST) * cap_w
        return min(self.scene.below_sm(now), self.scene.nearest_sm(now + (aimed_w - power_w) / self.curve.slope(now)))

    def plan(self, limits: Limits) -> Setting:
        """A new plan; the shares in effect are kept unless others are worth that the workers start anew."""
        room = self.room(limits)
        new = divided(room, self.shares) if self.shares else greedy(room)
        if self.wanted is None:
            return new
        kept = retuned(room, self.wanted.workers)
        if kept is None or room.predictor.throughput_per_s(new) > _WORTH_A_RESTART * kept[0]:
            return new
        return kept[1]

    def room(self, limits: Limits) -> Room:
        """What may be chosen under these limits."""
        return Room(
            self.scene.known(),
            self.scene.sm_clocks_mhz,
            self.memory_clocks,
            self.batches,
            needed_cap(limits, self.name),
            limits.slo_s,
            self.max_workers,
        )

    def stepped(self, power_w: float, cap_w: float, clock_mhz: float, curve: PowerCurve) -> int:
        """The next clock, from the measured power."""
        clocks, error = self.scene.sm_clocks_mhz, cap_w - power_w
        if abs(error) > NEAR_W:
            change = min(max(GAIN * error / curve.slope(clock_mhz), -LARGEST_MHZ), LARGEST_MHZ)
            change = math.copysign(max(abs(change), SMALLEST_MHZ), error)
        else:
            change = math.copysign(SMALLEST_MHZ, error)
        clock = self.scene.nearest_sm(min(max(clock_mhz + change, clocks[0]), clocks[-1]))
        if power_w > cap_w and clock >= clock_mhz:
            clock = self.scene.below_sm(clock_mhz)
        return clock


def needed_cap(limits: Limits, who: str) -> float:
    """The cap; a clear error where there is none."""
    if limits.cap_w is None:
        raise PowerError(f"{who} works to a power cap, and none is given: --cap W")
    return limits.cap_w


def divided(room: Room, shares: Sequence[int]) -> Setting:
    """The best batches and clocks for shares that are given. Errors: PowerError if none keep the cap."""
    starts = (retuned(room, tuple(Slice(percent, batch) for percent in shares)) for batch in room.batches)
    best = max((found for found in starts if found is not None), key=lambda pair: pair[0], default=None)
    if best is None:
        raise PowerError(nothing_fits(room))
    return best[1]


def retuned(room: Room, workers: tuple[Slice, ...]) -> tuple[float, Setting] | None:
    """(requests a second, setting) of the best batches and clocks for shares that stay as they are."""
    best = best_clocks(room, workers)
    shares = [worker.percent for worker in workers]
    tried = {workers}
    while True:
        start = workers if best is None else best[1].workers
        near = [w for w in neighbours(start, room.batches) if [s.percent for s in w] == shares and w not in tried]
        tried.update(near)
        found = [pair for pair in (best_clocks(room, w) for w in near) if pair is not None]
        top = max(found, key=lambda pair: pair[0], default=None)
        if top is None or (best is not None and top[0] <= best[0]):
            return best
        best = top
