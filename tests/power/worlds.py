"""Predictors whose answers can be worked out by hand, and small worlds for policies."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from mpcpipe.services.power.cards import Sensor, Transition, card_named
from mpcpipe.services.power.setting import Setting
from mpcpipe.services.power.world import World
from tests.power.grids import made, one_memory


class Simple:
    """rate = sum over workers of percent * clock * batch / (batch + 8) / 1000, a memory clock of 2 counts 1.5 times;
    power = 20 + clock / 10 * (1 + number of workers / 10) + 30 for that memory clock."""

    def exec_s(self, setting: Setting) -> float:
        return max(w.batch / self._rate(setting, w.percent, w.batch) for w in setting.workers)

    def throughput_per_s(self, setting: Setting) -> float:
        return sum(self._rate(setting, w.percent, w.batch) for w in setting.workers)

    def power_w(self, setting: Setting) -> float:
        clock, memory = setting.sm_clock_mhz or 0, setting.memory_clock_mhz or 1
        return 20.0 + clock / 10 * (1 + len(setting.workers) / 10) + 30.0 * (memory - 1)

    def _rate(self, setting: Setting, percent: int, batch: int) -> float:
        memory = 1.5 if setting.memory_clock_mhz == 2 else 1.0
        # Small batches lose less in a small share, as on a real GPU.
        share = (percent + 40 / batch) / (100 + 40 / batch)
        return share * (setting.sm_clock_mhz or 0) * batch / (batch + 8) * memory


@cache
def quiet(name: str = "rtx3080ti") -> World:
    """A world on a card whose sensor and clocks leave nothing to chance."""
    card = replace(card_named(name), sensor=Sensor(1.0, 0.1, 0.0), transition=Transition(0.01, 0.02, 0.03))
    if len(card.memory_clocks_mhz) > 1:
        return World(card, made(clocks=tuple(range(540, 1951, 235)), batches=(1, 4, 16, 64, 256)), max_workers=3)
    high = card.sustained_mhz
    clocks = tuple(range(card.sm_clocks_mhz[0], high + 1, (high - card.sm_clocks_mhz[0]) // 6))
    grid = one_memory(clocks, batches=(1, 4, 16, 64, 256))
    return World(card, replace(grid, memory_clocks_mhz=(card.memory_clocks_mhz[0],)), max_workers=3)
