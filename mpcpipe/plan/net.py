"""A network between the parties, as the planner sees it: a round trip, and the rate of each party's line."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass

from mpcpipe.errors import PlanError
from mpcpipe.job.units import BITS_PER_SECOND, SECONDS, quantity


@dataclass(frozen=True)
class Net:
    """rtt_s: there and back. rate_bytes_per_s: of one party's line to all others, in each direction."""

    rtt_s: float = 0.0
    rate_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        if self.rtt_s < 0 or self.rate_bytes_per_s <= 0:
            raise PlanError(
                f"a network has a round trip of at least 0 and a positive rate, not {self.rtt_s} s and "
                f"{self.rate_bytes_per_s} bytes a second"
            )

    @property
    def latency_s(self) -> float:
        """One way."""
        return self.rtt_s / 2

    def __str__(self) -> str:
        rate = "none" if math.isinf(self.rate_bytes_per_s) else f"{self.rate_bytes_per_s * 8 / 1e6:g}Mbit/s"
        return f"rtt={self.rtt_s * 1e3:g}ms,rate={rate}"


NETS = {
    "none": Net(),
    "lan10": Net(0.2e-3, 10e9 / 8),
    "lan": Net(0.2e-3, 1e9 / 8),
    "metro": Net(4e-3, 1e9 / 8),
    "wan": Net(40e-3, 100e6 / 8),
}


def parse(text: str) -> Net:
    """A network by name (`wan`) or in numbers (`rtt=80ms,rate=1Gbps`); what is not given is no limit."""
    if text in NETS:
        return NETS[text]
    if "=" not in text:
        near = difflib.get_close_matches(text, NETS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise PlanError(f"there is no network {text!r}; {hint}there are {', '.join(NETS)}, or rtt=80ms,rate=1Gbps")
    given: dict[str, float] = {}
    for word in text.split(","):
        key, _, value = word.strip().partition("=")
        units = {"rtt": SECONDS, "rate": BITS_PER_SECOND}.get(key)
        if units is None:
            raise PlanError(f"a network has rtt and rate, not {key!r} (in {text!r}); write rtt=80ms,rate=1Gbps")
        if key in given:
            raise PlanError(f"{key} is given twice in {text!r}")
        try:
            given[key] = quantity(value, units)
        except ValueError as error:
            raise PlanError(f"{key}={value} is no {key}; {error}, such as 80ms") from error
    return Net(given.get("rtt", 0.0), given["rate"] / 8 if "rate" in given else math.inf)
