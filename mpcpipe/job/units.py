"""Numbers with a unit, as people write them: `80ms`, `100Mbit/s`."""

from __future__ import annotations

import re
from collections.abc import Mapping

SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
BITS_PER_SECOND = {
    f"{prefix}{unit}": factor
    for unit in ("bps", "bit/s", "bit")
    for prefix, factor in (("k", 1e3), ("m", 1e6), ("g", 1e9))
}
_QUANTITY = re.compile(r"([0-9.]+)\s*([a-zA-Z/]+)")


def quantity(text: str, units: Mapping[str, float]) -> float:
    """The number in base units; units in any case of letters. A text that is none is a ValueError."""
    found = _QUANTITY.fullmatch(text.strip())
    try:
        if found:
            return float(found[1]) * units[found[2].lower()]
    except (KeyError, ValueError):
        pass
    raise ValueError(f"write a number and one of {', '.join(units)}")


def bytes_per_s(text: str) -> float:
    """A line's rate. A text that is none, or zero, is a ValueError."""
    rate = quantity(text, BITS_PER_SECOND) / 8
    if rate <= 0:
        raise ValueError("a line's rate is positive")
    return rate
