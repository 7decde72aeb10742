"""What a policy is, and what it is told of the place it works in. The list of them: `mpcpipe.services.registry`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from mpcpipe.errors import PowerError
from mpcpipe.services.power.cards import Card
from mpcpipe.services.power.setting import Limits, Observation, Setting


class Predictor(Protocol):
    """What a policy believes of a network on a card. All for a steady state."""

    def exec_s(self, setting: Setting) -> float:
        """Seconds for a batch of the slowest worker."""
        ...

    def throughput_per_s(self, setting: Setting) -> float:
        """Requests a second that all workers finish together."""
        ...

    def power_w(self, setting: Setting) -> float:
        """Of the whole GPU while it works all the time."""
        ...


@dataclass(frozen=True)
class Scene:
    """Where a policy works.

    card: with its clocks; sm_clocks_mhz and memory_clocks_mhz are those that may be chosen here, in rising order (the
    memory clocks of a card with one are one). batches: in rising order. start: what is in effect at first.
    predictor: what may be known beforehand, or None. interval_s: between decisions of a policy with cadence
    "interval". truth: for the oracle alone, None outside of replays. party, parties: whose GPU it is, of how many.
    """

    card: Card
    sm_clocks_mhz: tuple[int, ...]
    memory_clocks_mhz: tuple[int, ...]
    batches: tuple[int, ...]
    start: Setting
    predictor: Predictor | None = None
    interval_s: float = 3.0
    seed: int = 0
    max_workers: int = 1
    truth: Predictor | None = None
    party: int = 0
    parties: int = 1

    def nearest_sm(self, clock_mhz: float) -> int:
        """The clock that may be chosen and is nearest; the lower one of two."""
        return nearest(self.sm_clocks_mhz, clock_mhz)

    def below_sm(self, clock_mhz: float) -> int:
        """One step lower than the nearest that may be chosen; the lowest stays."""
        return self.sm_clocks_mhz[max(0, self.sm_clocks_mhz.index(self.nearest_sm(clock_mhz)) - 1)]

    def known(self) -> Predictor:
        """The predictor; a clear error where a policy needs one and there is none."""
        if self.predictor is None:
            raise PowerError(
                f"the policy needs a model of the network on {self.card.name}, and there is none: "
                "measure a grid and replay it (mpcpipe power replay --grid CSV)"
            )
        return self.predictor


class Policy(ABC):
    """Chooses settings. Touches no clock, file or device: what it knows it is told, what it wants it returns."""

    name: ClassVar[str]
    cadence: ClassVar[Literal["interval", "batch"]] = "interval"
    """When `decide` is asked: every `interval_s`, or before each batch."""

    needs: ClassVar[str] = ""
    """What it needs that a training does not have; with it, a job that names this policy is refused."""
    needs_cap: ClassVar[bool] = False
    """Without a power cap it has nothing to do."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    @abstractmethod
    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """The setting from now on. The one in effect is `observation.setting`: return it to change nothing."""

    def react(self, observation: Observation, limits: Limits) -> Setting | None:
        """Asked at each reading between two decisions, a tenth of a second apart, for what cannot wait: a new cap, or
        one that is exceeded. None (as here): it can. Power is the mean of the last half second at the clocks in force,
        by the card's counter of joules; None as long as that is not known."""
        return None

    def idle(self, observation: Observation, limits: Limits) -> Setting | None:
        """Asked after a batch when nothing waits; None (as here) changes nothing."""
        return None


def nearest(values: Sequence[int], wanted: float) -> int:
    """The value nearest to what is wanted; the lower of two."""
    return min(values, key=lambda value: (abs(value - wanted), value))
