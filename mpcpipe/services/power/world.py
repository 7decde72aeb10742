"""What a replay is about: a card, a network on it as measured (the truth), and what policies may know beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from mpcpipe.errors import PowerError
from mpcpipe.services.power import model
from mpcpipe.services.power.cards import Card
from mpcpipe.services.power.fit import Fitted, fit
from mpcpipe.services.power.grid import Grid
from mpcpipe.services.power.policies.base import Scene, nearest
from mpcpipe.services.power.setting import Limits, Setting
from mpcpipe.services.power.sharing import Shared, Sharing

DRAWN = {"large": (0.02, 0.10), "small": (0.15, 0.45), "slowdown": (0.05, 0.13)}
"""Constants of `Sharing` that each seed draws, and from where."""


@dataclass(frozen=True)
class World:
    """card, grid: of one network. max_workers: how many may share the GPU. start_batch: at the start.
    sharing: constants of `Sharing` that the truth has instead of drawn ones.

    The truth interpolates the grid. How workers share a GPU is not in any grid: its constants are drawn anew for each
    seed from the ranges that were published. The predictor has seen every second clock and every second batch size
    only, and believes in the middle of those ranges.
    """

    card: Card
    grid: Grid
    max_workers: int = 5
    start_batch: int = 64
    sharing: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def learned(self) -> Fitted:
        """From a quarter of the grid: clocks and batch sizes held out whole."""
        few = len(self.grid.sm_clocks_mhz) < 4 or len(self.grid.batches) < 4
        return fit(self.grid if few else self.grid.without(self.grid.sm_clocks_mhz[1::2], self.grid.batches[1:-1:2]))

    @cached_property
    def whole(self) -> Fitted:
        """From all of the grid: what the truth takes launch and memory times from."""
        return fit(self.grid)

    @cached_property
    def predictor(self) -> Shared:
        """What policies may know."""
        return Shared(self.card, self.learned.alone, _sharing(self.learned))

    def truth(self, seed: int) -> Shared:
        """The network, with that seed's constants of sharing."""
        draw = np.random.default_rng([seed, 2])
        drawn = {key: float(draw.uniform(low, high)) for key, (low, high) in DRAWN.items()}
        usual = _sharing(self.whole)
        found = {"launch_ms": usual.launch_ms, **drawn, **self.sharing}
        sharing = replace(
            usual,
            launch_ms=found["launch_ms"],
            large=found["large"],
            small=found["small"],
            slowdown=found["slowdown"],
        )
        return Shared(self.card, self.measured, sharing)

    def measured(self, memory_clock_mhz: int, sm_clock_mhz: float, batch: float) -> tuple[float, float]:
        """(ms a batch, watts) of one worker: the grid; below its lowest clock, its edge times what physics says."""
        ms, watts = self.grid.at(memory_clock_mhz, sm_clock_mhz, batch)
        edge = float(self.grid.sm_clocks_mhz[0])
        if sm_clock_mhz < edge:
            roofline, law = self.whole.roofline, self.whole.law
            slow, usual = (roofline.exec_ms(memory_clock_mhz, f, batch) for f in (sm_clock_mhz, edge))
            size = np.array([float(batch)])
            low, high = (law.power_w(roofline, memory_clock_mhz, np.array([f]), size)[0] for f in (sm_clock_mhz, edge))
            return ms * float(slow / usual), watts * float(low / high)
        return ms, watts

    @cached_property
    def sm_clocks_mhz(self) -> tuple[int, ...]:
        """The card's clocks up to the grid's highest, as high as the card keeps them."""
        low, high = self.grid.sm_clocks_mhz[0], min(self.grid.sm_clocks_mhz[-1], self.card.sustained_mhz)
        if not any(low <= f <= high for f in self.card.sm_clocks_mhz):
            raise PowerError(
                f"{self.grid.name}: its clocks ({low} to {self.grid.sm_clocks_mhz[-1]} MHz) are none of "
                f"{self.card.title}'s; is it another card's grid?"
            )
        return tuple(f for f in self.card.sm_clocks_mhz if f <= high)

    def start(self, batch: int | None = None) -> Setting:
        """The same for all policies: the middle SM clock, the highest memory clock."""
        clocks = self.sm_clocks_mhz
        wanted = self.start_batch if batch is None else batch
        return Setting(clocks[len(clocks) // 2], self.grid.memory_clocks_mhz[-1], nearest(self.grid.batches, wanted))

    def scene(self, seed: int, interval_s: float = 3.0, start: Setting | None = None) -> Scene:
        """For policies."""
        return Scene(
            self.card,
            self.sm_clocks_mhz,
            self.grid.memory_clocks_mhz,
            self.grid.batches,
            self.start() if start is None else start,
            self.predictor,
            interval_s,
            seed,
            self.max_workers,
            self.truth(seed),
        )

    def check(self, limits: Limits) -> None:
        """A clear error for a cap that not even an idle card keeps, and for a latency that no setting reaches."""
        lowest = self.grid.memory_clocks_mhz[0]
        idle = float(model.idle_w(self.card, lowest, self.card.sm_clocks_mhz[0]))
        if limits.cap_w is not None and limits.cap_w <= idle:
            raise PowerError(
                f"a cap of {limits.cap_w:g} W cannot be kept: {self.card.title} takes {idle:.1f} W idle at its lowest "
                "clocks; give a higher one"
            )
        fastest = float(self.grid.latency_ms[:, :, 0].min()) / 1000
        wanted = limits.slo_s if limits.slo_s is not None else limits.deadline_s
        if wanted is not None and wanted < fastest:
            raise PowerError(
                f"{1000 * wanted:g} ms cannot be met with {self.grid.name} on {self.card.title}: the fastest possible "
                f"is {1000 * fastest:.2f} ms, for a batch of {self.grid.batches[0]}"
            )


def _sharing(learned: Fitted) -> Sharing:
    roofline, law = learned.roofline, learned.law
    return Sharing(float(roofline.launch_ms), dict(roofline.memory_ms), law.running_w_per_ghz)
