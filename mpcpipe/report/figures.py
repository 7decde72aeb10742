"""Numbers as people read them, and round places for the ticks of an axis."""

from __future__ import annotations

import math


def seconds(value: float) -> str:
    """1.28 s, 640 ms, 12 µs."""
    if value >= 0.9995:
        return f"{_three(value)} s" if value < 999.5 else f"{value:,.0f} s"
    return f"{_three(value * 1e3)} ms" if value >= 0.9995e-3 else f"{value * 1e6:.0f} µs"


def nbytes(value: float) -> str:
    """4.81 MB, 12.3 kB, 640 B; powers of ten, as networks count."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= 0.9995 * size:
            return f"{_three(value / size)} {unit}" if value < 0.9995e12 else f"{value / size:,.0f} {unit}"
    return f"{value:.0f} B"


def joules(value: float) -> str:
    """1.75 kJ, 12.3 J, 640 mJ."""
    for size, unit in ((1e3, "kJ"), (1.0, "J")):
        if value >= 0.9995 * size:
            return f"{_three(value / size)} {unit}"
    return f"{_three(value * 1e3)} mJ"


def _three(value: float) -> str:
    """Three digits: 1.20, 12.0, 120."""
    return f"{value:#.3g}".rstrip(".")


def share(part: float, whole: float) -> str:
    """12%, <1%, 0%."""
    percent = 100 * part / whole if whole else 0.0
    return "<1%" if 0 < percent < 0.5 else f"{percent:.0f}%"


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from low to high, `most` at most; at least one."""
    if not high > low:
        return [low]
    rough = (high - low) / max(1, most - 1)
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)] or [low]


def plain(value: float) -> str:
    """A number at a tick, without needless zeros."""
    return f"{value:.10g}" if abs(value) < 1e6 else f"{value:.3g}"
