"""Networks on a V100S, of which nobody published a grid: derived from what is published, not measured.

densenet201: power from the table that GREENDLS's authors publish for a V100S, as 19.7 W + K(b) V^2 f. That is less than
the card takes at rest, so here it is idle power + K'(b) V^2 f, the same at the highest clock. Its latency is assumed:
that of the same network on an RTX 3080 Ti, the memory as much faster as the card's bandwidth, computing a third slower
at the same clock.

resnet50, vgg19: latency and power of iGniter's fits on a V100 SXM2 with the whole GPU at 1530 MHz: launches and a part
that grows with the batch, all as slow as the clock; watts for each request a second, which fall with V^2 f.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpcpipe.errors import PowerError
from mpcpipe.services.power.cards import Card
from mpcpipe.services.power.grid import Grid
from mpcpipe.services.power.model import Roofline, idle_w, switching_ghz

CLOCKS_MHZ = tuple(range(517, 1598, 60))
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
MEASURED_MHZ = 1530.0
TABLE_IDLE_W = 19.7
TABLE_W_PER_GHZ = {1: 14.6, 4: 18.7, 8: 21.6, 16: 24.4, 32: 30.0, 64: 49.4, 128: 65.0, 256: 71.8}
"""K by batch."""
_DENSENET = Roofline(4.28, 0.237, 7.28, 0.424 * 4 / 3, 2.28, {1107: 0.340 * 912 / 1134}, 1597.0)

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Activity:
    """t = (k1 b^2 + k2 b + k3) / (r + k4) + k5 in ms, for a share of r percent of the GPU.

    joules: watts for each request a second. running_w: besides, while anything runs.
    """

    k1: float
    k2: float
    k3: float
    k4: float
    k5: float
    joules: float
    running_w: float

    def ms(self, batch: Array) -> Array:
        """Of a batch with the whole GPU, at 1530 MHz."""
        return np.asarray((self.k1 * batch**2 + self.k2 * batch + self.k3) / (100.0 + self.k4) + self.k5)


ACTIVITIES = {
    "resnet50": Activity(-0.0175, 58.26, -0.012, 0.345, 1.91, 0.162, 4.6),
    "vgg19": Activity(-0.005, 158.2, 44.5, 0.188, 0.926, 0.537, 2.1),
}


def v100s_grid(card: Card, network: str) -> Grid:
    """A grid as if it had been measured. Above the card's limit the driver would lower the clock; a grid does not."""
    networks = ("densenet201", *ACTIVITIES)
    if network not in networks:
        near = difflib.get_close_matches(network, networks, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise PowerError(f"there is no network {network!r} for {card.title}{hint} Known: {', '.join(networks)}.")
    f, b = np.array(CLOCKS_MHZ, float)[:, None], np.array(BATCHES, float)[None, :]
    latency, power = _densenet(card, f, b) if network == "densenet201" else _activity(card, ACTIVITIES[network], f, b)
    name = f"{card.name} {network}, derived"
    return Grid(name, card.memory_clocks_mhz, CLOCKS_MHZ, BATCHES, latency[None], (power * latency / b)[None])


def _densenet(card: Card, f: Array, b: Array) -> tuple[Array, Array]:
    """(ms, watts): (clocks, batches) each."""
    known = sorted(TABLE_W_PER_GHZ)
    watts_per_ghz = np.interp(np.log2(b), np.log2(known), [TABLE_W_PER_GHZ[batch] for batch in known])
    ms = np.asarray(_DENSENET.exec_ms(card.memory_clocks_mhz[-1], f, b))
    idle = idle_w(card, card.memory_clocks_mhz[-1], f)
    top = switching_ghz(card.voltage, CLOCKS_MHZ[-1])
    less = (idle_w(card, card.memory_clocks_mhz[-1], CLOCKS_MHZ[-1]) - TABLE_IDLE_W) / top
    return ms, idle + (watts_per_ghz - less) * switching_ghz(card.voltage, f)


def _activity(card: Card, found: Activity, f: Array, b: Array) -> tuple[Array, Array]:
    """(ms, watts): (clocks, batches) each."""
    watts = found.running_w + found.joules * 1000 * b / found.ms(b)
    relative = switching_ghz(card.voltage, f) / switching_ghz(card.voltage, MEASURED_MHZ)
    power = idle_w(card, card.memory_clocks_mhz[-1], f) + watts * relative
    return found.ms(b) * MEASURED_MHZ / f, power
