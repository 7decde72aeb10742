"""Softmax of secret logits, nothing opened, in 34 rounds for up to 16 classes.

    13   every pair of logits compared, every difference clamped, the winner's row selected: x - max(x), at least -16
    10   exp
    11   divided by the sum: the segment of the sum is found while exp(x) is multiplied by the sum's powers

Rounds are those of replicated3 with 32 compared bits, for up to 2^14 numbers (batch times classes); 40 for more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mpcpipe.nn.fixed import Fixed, at_most, product
from mpcpipe.nn.functional import EXP_RANGE, exp, maximum, narrow, product_of_bits, reciprocal
from mpcpipe.protocol.base import Partial, Protocol, Share
from mpcpipe.protocol.rounds import gather
from mpcpipe.ring.bilinear import MUL

MOST_PAIRED = 16
"""Up to so many classes all pairs are compared at once; more classes play a tournament."""

_EXP_BITS = 22


@dataclass(frozen=True)
class Softmax:
    """probabilities (batch, classes).

    below (classes, batch): the logit minus the largest, clamped at -16; total (batch,): the sum of their exponentials.
    """

    probabilities: Fixed
    below: Fixed
    total: Fixed


async def _clamped(p: Protocol, d: Fixed) -> Share:
    """max(d, -16)."""
    floor = p.public(torch.full_like(d.data[0], round(EXP_RANGE * 2**d.fraction_bits)))
    above = p.ring.wrap(d.data + floor)
    kept, _ = await p.select(await p.nonnegative(above), above)
    return p.ring.wrap(kept - floor)


async def _all_times(p: Protocol, bits: Share, values: Share, depth: int) -> Partial:
    """The product of n < 2^depth bits, times values.

    bits (components, n, rows, 1, batch), values (components, rows, columns, batch).
    """
    room = 1 << (depth - 1)
    if bits.shape[1] > room:
        first, partial = await gather(
            product_of_bits(p, bits[:, :room]), _reduced(p, bits[:, room:], values, depth - 1)
        )
        return await p.multiply(MUL, first, partial)
    return await p.multiply(MUL, await product_of_bits(p, bits), values)


async def _reduced(p: Protocol, bits: Share, values: Share, depth: int) -> Share:
    return await p.reduce(await _all_times(p, bits, values, depth))


async def _below_paired(p: Protocol, x: Fixed) -> Fixed:
    """max(x - max(x), -16) over the first dimension of x (classes, batch), |x| < 2^(compare_bits - 2) units.

    Class j wins if it wins against all others (of equals the first). The sum over j of [j wins] * clamped(x_i - x_j) is
    x_i - max, clamped. Cost: 9 + ceil(log2 classes) rounds.
    """
    classes = x.shape[0]
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    first, second = ([pair[side] for pair in pairs] for side in (0, 1))
    lead = p.ring.wrap(x.data[:, first] - x.data[:, second])
    both = Fixed(torch.cat((lead, -lead), dim=1), x.fraction_bits)

    async def winners() -> Share:
        return await p.to_ring(await p.nonnegative(lead))

    wins, differences = await gather(winners(), _clamped(p, both))
    one = p.public(torch.ones_like(wins[0]))
    wins = torch.cat((wins, one - wins), dim=1)  # as `both`: (i, j) then (j, i)
    number = {pair: n for n, pair in enumerate(pairs + [(j, i) for i, j in pairs])}
    others = [[o for o in range(classes) if o != j] for j in range(classes)]
    bits = wins[:, [number[j, row[n]] for n in range(classes - 1) for j, row in enumerate(others)]]
    bits = bits.reshape(bits.shape[0], classes - 1, classes, 1, -1)
    values = differences[:, [number[i, j] for j in range(classes) for i in others[j]]]
    values = values.reshape(values.shape[0], classes, classes - 1, -1)
    z = await _all_times(p, bits, values, (classes - 1).bit_length())
    z = z.reshape(z.shape[0], classes * (classes - 1), -1)
    place = [j * (classes - 1) + others[j].index(i) for i in range(classes) for j in range(classes) if j != i]
    z = z[:, place].reshape(z.shape[0], classes, classes - 1, -1).sum(2, dtype=z.dtype)
    return Fixed(await p.reduce(p.ring.wrap(z)), x.fraction_bits)


async def _below_by_tournament(p: Protocol, x: Fixed) -> Fixed:
    """The same for many classes. Cost: 9 ceil(log2 classes) + 9 rounds."""
    best = await maximum(p, x)
    below = Fixed(p.ring.wrap(x.data - best.data.unsqueeze(1)), x.fraction_bits)
    return Fixed(await _clamped(p, below), x.fraction_bits)


async def softmax(p: Protocol, logits: Fixed, fraction_bits: int = 16) -> Softmax:
    """softmax over the last dimension of logits (batch, classes), |logit| < 2^(compare_bits - 2) units.

    Worst error measured: 2 units of 16 fraction bits for ten classes, 3 for 16, 2 for 100 (exp of another accuracy).
    Cost: 34 rounds for 9 to 16 classes, 31 for 2 classes; more than 16: 9 ceil(log2 classes) + 40.
    Security: nothing is opened.
    """
    classes = logits.shape[1]
    if classes < 2:
        raise ValueError(f"softmax needs two classes or more, not {classes}")
    x = await at_most(p, logits, 16, 16)
    paired = classes <= MOST_PAIRED
    x = Fixed(x.data.transpose(1, 2).contiguous(), x.fraction_bits)
    below = await (_below_paired(p, x) if paired else _below_by_tournament(p, x))
    bits = min(_EXP_BITS, p.compare_bits - 2 - octaves(classes))
    e = await exp(p, below, bits, squarings=3 if paired else 4)
    total = Fixed(e.data.sum(1, dtype=e.data.dtype), e.fraction_bits)
    if paired:
        y = await narrow(p, "reciprocal", total, octaves(classes), fraction_bits, e)
    else:
        inverse = await reciprocal(p, total, 1.0, float(2 ** octaves(classes)), 24)
        y = await product(p, MUL, e, inverse, fraction_bits)
    return Softmax(Fixed(y.data.transpose(1, 2).contiguous(), y.fraction_bits), below, total)


def octaves(classes: int) -> int:
    """Octaves in which the sum of so many exponentials, the largest of them 1, lies."""
    return max(1, (classes - 1).bit_length())
