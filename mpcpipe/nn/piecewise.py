"""Public tables for piecewise polynomials, computed exactly: every party must get the same integers.

A share times a public integer that differs by one unit between two parties is garbage, so nothing here depends on a
machine's mathematical library: tables come from rational numbers and from `decimal`, whose roots and logarithms are
correctly rounded.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache

_CONTEXT = Context(prec=40)
# cos((2i + 1) pi / 8): Chebyshev's nodes for a cubic. Their exact value does not matter, that all parties use the
# same does.
_NODES = (Fraction(-924, 1000), Fraction(-383, 1000), Fraction(383, 1000), Fraction(924, 1000))


def _decimal(x: Fraction) -> Decimal:
    return _CONTEXT.divide(Decimal(x.numerator), Decimal(x.denominator))


def _reciprocal(x: Fraction) -> Fraction:
    return 1 / x


def _inverse_sqrt(x: Fraction) -> Fraction:
    return 1 / Fraction(_CONTEXT.sqrt(_decimal(x)))


def _log(x: Fraction) -> Fraction:
    return Fraction(_CONTEXT.ln(_decimal(x)))


FUNCTIONS: dict[str, Callable[[Fraction], Fraction]] = {
    "reciprocal": _reciprocal,
    "inverse_sqrt": _inverse_sqrt,
    "log": _log,
}


def rounded(x: Fraction, bits: int) -> int:
    """The integer nearest to x 2^bits."""
    return ((2 * x.numerator << bits) + x.denominator) // (2 * x.denominator)


@lru_cache(maxsize=64)
def edges(low: Fraction, octaves: int, per_octave: int) -> tuple[Fraction, ...]:
    """Edges of octaves * per_octave segments from `low` upwards, evenly spaced in the logarithm (to 2^-20)."""
    steps = [
        Fraction(rounded(Fraction(_CONTEXT.power(Decimal(2), _decimal(Fraction(i, per_octave)))), 20), 2**20)
        for i in range(per_octave)
    ]
    return (*tuple(low * 2**octave * step for octave in range(octaves) for step in steps), low * 2**octaves)


@dataclass(frozen=True)
class Cubics:
    """A function on segments: cuts between them, and four coefficients (of 1, x, x^2, x^3) for each."""

    cuts: tuple[Fraction, ...]
    coefficients: tuple[tuple[Fraction, ...], ...]


def _interpolate(f: Callable[[Fraction], Fraction], low: Fraction, high: Fraction) -> tuple[Fraction, ...]:
    """The cubic through f at the Chebyshev nodes of [low, high]."""
    xs = [(low + high) / 2 + node * (high - low) / 2 for node in _NODES]
    total = [Fraction(0)] * 4
    for i, x in enumerate(xs):
        basis = [Fraction(1)]
        scale = f(x)
        for j, other in enumerate(xs):
            if i != j:
                longer = [Fraction(0), *basis]
                basis = [longer[k] - (other * basis[k] if k < len(basis) else 0) for k in range(len(longer))]
                scale /= x - other
        total = [t + scale * b for t, b in zip(total, basis, strict=True)]
    return tuple(total)


@lru_cache(maxsize=64)
def cubics(function: str, octaves: int, per_octave: int = 4) -> Cubics:
    """`function` on [1, 2^octaves]."""
    bounds = edges(Fraction(1), octaves, per_octave)
    pieces = itertools.pairwise(bounds)
    return Cubics(bounds[1:-1], tuple(_interpolate(FUNCTIONS[function], low, high) for low, high in pieces))


@dataclass(frozen=True)
class Centers:
    """For each segment of [low, high]: 1 / center and f(center), where x = center (1 + delta)."""

    cuts: tuple[Fraction, ...]
    inverses: tuple[Fraction, ...]
    values: tuple[Fraction, ...]


@lru_cache(maxsize=64)
def centers(function: str, low: Fraction, octaves: int, per_octave: int) -> Centers:
    """`function` at the middle of each segment of [low, low 2^octaves]."""
    bounds = edges(low, octaves, per_octave)
    middles = [2 / (1 / a + 1 / b) for a, b in itertools.pairwise(bounds)]
    return Centers(bounds[1:-1], tuple(1 / m for m in middles), tuple(FUNCTIONS[function](m) for m in middles))
