"""A GPU whose numbers can be worked out by hand, for tests of what serves requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mpcpipe.services.power.cards import Card, Transition, card_named
from mpcpipe.services.power.grid import Grid
from mpcpipe.services.power.policies.base import Scene
from mpcpipe.services.power.setting import Setting

SLOW, FAST = 600, 1200


class Line:
    """exec = (1 ms + 1 ms a request) * 1200 / clock; power = 100 W at 1200 MHz, 60 W at 600 MHz."""

    def exec_s(self, setting: Setting) -> float:
        return (1e-3 + 1e-3 * setting.batch) * FAST / (setting.sm_clock_mhz or FAST)

    def throughput_per_s(self, setting: Setting) -> float:
        return setting.batch / self.exec_s(setting)

    def power_w(self, setting: Setting) -> float:
        return 20.0 + (setting.sm_clock_mhz or FAST) / 15.0


def flat_card() -> Card:
    """10 W idle whatever the clock; a change of clocks takes 10 ms, always."""
    card = card_named("v100s")
    return replace(
        card,
        sm_clocks_mhz=(SLOW, FAST),
        sustained_mhz=FAST,
        idle_w={1107: 10.0},
        idle_rise_w=(0.0, 0.0, 0.0),
        transition=Transition(0.01, 1e-9, 1.0001e-9),
    )


def scene(batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)) -> Scene:
    return Scene(flat_card(), (SLOW, FAST), (1107,), batches, Setting(FAST, 1107, 1), Line())


def small_grid() -> Grid:
    """Two clocks, four batches, of `Line`."""
    batches, line = (1, 4, 16, 64), Line()
    settings = [[Setting(clock, 1107, batch) for batch in batches] for clock in (SLOW, FAST)]
    latency = np.array([[[1e3 * line.exec_s(one) for one in row] for row in settings]])
    power = np.array([[[line.power_w(one) for one in row] for row in settings]])
    return Grid("by hand", (1107,), (SLOW, FAST), batches, latency, power * latency / np.array(batches))
