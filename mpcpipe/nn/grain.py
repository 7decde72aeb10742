"""How small the pieces of a micro-batch may be. By itself, because plans are made without torch."""

from __future__ import annotations

LEAST_NUMEL = 1 << 15
"""A piece of a layer's result has at least so many elements: under the protocols here that is 300 kB or more."""


def pieces_for(numel: int, rows: int, wanted: int) -> int:
    """In how many pieces a layer is worked on whose result has so many elements in so many rows: `wanted`, or one.

    numel 0 stands for a layer whose rows are not independent.
    """
    return 1 if numel < wanted * LEAST_NUMEL or rows < wanted else wanted
