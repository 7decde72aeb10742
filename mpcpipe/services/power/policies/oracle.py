"""The best there is, by looking at the truth: a bound for the others, not a policy for a real GPU."""

from __future__ import annotations

from mpcpipe.errors import PowerError
from mpcpipe.services.power import model
from mpcpipe.services.power.cards import Card
from mpcpipe.services.power.partitioning import LADDER, Room, greedy
from mpcpipe.services.power.policies.base import Policy, Predictor, Scene
from mpcpipe.services.power.setting import Limits, Observation, Setting
from mpcpipe.services.power.sharing import clocks_of


class Oracle(Policy):
    """Most throughput under the cap; without a cap, least energy a request within the latency objective.

    All memory clocks, SM clocks, batches and equal partitions are tried, and then small moves from the best few.
    Power is that of the warm card.
    """

    name = "oracle"
    needs = "the truth of a simulated network, which only a replay shows"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._found: dict[tuple[float | None, float | None], Setting] = {}

    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """The best setting for these limits."""
        key = limits.cap_w, limits.slo_s
        if key not in self._found:
            self._found[key] = self._best(limits)
        return self._found[key]

    def _best(self, limits: Limits) -> Setting:
        scene, truth = self.scene, self._truth()
        if limits.cap_w is not None:
            batches = tuple(sorted({*scene.batches, *(b for b in LADDER if b <= scene.batches[-1])}))
            clocks, memory = scene.sm_clocks_mhz, scene.memory_clocks_mhz
            room = Room(truth, clocks, memory, batches, limits.cap_w, limits.slo_s, scene.max_workers)
            return greedy(room, climbs=8)
        within = [
            setting for setting in self._settings() if limits.slo_s is None or truth.exec_s(setting) <= limits.slo_s
        ]
        if not within:
            fastest = min(map(truth.exec_s, self._settings()))
            raise PowerError(
                f"no setting finishes a batch within {1000 * (limits.slo_s or 0):g} ms; "
                f"the fastest possible is {1000 * fastest:.1f} ms"
            )
        return min(within, key=lambda setting: truth.power_w(setting) / truth.throughput_per_s(setting))

    def _settings(self) -> list[Setting]:
        scene = self.scene
        return [
            Setting(sm, memory, batch)
            for memory in scene.memory_clocks_mhz
            for sm in scene.sm_clocks_mhz
            for batch in scene.batches
        ]

    def _truth(self) -> Predictor:
        if self.scene.truth is None:
            raise PowerError(
                "the oracle looks at the truth, which only a replay under power caps shows; choose another policy"
            )
        return Warm(self.scene.truth, self.scene.card)


class Warm:
    """A predictor with the power at the temperature that this very power leads to."""

    def __init__(self, cold: Predictor, card: Card) -> None:
        self.cold, self.card = cold, card

    def exec_s(self, setting: Setting) -> float:
        """As it is."""
        return self.cold.exec_s(setting)

    def throughput_per_s(self, setting: Setting) -> float:
        """As it is."""
        return self.cold.throughput_per_s(setting)

    def power_w(self, setting: Setting) -> float:
        """The fixed point of power and temperature."""
        thermal, base = self.card.thermal, self.card.idle_w[clocks_of(self.card, setting)[0]]
        reference = power = self.cold.power_w(setting)
        for _ in range(4):
            temperature = thermal.ambient_c + thermal.resistance_k_per_w * power
            power = reference + float(model.leakage_w(thermal, base, temperature))
        return power
