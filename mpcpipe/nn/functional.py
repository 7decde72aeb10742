"""Functions of secret numbers, over any protocol: exp, reciprocal, inverse square root, logarithm, maximum.

Nothing is opened. Two ways lead to a function of one variable, both without iteration:

    narrow   all cuts are compared at once while the powers of x are computed; the bits select a cubic's coefficients
    wide     the bits select 1 / center of x's segment, so that x = center (1 + delta), then a quartic in delta

Costs in rounds are those of replicated3 with 32 compared bits: comparison 7, bit to ring 2, product with truncation 2
(of more than 2^14 elements 3).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import torch

from mpcpipe.errors import ModelError
from mpcpipe.nn.fixed import Fixed, product, raised, rescale
from mpcpipe.nn.piecewise import Centers, centers, cubics, rounded
from mpcpipe.protocol.base import Partial, Protocol, Share
from mpcpipe.protocol.rounds import gather
from mpcpipe.ring.bilinear import MUL

EXP_RANGE = 16.0
"""exp(-16) is nothing at 16 fraction bits, and still nothing when a hundred classes are summed."""

# The minimax quartics P for P(x)^8 = exp(8 x) and P(x)^16 = exp(16 x), fitted for the power, not for exp itself (linear
# programming on a grid), the second with ten times the weight for the tail. Worst errors: 3.1e-6; 8e-7, tail 8e-8.
_EXP = {
    3: (0.9999996180105326, 0.9999471227710331, 0.4990188719073472, 0.16114434181092213, 0.030220561317801396),
    4: (0.9999999494744212, 0.9999904106843037, 0.4997441770584926, 0.16448162731556348, 0.034473397950077936),
}

_SQUARED_BITS = 22
_CUBED_BITS = 18
_TOTAL_BITS = 56
_DELTA_BITS = 24

# (1 + d)^-1, (1 + d)^-1/2 and log(1 + d), to the fourth power of d
_QUARTICS: dict[str, tuple[Fraction, ...]] = {
    "reciprocal": (Fraction(1), Fraction(-1), Fraction(1), Fraction(-1), Fraction(1)),
    "inverse_sqrt": (Fraction(1), Fraction(-1, 2), Fraction(3, 8), Fraction(-5, 16), Fraction(35, 128)),
    "log": (Fraction(0), Fraction(1), Fraction(-1, 2), Fraction(1, 3), Fraction(-1, 4)),
}


def _needs(p: Protocol, bits: int, what: str) -> None:
    if p.ring.bits < bits:
        raise ModelError(f"{what} needs a ring of {bits} bits, and this one has {p.ring.bits}; use a ring of 64 bits")


def _everywhere(p: Protocol, value: int, like: Share) -> Share:
    """An integer as a share of like's shape. Local."""
    return p.public(torch.full_like(like[0], value))


def _public(p: Protocol, values: Sequence[int], like: Share) -> Share:
    """Integers as a share (components, len(values), 1, 1, ...) that broadcasts against like's (components, *shape)."""
    flat = p.public(torch.tensor(values, dtype=p.ring.dtype, device=like.device))
    return flat.reshape(flat.shape[0], len(values), *[1] * (like.dim() - 1))


async def exp(p: Protocol, x: Fixed, fraction_bits: int = 22, squarings: int = 3) -> Fixed:
    """exp(x) for x in [-16, 0].

    Range: x has at most 16 fraction bits (more are truncated, 2 rounds). Worst error over the domain, with 22 fraction
    bits of the result: 4e-6, a quarter of a unit of 16 fraction bits; with four squarings 2.2e-6, and 4e-7 below -6.
    Method: a quartic in x / 8 (x / 16), two products deep, then the squarings.
    Cost: 10 rounds (12), 5 products with truncation an element (6).
    """
    _needs(p, 64, "exp")
    x = raised(p, await rescale(p, x, min(x.fraction_bits, 16)), 16)
    small = Fixed(x.data, 16 + squarings)
    square = await product(p, MUL, small, small, _SQUARED_BITS)
    # ((c2 + c3 x + c4 x^2) x^2 + c1 x + c0), the bracket with 38 bits, the sum with 60
    c0, c1, c2, c3, c4 = (Fraction(c) for c in _EXP[squarings])
    bracket = small.data * rounded(c3, 38 - small.fraction_bits) + square.data * rounded(c4, 16)
    z = await p.multiply(MUL, bracket + _everywhere(p, rounded(c2, 38), x.data), square.data)
    linear = small.data * rounded(c1, 60 - small.fraction_bits) + _everywhere(p, rounded(c0, 60), x.data)
    y = Fixed(await p.reduce(z.add_(p.partial(linear)), 32), 28)
    for index in range(squarings):
        y = await product(p, MUL, y, y, fraction_bits if index == squarings - 1 else 28)
    return y


