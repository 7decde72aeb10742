"""Networks on a V100S, of which nobody published a grid: derived from two published fits, not measured.

Latency is that of iGniter's fit on a V100 SXM2 with the whole GPU, at 1530 MHz: launches per kernel and a part that
grows with the batch, all of it as slow as the clock. Power is that of a table of GREENDLS's authors for a V100S:
idle + K(b) V^2 f, K between their three batch sizes along log b; the network that they took it with is not named.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpcpipe.errors import PowerError
from mpcpipe.services.power.cards import Card
from mpcpipe.services.power.grid import Grid
from mpcpipe.services.power.model import switching_ghz

MEASURED_MHZ = 1530.0
IDLE_W = 19.7
WATTS_PER_GHZ = {1: 14.6, 64: 49.4, 256: 71.8}
CLOCKS_MHZ = tuple(range(517, 1598, 60))
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Activity:
    """t = launches + (k1 b^2 + k2 b + k3) / (r + k4) + k5 in ms, for a share of r percent of the GPU."""

    k1: float
    k2: float
    k3: float
    k4: float
    k5: float

    def ms(self, batch: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of a batch with the whole GPU."""
        grown: NDArray[np.float64] = (self.k1 * batch**2 + self.k2 * batch + self.k3) / (100.0 + self.k4) + self.k5
        return grown


ACTIVITIES = {
    "resnet50": Activity(-0.0175, 58.26, -0.012, 0.345, 1.91),
    "vgg19": Activity(-0.005, 158.2, 44.5, 0.188, 0.926),
}


def v100s_grid(card: Card, network: str) -> Grid:
    """A grid as if it had been measured."""
    if network not in ACTIVITIES:
        near = difflib.get_close_matches(network, ACTIVITIES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise PowerError(f"there is no network {network!r} for {card.title}{hint} Known: {', '.join(ACTIVITIES)}.")
    f, b = np.array(CLOCKS_MHZ, float)[:, None], np.array(BATCHES, float)[None, :]
    latency = ACTIVITIES[network].ms(b) * MEASURED_MHZ / f
    known = sorted(WATTS_PER_GHZ)
    watts_per_ghz = np.interp(np.log2(b), np.log2(known), [WATTS_PER_GHZ[batch] for batch in known])
    power = IDLE_W + watts_per_ghz * switching_ghz(card.voltage, f)
    energy = power * latency / b
    name, memory = f"{card.name} {network}, derived", card.memory_clocks_mhz
    return Grid(name, memory, CLOCKS_MHZ, BATCHES, latency[None], energy[None])
