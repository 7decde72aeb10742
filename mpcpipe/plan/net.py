"""A network between the parties, as the planner sees it: a round trip, and the rate of each party's line."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass

from mpcpipe.errors import PlanError
from mpcpipe.job.units import BITS_PER_SECOND, SECONDS, quantity

_UNITS = {"rtt": SECONDS, "rate": BITS_PER_SECOND, "hub": {**SECONDS, "ns": 1e-9}}


@dataclass(frozen=True)
class Net:
    """rtt_s: there and back. rate_bytes_per_s: of one party's line to all others, in each direction.

    hub_s_per_byte: processor seconds that a byte on its way takes of the parties' own cores, where the network is
    emulated on their machine; 0 for real ones. host_s_per_byte: what the system of the party itself takes to send and
    receive it. host_s_per_message: what it takes a worker to go on after a message if another, or another piece,
    was computed since, besides what it takes an only one. paced_bytes_per_s: what a party's own `link.rate` says.
    """

    rtt_s: float = 0.0
    rate_bytes_per_s: float = math.inf
    hub_s_per_byte: float = 0.0
    host_s_per_byte: float = 0.0
    host_s_per_message: float = 0.0
    paced_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        if self.rtt_s < 0 or min(self.rate_bytes_per_s, self.paced_bytes_per_s) <= 0 or self.hub_s_per_byte < 0:
            raise PlanError(
                f"a network has a round trip of at least 0 and a positive rate, not {self.rtt_s} s and "
                f"{self.rate_bytes_per_s} bytes a second"
            )

    @property
    def latency_s(self) -> float:
        """One way."""
        return self.rtt_s / 2

    @property
    def work_s_per_byte(self) -> float:
        """What a byte on its way takes of a party's cores."""
        return self.hub_s_per_byte + self.host_s_per_byte

    @property
    def is_paced(self) -> bool:
        """Does the queue stand with who sends, where small messages pass? Not if the line is slower than it is told."""
        return self.paced_bytes_per_s <= self.rate_bytes_per_s and not math.isinf(self.paced_bytes_per_s)

    @property
    def line_bytes_per_s(self) -> float:
        """What leaves in a second."""
        return min(self.rate_bytes_per_s, self.paced_bytes_per_s)

    def leaves_per_s(self, cores: float) -> float:
        """What leaves in a second where a party has so many cores, if they do not keep up with what a byte takes."""
        return min(self.line_bytes_per_s, cores / self.work_s_per_byte if self.work_s_per_byte else math.inf)

    def __str__(self) -> str:
        rate = "none" if math.isinf(self.rate_bytes_per_s) else f"{self.rate_bytes_per_s * 8 / 1e6:g}Mbit/s"
        hub = f",hub={self.hub_s_per_byte * 1e9:g}ns" if self.hub_s_per_byte else ""
        return f"rtt={self.rtt_s * 1e3:g}ms,rate={rate}{hub}"


NETS = {
    "none": Net(),
    "lan10": Net(0.2e-3, 10e9 / 8),
    "lan": Net(0.2e-3, 1e9 / 8),
    "metro": Net(4e-3, 1e9 / 8),
    "wan": Net(40e-3, 100e6 / 8),
}


def parse(text: str) -> Net:
    """A network by name (`wan`), in numbers (`rtt=80ms,rate=1Gbps`), or a name and what differs (`lan,hub=2ns`)."""
    name, *_ = text.split(",")
    named = NETS.get(name)
    if named is None and "=" not in name:
        near = difflib.get_close_matches(name, NETS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise PlanError(f"there is no network {name!r}; {hint}there are {', '.join(NETS)}, or rtt=80ms,rate=1Gbps")
    given: dict[str, float] = {}
    for word in text.split(",")[named is not None :]:
        key, _, value = word.strip().partition("=")
        units = _UNITS.get(key)
        if units is None:
            raise PlanError(f"a network has rtt, rate and hub, not {key!r} (in {text!r}); write rtt=80ms,rate=1Gbps")
        if key in given:
            raise PlanError(f"{key} is given twice in {text!r}")
        try:
            given[key] = quantity(value, units)
        except ValueError as error:
            raise PlanError(f"{key}={value} is no {key}; {error}, such as 80ms") from error
    base = named or Net()
    return Net(
        given.get("rtt", base.rtt_s),
        given["rate"] / 8 if "rate" in given else base.rate_bytes_per_s,
        given.get("hub", 0.0),
    )