async def segment_bits(p: Protocol, x: Fixed, cuts: Sequence[Fraction]) -> Share:
    """For each cut (first dimension), 1 where x is at or above it, as ring elements. Cost: 9 rounds."""
    thresholds = [rounded(cut, x.fraction_bits) for cut in cuts]
    if thresholds and max(thresholds) >= 1 << (p.compare_bits - 2):
        raise ModelError(
            f"comparing with {float(max(cuts)):g} at {x.fraction_bits} fraction bits needs more than the "
            f"{p.compare_bits} compared bits of this protocol; raise compare_bits"
        )
    return await p.to_ring(await p.nonnegative(x.data.unsqueeze(1) - _public(p, thresholds, x.data)))


def _selected(p: Protocol, bits: Share, table: Sequence[int]) -> Share:
    """table[number of the segment], by bits (components, cuts, *shape): a sum of bits with public factors. Local."""
    half, size = 1 << (p.ring.bits - 1), 1 << p.ring.bits
    shape = bits.shape[2:]
    out = p.public(torch.full(shape, table[0], dtype=p.ring.dtype, device=bits.device))
    for index, (before, after) in enumerate(itertools.pairwise(table)):
        out = out + bits[:, index] * ((after - before + half) % size - half)
    return p.ring.wrap(out)


async def _powers(p: Protocol, x: Fixed, times: Fixed | None) -> list[Fixed]:
    """times * (1, x, x^2, x^3); without `times`, (x, x^2, x^3). 4 rounds."""
    if times is None:
        square = await product(p, MUL, x, x, 20)
        return [x, square, await product(p, MUL, x, square, _CUBED_BITS)]
    square, first = await gather(product(p, MUL, x, x, 20), product(p, MUL, times, x, 22))
    second, third = await gather(product(p, MUL, times, square, 20), product(p, MUL, first, square, _CUBED_BITS))
    return [times, first, second, third]


async def narrow(
    p: Protocol, function: str, x: Fixed, octaves: int, fraction_bits: int, times: Fixed | None = None
) -> Fixed:
    """function(x) (times `times`, which x broadcasts to) for x in [1, 2^octaves], octaves <= 4.

    function: "reciprocal", "inverse_sqrt" or "log". x has at most 22 fraction bits.
    Worst error, four cubics an octave: relative 1.1e-5 for the reciprocal, 3.1e-6 for the inverse square root;
    absolute 3e-6 for the logarithm; plus a unit of the result.
    Cost: 11 rounds: comparisons with 4 octaves - 1 cuts, and the powers of x beside them.
    """
    _needs(p, 64, function)
    if octaves > 4:
        raise ValueError(f"{function} by cubics in x takes four octaves at most, not {octaves}")
    pieces = cubics(function, octaves)
    x = raised(p, x, max(x.fraction_bits, min(22, p.compare_bits - 2 - octaves)))
    bits, powers = await gather(segment_bits(p, x, pieces.cuts), _powers(p, x, times))

    def coefficient(order: int, scale: int) -> Share:
        return _selected(p, bits, [rounded(c[order], scale) for c in pieces.coefficients])

    total: Partial | None = None
    for order, power in enumerate(powers, start=0 if times is not None else 1):
        z = await p.multiply(MUL, coefficient(order, _TOTAL_BITS - power.fraction_bits), power.data)
        total = z if total is None else total.add_(z)
    assert total is not None
    if times is None:
        total = total + p.partial(coefficient(0, _TOTAL_BITS))
    return Fixed(await p.reduce(p.ring.wrap(total), _TOTAL_BITS - fraction_bits), fraction_bits)


def _span(low: float, high: float) -> tuple[Fraction, int]:
    start = Fraction(low)
    octaves = 1
    while start * 2**octaves < Fraction(high):
        octaves += 1
    return start, octaves


def _bits_for(table: Sequence[Fraction]) -> int:
    """Fraction bits that give the smallest of a table's entries 22 significant bits."""
    smallest = min(abs(value) for value in table)
    return max(0, 22 - math.frexp(float(smallest))[1])


async def _delta(p: Protocol, x: Fixed, table: Centers) -> tuple[Share, Fixed]:
    """The segments' bits, and delta with x = center (1 + delta). 11 rounds."""
    scale = _bits_for(table.inverses)
    if scale + x.fraction_bits + 3 > p.ring.bits - 2:
        largest = 1 / float(min(table.inverses))
        raise ValueError(f"a range up to {largest:g} is too wide for a value of {x.fraction_bits} fraction bits")
    bits = await segment_bits(p, x, table.cuts)
    inverse = Fixed(_selected(p, bits, [rounded(v, scale) for v in table.inverses]), scale)
    ratio = await product(p, MUL, x, inverse, _DELTA_BITS)
    return bits, Fixed(p.ring.wrap(ratio.data - _everywhere(p, 1 << _DELTA_BITS, x.data)), _DELTA_BITS)


