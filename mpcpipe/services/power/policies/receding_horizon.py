"""A controller that looks ahead: clocks over the next intervals under a model of power, heat and clock changes.

    measured power, temperature ──> correct the model ──> try all pairs of clocks (now, later) ──> apply the first

All pairs of two blocks are tried, so what it finds is the optimum of its model; there is no solver. The plan of shares,
batches and memory clock is PctoDL's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mpcpipe.services.power import model
from mpcpipe.services.power.policies.base import Scene
from mpcpipe.services.power.policies.pctodl import PctoDL, needed_cap
from mpcpipe.services.power.setting import Limits, Observation, Setting

Array = NDArray[np.float64]
_INTERVALS = 5
_FILTER = 0.4
_KEPT = 40
_WHOLE, _LOCAL, _NOISE = 0.10, 0.04, 0.012
_NEAR_MHZ = 60.0
_OVER_COST = 50.0
_CHANGE_COST_S = 0.05


@dataclass
class Outlook:
    """A plan at every clock, as predicted: (clocks,) each. idle_w is what the correction leaves alone."""

    clocks_mhz: tuple[int, ...]
    power_w: Array
    rate_per_s: Array
    idle_w: Array


class RecedingHorizon(PctoDL):
    """Most requests a second with the power below the cap now and later.

    margin: in standard deviations, of what the sensor scatters and of what is not known about a clock's power, kept
    below the cap.
    """

    name = "receding-horizon"

    def __init__(
        self,
        scene: Scene,
        partitions: bool = True,
        all_memory_clocks: bool = True,
        margin: float = 1.0,
        at_once: bool = True,
    ) -> None:
        super().__init__(scene, partitions, all_memory_clocks, at_once)
        self.margin = margin
        self.outlook: Outlook | None = None
        self.seen: list[tuple[float, float]] = []
        self.scatter_w = scene.card.sensor.noise_w
        self._fresh = False

    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """Look ahead and take the first step."""
        cap = needed_cap(limits, self.name)
        same = cap == self.cap_w
        if not same or self.wanted is None or self.outlook is None:
            before = None if self.wanted is None else self.wanted.workers
            self.wanted = self.plan(limits)
            self.cap_w = cap
            self.outlook = self._look(self.wanted)
            self._fresh = before != self.wanted.workers
            self.seen = []
        else:
            self._learn(observation)
        clock = self._best(cap, observation)
        now = observation.setting.sm_clock_mhz
        above = same and observation.power_mean_w is not None and observation.power_mean_w > cap
        if above and now is not None and clock >= now:  # whatever the model says
            clock = self.scene.below_sm(now)
        self.wanted = replace(self.wanted, sm_clock_mhz=clock)
        return self.wanted

    def lowered(self, power_w: float, cap_w: float, observation: Observation) -> int:
        """The best clock by the model, once it knows what was measured now; one step lower at least."""
        self._fresh = False
        self._learn(replace(observation, power_w=None))
        now = observation.setting.sm_clock_mhz or self.scene.sm_clocks_mhz[-1]
        return min(self.scene.below_sm(now), self._best(cap_w, observation))

    def _look(self, setting: Setting) -> Outlook:
        clocks, known = self.scene.sm_clocks_mhz, self.scene.known()
        at = [replace(setting, sm_clock_mhz=f) for f in clocks]
        memory = setting.memory_clock_mhz or self.scene.memory_clocks_mhz[-1]
        return Outlook(
            clocks,
            np.array([known.power_w(s) for s in at]),
            np.array([known.throughput_per_s(s) for s in at]),
            np.asarray(model.idle_w(self.scene.card, memory, np.array(clocks, float))),
        )

    def _learn(self, observation: Observation) -> None:
        """Correct the model by what was measured since; a plan that has just begun is not believed yet."""
        look, measured = self.outlook, observation.power_mean_w
        now = observation.sm_clock_mhz
        if measured is None or look is None or now is None or int(now) not in look.clocks_mhz:
            return
        if self._fresh:
            self._fresh = False
            return
        i = look.clocks_mhz.index(int(now))
        heat = self._leak(observation.temperature_c, look.idle_w[i])
        ratio = (measured - heat - look.idle_w[i]) / max(1.0, look.power_w[i] - look.idle_w[i])
        self.seen = [*self.seen[1 - _KEPT :], (float(now), min(max(ratio, 0.5), 2.0))]
        if observation.power_w is not None:
            self.scatter_w += _FILTER * (max(0.5, observation.power_w - measured) - self.scatter_w)

    def correction(self) -> tuple[Array, Array]:
        """(mean, deviation) of busy power over the predicted, at every clock: (clocks,) each.

        A Gaussian process: one factor for all clocks, and one that only clocks near each other share, since power does
        not rise as smoothly as any model of it.
        """
        look = self.outlook
        assert look is not None
        clocks = np.array(look.clocks_mhz, float)
        if not self.seen:
            return np.ones(len(clocks)), np.full(len(clocks), float(np.hypot(_WHOLE, _LOCAL)))
        at, ratios = np.array(self.seen).T

        def alike(a: Array, b: Array) -> Array:
            near: Array = _WHOLE**2 + _LOCAL**2 * np.exp(-0.5 * ((a[:, None] - b[None, :]) / _NEAR_MHZ) ** 2)
            return near

        inside = np.linalg.inv(alike(at, at) + _NOISE**2 * np.eye(len(at)))
        across = alike(clocks, at)
        left = _WHOLE**2 + _LOCAL**2 - np.einsum("ij,jk,ik->i", across, inside, across)
        return 1.0 + across @ inside @ (ratios - 1.0), np.sqrt(np.maximum(left, 0.0))

    def _best(self, cap_w: float, observation: Observation) -> int:
        look, card, dt = self.outlook, self.scene.card, self.scene.interval_s
        assert look is not None
        mean, deviation = self.correction()
        # The first choice for a plan takes the model at its word; from then on, unknown clocks need room.
        mean = mean + 0.5 * self.margin * deviation * bool(self.seen)
        steady = look.idle_w + mean * (look.power_w - look.idle_w)
        n, thermal = len(steady), card.thermal
        now = observation.setting.sm_clock_mhz
        before = None if now is None else int(np.argmin(np.abs(np.array(look.clocks_mhz) - now)))
        heat = np.full((n, n), observation.temperature_c or thermal.reference_c)
        value = np.zeros((n, n))
        limit, fade = cap_w - self.margin * self.scatter_w, float(np.exp(-dt / thermal.tau_s))
        late_s = min(dt, card.transition.call_s + card.transition.p99_s)
        for k in range(_INTERVALS):
            first = k == 0
            power = (steady[:, None] if first else steady[None, :]) + self._leak(heat, look.idle_w[0])
            rate = look.rate_per_s[:, None] if first else look.rate_per_s[None, :]
            over = np.maximum(0.0, power - limit)
            hot = np.maximum(0.0, heat - thermal.throttle_c)
            value += dt * (rate - _OVER_COST * rate.max() / cap_w * over - _OVER_COST * hot)
            if k == 1:  # until a change is in force, the old clock's power and rate
                value += late_s * (look.rate_per_s[:, None] - look.rate_per_s[None, :])
            target = thermal.ambient_c + thermal.resistance_k_per_w * power
            heat = target + (heat - target) * fade
        changed = np.abs(np.arange(n)[:, None] - np.arange(n)[None, :]) > 0
        value -= _CHANGE_COST_S * look.rate_per_s.max() * changed
        if before is not None:
            value -= _CHANGE_COST_S * look.rate_per_s.max() * (np.arange(n) != before)[:, None]
        return look.clocks_mhz[int(np.argmax(value.max(axis=1)))]

    def _leak(self, temperature_c: Array | float | None, idle_w: float) -> Array:
        warm = self.scene.card.thermal.reference_c if temperature_c is None else temperature_c
        return np.asarray(model.leakage_w(self.scene.card.thermal, idle_w, warm), float)
