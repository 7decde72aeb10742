"""GPUs by name: their clocks and limits, and the constants of `model` for them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

from mpcpipe.errors import PowerError


@dataclass(frozen=True)
class Voltage:
    """V(f), relative to the flat part: 1 up to a knee, then linear. slope_per_ghz: of V above the knee."""

    knee_mhz: float
    slope_per_ghz: float


@dataclass(frozen=True)
class Thermal:
    """Ambient, resistance to it, and the time constant of the heat sink. Assumed where a maker publishes none."""

    ambient_c: float = 27.0
    resistance_k_per_w: float = 0.155
    tau_s: float = 60.0
    throttle_c: float = 90.0
    leakage_per_k: float = 0.012
    leakage_share: float = 0.25
    """Of the idle power at reference_c, what grows by e^(leakage_per_k * (T - reference_c))."""
    reference_c: float = 60.0


@dataclass(frozen=True)
class Sensor:
    """What the card's own power reading is: a moving average over average_s, renewed every period_s, with noise."""

    average_s: float = 1.0
    period_s: float = 0.1
    noise_w: float = 2.0


@dataclass(frozen=True)
class Transition:
    """A change of clocks: what the call takes, then a lognormal time until it is in force."""

    call_s: float = 0.015
    median_s: float = 0.020
    p99_s: float = 0.200


@dataclass(frozen=True)
class Card:
    """A GPU model.

    sm_clocks_mhz, memory_clocks_mhz: rising. sustained_mhz: the highest clock that it keeps under load. limit_w: the
    lowest and highest power limit that the driver accepts; the highest is the default. idle_w: by memory clock, at
    the lowest SM clock, with a process on it. idle_rise_w: what a higher SM clock adds at idle, as the coefficients of
    f^3, f^2 and f in MHz, from the lowest clock on. busy_w_per_ghz: of V^2 f at full utilisation of a typical network.
    memory_w: at full use of the memory, by memory clock.
    bandwidth_bytes_per_s: at the highest memory clock. assumed: constants that nobody has published for this card.
    Source: the tables of GREENDLS's and PctoDL's authors, refitted; see docs/power.md.
    """

    name: str
    title: str
    sm_clocks_mhz: tuple[int, ...]
    memory_clocks_mhz: tuple[int, ...]
    sustained_mhz: int
    limit_w: tuple[float, float]
    voltage: Voltage
    idle_w: Mapping[int, float]
    idle_rise_w: tuple[float, float, float]
    busy_w_per_ghz: float
    memory_w: Mapping[int, float]
    bandwidth_bytes_per_s: float
    multiprocessors: int
    thermal: Thermal = field(default_factory=Thermal)
    sensor: Sensor = field(default_factory=Sensor)
    transition: Transition = field(default_factory=Transition)
    assumed: tuple[str, ...] = ()

    @property
    def tdp_w(self) -> float:
        """The highest power limit."""
        return self.limit_w[1]


def _steps(low: int, high: int, step: int = 15) -> tuple[int, ...]:
    return tuple(range(low, high + 1, step))


CARDS: dict[str, Card] = {
    card.name: card
    for card in (
        Card(
            "rtx3080ti",
            "RTX 3080 Ti",
            _steps(210, 2100),
            (405, 810, 5001, 9251, 9501),
            1950,
            (100.0, 350.0),
            Voltage(1458.0, 1.249),
            {405: 29.3, 810: 29.5, 5001: 42.0, 9251: 68.2, 9501: 68.2},
            (2.2066e-8, -5.2748e-5, 0.037471),
            48.0,
            {405: 27.0, 810: 28.0, 5001: 103.0, 9251: 137.0, 9501: 147.0},
            912e9,
            80,
            assumed=("thermal", "transition", "idle power at 5001 and 9251 MHz"),
        ),
        Card(
            "a100-40gb",
            "A100 SXM 40 GB",
            _steps(210, 1410),
            (1215,),
            1410,
            (100.0, 400.0),
            Voltage(975.0, 0.9),
            {1215: 28.5},
            (3.1656e-8, -5.1286e-5, 0.026055),
            150.0,
            {1215: 50.0},
            1555e9,
            108,
            Thermal(resistance_k_per_w=0.09),
            Sensor(average_s=0.025, period_s=0.1, noise_w=3.0),
            assumed=("thermal", "transition", "voltage", "power of the memory"),
        ),
        Card(
            "a100-80gb",
            "A100 SXM 80 GB",
            _steps(210, 1410),
            (1593,),
            1410,
            (100.0, 400.0),
            Voltage(975.0, 0.9),
            {1593: 40.0},
            (3.1656e-8, -5.1286e-5, 0.026055),
            150.0,
            {1593: 60.0},
            2039e9,
            108,
            Thermal(resistance_k_per_w=0.09),
            Sensor(average_s=0.025, period_s=0.1, noise_w=3.0),
            assumed=("voltage", "thermal", "transition", "idle power", "power of the memory"),
        ),
        Card(
            "v100s",
            "V100S PCIe 32 GB",
            tuple(sorted({*range(142, 1598, 15), *range(517, 1598, 60)})),
            (1107,),
            1597,
            (100.0, 250.0),
            Voltage(1285.0, 0.386),
            {1107: 24.8},
            (0.0, 0.0, 0.003),
            69.0,
            {1107: 0.0},
            1134e9,
            80,
            Thermal(resistance_k_per_w=0.155),
            Sensor(average_s=0.02, period_s=0.02, noise_w=2.0),
            assumed=("thermal", "transition", "steps of the SM clock"),
        ),
        Card(
            "h100",
            "H100 PCIe 80 GB",
            _steps(210, 1755),
            (1593,),
            1755,
            (200.0, 350.0),
            Voltage(1200.0, 0.9),
            {1593: 45.0},
            (0.0, 0.0, 0.012),
            80.0,
            {1593: 80.0},
            2000e9,
            114,
            Thermal(resistance_k_per_w=0.12),
            Sensor(average_s=0.025, period_s=0.1, noise_w=3.0),
            assumed=("voltage", "thermal", "transition", "idle power", "power"),
        ),
        Card(
            "dcu",
            "a DCU of 16 GB (gfx906-like)",
            (300, 448, 600, 735, 860, 987, 1106, 1225, 1319, 1400, 1550),
            (800,),
            1550,
            (100.0, 300.0),
            Voltage(1000.0, 0.6),
            {800: 32.0},
            (0.0, 0.0, 0.012),
            90.0,
            {800: 60.0},
            1024e9,
            64,
            Thermal(resistance_k_per_w=0.15),
            Sensor(average_s=0.1, period_s=0.1, noise_w=2.0),
            assumed=("everything but the lowest and the highest clock",),
        ),
    )
}


def card_named(name: str) -> Card:
    """A card by its name; a wrong name gets the list of right ones."""
    if name in CARDS:
        return CARDS[name]
    begun = [card for card in CARDS if name and card.startswith(name.lower())]  # a100: there are two of them
    near = begun or difflib.get_close_matches(name.lower(), CARDS, 1)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    raise PowerError(
        f"there is no card {name!r}{hint} Known: {', '.join(CARDS)}. For another card measure a grid and fit it."
    )