async def _quartic(p: Protocol, coefficients: Sequence[Fraction], delta: Fixed) -> Fixed:
    """c0 + ... + c4 delta^4 at 24 fraction bits. 4 rounds."""
    square = await product(p, MUL, delta, delta, _DELTA_BITS)
    c0, c1, c2, c3, c4 = coefficients
    bits = _DELTA_BITS + 10
    bracket = delta.data * rounded(c3, 10) + square.data * rounded(c4, 10)
    z = await p.multiply(MUL, bracket + _everywhere(p, rounded(c2, bits), delta.data), square.data)
    linear = delta.data * rounded(c1, bits) + _everywhere(p, rounded(c0, bits + _DELTA_BITS), delta.data)
    return Fixed(await p.reduce(p.ring.wrap(z.add_(p.partial(linear))), bits), _DELTA_BITS)


async def wide(
    p: Protocol, function: str, x: Fixed, low: float, high: float, fraction_bits: int, per_octave: int = 4
) -> Fixed:
    """function(x), "reciprocal" or "inverse_sqrt", for x in [low, high], any number of octaves.

    Worst relative error with 4 segments an octave: reciprocal 9e-6, inverse square root 2e-6; with 2 an octave: 4e-4
    and 9e-5; plus a unit of the result. Below `low` the result stays finite, at most 5.2 times function(low); above
    `high` it is meaningless. x needs so many fraction bits that `low` is many units.
    Cost: 17 rounds, and a comparison for each segment and element.
    """
    _needs(p, 64, function)
    table = centers(function, *_span(low, high), per_octave)
    bits, delta = await _delta(p, x, table)
    scale = _bits_for(table.values)
    value = Fixed(_selected(p, bits, [rounded(v, scale) for v in table.values]), scale)
    return await product(p, MUL, await _quartic(p, _QUARTICS[function], delta), value, fraction_bits)


async def reciprocal(p: Protocol, x: Fixed, low: float, high: float, fraction_bits: int = 16) -> Fixed:
    """1 / x for x in [low, high], low > 0. See `wide`. Cost: 17 rounds."""
    return await wide(p, "reciprocal", x, low, high, fraction_bits)


async def inverse_sqrt(
    p: Protocol, x: Fixed, low: float, high: float, fraction_bits: int = 16, per_octave: int = 4
) -> Fixed:
    """1 / sqrt(x) for x in [low, high], low > 0. See `wide`. Cost: 17 rounds."""
    return await wide(p, "inverse_sqrt", x, low, high, fraction_bits, per_octave)


async def log(p: Protocol, x: Fixed, low: float, high: float, fraction_bits: int = 16) -> Fixed:
    """The natural logarithm of x in [low, high], low > 0.

    Worst absolute error: 2e-6 plus a unit. Below `low` the result is at least log(low) - 2.1.
    Cost: 17 rounds (15, and 2 to truncate), a comparison for each quarter octave.
    """
    _needs(p, 64, "log")
    table = centers("log", *_span(low, high), 4)
    bits, delta = await _delta(p, x, table)
    y = await _quartic(p, _QUARTICS["log"], delta)
    base = _selected(p, bits, [rounded(v, y.fraction_bits) for v in table.values])
    return await rescale(p, Fixed(p.ring.wrap(y.data + base), y.fraction_bits), fraction_bits)


async def product_of_bits(p: Protocol, x: Share) -> Share:
    """The product over the first dimension of ring elements 0 and 1 (components, n, ...). Cost: ceil(log2 n) rounds."""
    while (count := x.shape[1]) > 1:
        half = count // 2
        y = await p.product(MUL, x[:, :half], x[:, half : 2 * half])
        x = torch.cat((y, x[:, 2 * half :]), dim=1) if count % 2 else y
    return x[:, 0]


async def maximum(p: Protocol, x: Fixed) -> Fixed:
    """The maximum over the first dimension, x (n, ...), by a tournament; |x| < 2^(compare_bits - 2) units.

    Cost: n - 1 comparisons, 9 ceil(log2 n) rounds. Exact.
    """
    players = x.data
    while (count := players.shape[1]) > 1:
        half = count // 2
        second = players[:, half : 2 * half]
        lead = p.ring.wrap(players[:, :half] - second)
        best, _ = await p.select(await p.nonnegative(lead), lead)
        best = p.ring.wrap(best + second)
        players = torch.cat((best, players[:, 2 * half :]), dim=1) if count % 2 else best
    return Fixed(players[:, 0], x.fraction_bits)
