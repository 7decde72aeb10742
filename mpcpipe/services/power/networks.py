"""Networks on cards that nobody published a full grid for, from the curves that are published: derived, not measured.

Throughput by SM clock, T(f) = start + (ref - start) x^gamma with x from 210 MHz to f_ref, gives what computing and
memory take for each request: two unknowns, fixed at 210 MHz and half way up. Launch times and power are assumed.

Source: throughput parameters fitted by PctoDL's authors.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import numpy as np

from mpcpipe.errors import PowerError
from mpcpipe.services.power import model
from mpcpipe.services.power.cards import Card
from mpcpipe.services.power.fit import PowerLaw
from mpcpipe.services.power.grid import Grid
from mpcpipe.services.power.model import Roofline

_SLOWEST_MHZ = 210.0
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Curve:
    """start_per_s: at 210 MHz. ideal_per_s: at ref_mhz, large batches. launch_ms: of a batch, assumed."""

    start_per_s: float
    ideal_per_s: float
    gamma: float
    ref_mhz: float
    launch_ms: float

    def per_s(self, clock_mhz: float) -> float:
        """Requests a second."""
        x = (clock_mhz - _SLOWEST_MHZ) / (self.ref_mhz - _SLOWEST_MHZ)
        risen: float = max(0.0, x) ** self.gamma
        return self.start_per_s + (self.ideal_per_s - self.start_per_s) * risen


# ideal_per_s: (kappa_a ln 128 + kappa_b) requests a second for each percent of memory utilisation, at 45 percent.
A100_CURVES: dict[str, Curve] = {
    "resnet50": Curve(1085.0, 45 * 65.85, 0.560, 1950.0, 0.9),
    "densenet201": Curve(387.5, 45 * 33.72, 0.582, 1950.0, 5.0),
    "mobilenet_v2": Curve(2162.8, 45 * 149.7, 0.487, 1950.0, 0.7),
    "mnasnet": Curve(2256.2, 45 * 195.4, 0.489, 1950.0, 0.7),
}


def derived_grid(card: Card, network: str) -> Grid:
    """A grid of a network on a card with one memory clock, such as an A100, as if it had been measured."""
    if network not in A100_CURVES:
        near = difflib.get_close_matches(network, A100_CURVES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise PowerError(f"there is no network {network!r}{hint} Known: {', '.join(A100_CURVES)}.")
    roofline = derived_roofline(card, A100_CURVES[network])
    clocks = tuple(f for f in card.sm_clocks_mhz if f >= _SLOWEST_MHZ)[::2]
    memory, f, b = card.memory_clocks_mhz[-1], np.array(clocks, float)[:, None], np.array(_BATCHES, float)[None, :]
    law = power_law(card)
    latency = roofline.exec_ms(memory, f, b)
    # Above the card's limit the driver would lower the clock; a grid says what locked clocks would take.
    energy = law.power_w(roofline, memory, f, b) * latency / b
    return Grid(f"{card.name} {network}, derived", (memory,), clocks, _BATCHES, latency[None], energy[None])


def derived_roofline(card: Card, curve: Curve) -> Roofline:
    """Computing and memory a request, so that the curve is met at 210 MHz and half way up; no overlap assumed."""
    slow, middle = _SLOWEST_MHZ, (_SLOWEST_MHZ + card.sustained_mhz) / 2
    t_slow, t_middle = 1000 / curve.per_s(slow), 1000 / curve.per_s(middle)
    cycles = (t_slow - t_middle) / (1000 / slow - 1000 / middle)
    memory_ms = t_slow - cycles * 1000 / slow
    if memory_ms <= 0 or cycles <= 0:
        raise PowerError(f"no time of computing and memory gives the curve {curve} on {card.title}")
    clocks = {card.memory_clocks_mhz[-1]: memory_ms}
    return Roofline(curve.launch_ms, 0.0, 0.6 * curve.launch_ms, cycles, 1.0, clocks, float(card.sustained_mhz))


def power_law(card: Card) -> PowerLaw:
    """The card's own constants, for a typical network."""
    top = float(model.idle_w(card, card.memory_clocks_mhz[-1], card.sm_clocks_mhz[-1]))
    low = float(model.idle_w(card, card.memory_clocks_mhz[-1], card.sm_clocks_mhz[0]))
    rise = (top - low) / float(model.switching_ghz(card.voltage, card.sm_clocks_mhz[-1]))
    return PowerLaw(card.voltage, dict(card.idle_w), rise + 8.0, card.busy_w_per_ghz, dict(card.memory_w))
