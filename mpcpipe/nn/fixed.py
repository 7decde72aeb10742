"""Secret numbers with a fixed point: shares, and how many of their bits are fraction.

Scales differ on purpose: average pooling over a window of 4 is a sum whose value has two more fraction bits, and
costs nothing; the next product truncates them away together with its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mpcpipe.protocol.base import Partial, Protocol, Share
from mpcpipe.ring.bilinear import Bilinear, Shape

DEFERRED_BITS = 8
"""More fraction bits than this above the working precision are truncated away rather than handed on."""


@dataclass(frozen=True)
class Fixed:
    """A secret tensor: real value = data / 2^fraction_bits. data (components, *shape)."""

    data: Share
    fraction_bits: int

    @property
    def shape(self) -> Shape:
        """Shape of the secret tensor, without the share components."""
        return tuple(self.data.shape[1:])

    def reshape(self, *shape: int) -> Fixed:
        """The same numbers in another shape. Local."""
        return Fixed(self.data.reshape(self.data.shape[0], *shape), self.fraction_bits)


@dataclass(frozen=True)
class PartialGrad:
    """A weight's gradient before it is reduced: sums of local products over micro-batches. See `Protocol.multiply`."""

    data: Partial
    fraction_bits: int

    def __add__(self, other: PartialGrad) -> PartialGrad:
        """Sum over micro-batches: local, and free."""
        assert self.fraction_bits == other.fraction_bits
        return PartialGrad(self.data + other.data, self.fraction_bits)


def kept(p: Protocol, x: Fixed) -> Fixed:
    """x, to be used in several products. See `Protocol.keep`."""
    return Fixed(p.keep(x.data), x.fraction_bits)


def raised(p: Protocol, x: Fixed, fraction_bits: int) -> Fixed:
    """x with at least as many fraction bits as it has: a shift left. Local."""
    more = fraction_bits - x.fraction_bits
    if more < 0:
        raise ValueError(
            f"a value of {x.fraction_bits} fraction bits cannot be given {fraction_bits} without a truncation"
        )
    return Fixed(p.ring.wrap(x.data << more), fraction_bits) if more else x


async def rescale(p: Protocol, x: Fixed, fraction_bits: int) -> Fixed:
    """x with exactly `fraction_bits`. Cost: a truncation if there are fewer than before, else nothing."""
    fewer = x.fraction_bits - fraction_bits
    if fewer <= 0:
        return raised(p, x, fraction_bits)
    return Fixed(await p.truncate(x.data, fewer), fraction_bits)


async def at_most(p: Protocol, x: Fixed, most: int, target: int) -> Fixed:
    """x as it is while it has no more than `most` fraction bits, else truncated to `target`."""
    return x if x.fraction_bits <= most else await rescale(p, x, target)


async def divided(p: Protocol, x: Fixed, count: int, fraction_bits: int, most: int = 0) -> Fixed:
    """x / count, count public. The factor 1 / count is rounded to 17 significant bits if it is not a power of two.

    Cost: a power of two only adds fraction bits: nothing up to `most` of them; else a truncation to `fraction_bits`.
    """
    shift = count.bit_length() - 1
    if count == 1 << shift:
        y = Fixed(x.data, x.fraction_bits + shift)
        return (
            await at_most(p, y, max(most, fraction_bits), fraction_bits) if most else await rescale(p, y, fraction_bits)
        )
    shift += 17
    y = Fixed(p.ring.wrap(x.data * round(2**shift / count)), x.fraction_bits + shift)
    return await rescale(p, y, fraction_bits)


def added(p: Protocol, x: Fixed, y: Fixed) -> Fixed:
    """x + y at the finer of the two scales. Local."""
    bits = max(x.fraction_bits, y.fraction_bits)
    return Fixed(p.ring.wrap(raised(p, x, bits).data + raised(p, y, bits).data), bits)


async def product(
    p: Protocol, op: Bilinear, x: Fixed, y: Fixed, fraction_bits: int, bias: Fixed | None = None
) -> Fixed:
    """op(x, y) (+ bias, already broadcast against the result) with `fraction_bits`, reduced once.

    Cost: one `reduce`, with truncation if the product has more fraction bits than asked for.
    """
    bits = x.fraction_bits + y.fraction_bits
    z = await p.multiply(op, x.data, y.data)
    if bias is not None:
        if bias.fraction_bits > bits:
            raise ValueError(f"a bias of {bias.fraction_bits} fraction bits is finer than its product of {bits}")
        z = p.ring.wrap(z.add_(p.partial(raised(p, bias, bits).data)))
    if bits < fraction_bits:
        return raised(p, Fixed(await p.reduce(z), bits), fraction_bits)
    return Fixed(await p.reduce(z, bits - fraction_bits), fraction_bits)


def summed(x: Fixed, dims: tuple[int, ...]) -> Fixed:
    """Sum over `dims` of the secret tensor (counted without the components). Local."""
    return Fixed(x.data.sum(dim=tuple(d + 1 for d in dims), dtype=x.data.dtype), x.fraction_bits)


def constant(p: Protocol, value: torch.Tensor, fraction_bits: int) -> Fixed:
    """A public float tensor as a `Fixed`. Local."""
    return Fixed(p.public((value.to(torch.float64) * 2.0**fraction_bits).round().to(p.ring.dtype)), fraction_bits)
