"""What a policy is, what it is told of the place it works in, and the list of them."""

from __future__ import annotations

import difflib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, ClassVar, Literal, Protocol

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
    "interval". truth: for the oracle alone, None outside of replays.
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

    def nearest_sm(self, clock_mhz: float) -> int:
        """The clock that may be chosen and is nearest; the lower one of two."""
        return nearest(self.sm_clocks_mhz, clock_mhz)

    def known(self) -> Predictor:
        """The predictor; a clear error where a policy needs one and there is none."""
        if self.predictor is None:
            raise PowerError(
                f"the policy needs a model of the network on {self.card.name}, and there is none: "
                "measure a grid and pass it with --grid"
            )
        return self.predictor


class Policy(ABC):
    """Chooses settings. Touches no clock, file or device: what it knows it is told, what it wants it returns."""

    name: ClassVar[str]
    cadence: ClassVar[Literal["interval", "batch"]] = "interval"
    """When `decide` is asked: every `interval_s`, or before each batch."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    @abstractmethod
    def decide(self, observation: Observation, limits: Limits) -> Setting:
        """The setting from now on. The one in effect is `observation.setting`: return it to change nothing."""

    def idle(self, observation: Observation, limits: Limits) -> Setting | None:
        """Asked after a batch when nothing waits; None (as here) changes nothing."""
        return None


def nearest(values: Sequence[int], wanted: float) -> int:
    """The value nearest to what is wanted; the lower of two."""
    return min(values, key=lambda value: (abs(value - wanted), value))


_HERE = "mpcpipe.services.power.policies"
POLICIES: dict[str, str] = {
    "static": f"{_HERE}.static:DriverDefault",
    "static-max": f"{_HERE}.static:StaticMax",
    "power-limit": f"{_HERE}.power_limit:PowerLimit",
    "knee": f"{_HERE}.knee:Knee",
    "dvfs": f"{_HERE}.batch_dvfs:DvfsOnly",
    "batch-dvfs": f"{_HERE}.batch_dvfs:BatchDvfs",
    "batch-dvfs-variant": f"{_HERE}.batch_dvfs:BatchDvfsVariant",
    "morak": f"{_HERE}.morak:Morak",
    "pctodl": f"{_HERE}.pctodl:PctoDL",
    "pctodl-refined": f"{_HERE}.refinement:PctoDLRefined",
    "receding-horizon": f"{_HERE}.receding_horizon:RecedingHorizon",
    "oracle": f"{_HERE}.oracle:Oracle",
    "greendls": f"{_HERE}.greendls:GreenDLS",
    "lookahead": f"{_HERE}.lookahead:Lookahead",
    "clipper": f"{_HERE}.clipper:Clipper",
    "clipper-variant": f"{_HERE}.clipper:ClipperVariant",
    "eais": f"{_HERE}.eais:Eais",
    "slo-clock": f"{_HERE}.slo_clock:SloClock",
    "perseus": f"{_HERE}.perseus:Perseus",
}
"""Name -> "module:Class". Others register the class through the entry point group `mpcpipe.policies`."""


def policy_named(name: str) -> type[Policy]:
    """The class of a policy; a wrong name gets the list of right ones."""
    others = {point.name: point for point in entry_points(group="mpcpipe.policies")}
    if name in POLICIES:
        module, _, attribute = POLICIES[name].partition(":")
        found: type[Policy] = getattr(importlib.import_module(module), attribute)
        return found
    if name in others:
        found = others[name].load()
        return found
    known = sorted({*POLICIES, *others})
    near = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise PowerError(f"there is no policy {name!r}{hint} Known: {', '.join(known)}.")


def build(name: str, scene: Scene, **options: Any) -> Policy:
    """A policy by its name. options: keyword arguments of its class."""
    return policy_named(name)(scene, **options)
