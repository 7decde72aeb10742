"""Batch normalization with secret statistics.

    mean, variance        sums of local products, one reduction of a value a feature
    inv = 1/sqrt(var)     a value a feature
    y = xc a + beta       xc = x - mean, a = gamma inv: the one product over the whole tensor

and on the way back, with u = mean(dy xc) and q = a inv^2,

    dx = a (dy - mean(dy)) - xc (q u)        two local products over the whole tensor, reduced once
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mpcpipe.nn.fixed import Fixed, PartialGrad, at_most, constant, divided, kept, product, raised, rescale, summed
from mpcpipe.nn.functional import inverse_sqrt
from mpcpipe.nn.layers.activation import COMPARED_BITS
from mpcpipe.nn.layers.base import Layer, Saved
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.rounds import gather
from mpcpipe.ring.bilinear import MUL, Shape

CENTERED_BITS = 18
VARIANCE_BITS = 22
SQUARED_BITS = 22
FINE_BITS = 24
MIXING_BITS = 20

LOWEST_VARIANCE, HIGHEST_VARIANCE = 2.0**-10, 2.0**8


@dataclass
class Statistics:
    """For the gradients; all but xc have a value a feature. moment: sum(dy xc), once somebody has computed it."""

    xc: Fixed
    a: Fixed
    inv: Fixed
    q: Fixed
    count: int
    moment: Fixed | None = None


class BatchNorm(Layer):
    """torch.nn.BatchNorm1d and 2d, affine, for x (batch, features) or (batch, features, height, width).

    Range: the variance is in [2^-10, 2^8]; below, the factor 1/sqrt is at most 79. |gamma| < 8.
    Parameters weight, bias; buffers running_mean, running_var, updated in training as by torch (unbiased variance).
    Cost: forward in training 34 rounds, backward 11 (27 and 8 of small tensors), each with one reduction with
    truncation an element; all else is a value a feature. Evaluation 21 rounds, or a few more.
    """

    def __init__(self, name: str, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(name)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum

    @property
    def couples_rows(self) -> bool:
        """By their mean and variance."""
        return True

    def output_shape(self, shape: Shape) -> Shape:
        """The same."""
        if len(shape) not in (2, 4) or shape[1] != self.num_features:
            raise ValueError(f"{self.name} takes (batch, {self.num_features}), or that with height and width")
        return shape

    def _dims(self, x: Fixed) -> tuple[int, ...]:
        return tuple(d for d in range(len(x.shape)) if d != 1)

    def _wide(self, value: Fixed, x: Fixed) -> Fixed:
        """A value a feature, to be broadcast against x."""
        return value.reshape(*(self.num_features if d == 1 else 1 for d in range(len(x.shape))))

    def _minus(self, p: Protocol, x: Fixed, mean: Fixed) -> Fixed:
        raised_x = raised(p, x, mean.fraction_bits)
        return Fixed(p.ring.wrap(raised_x.data - self._wide(mean, x).data), mean.fraction_bits)

    async def _inverse(self, p: Protocol, variance: Fixed) -> Fixed:
        eps = constant(
            p, torch.full((self.num_features,), self.eps, device=variance.data.device), variance.fraction_bits
        )
        inside = Fixed(p.ring.wrap(variance.data + eps.data), variance.fraction_bits)
        return await inverse_sqrt(p, inside, LOWEST_VARIANCE, HIGHEST_VARIANCE, 20)

    async def _scaled(self, p: Protocol, xc: Fixed, a: Fixed) -> Fixed:
        bias = self._wide(self.parameters["bias"], xc)
        return await product(p, MUL, xc, self._wide(a, xc), self.working_bits, bias)

    async def forward(self, p: Protocol, x: Fixed, training: bool) -> tuple[Fixed, Saved]:
        """y, and the statistics."""
        x = await at_most(p, x, self.working_bits + COMPARED_BITS, self.working_bits)
        if not training:
            return await self._evaluate(p, x), None
        dims = self._dims(x)
        count = torch.Size([x.shape[d] for d in dims]).numel()
        if count < 2:
            raise ValueError(f"{self.name}: batch normalization in training needs more than one value a feature")
        mean = await divided(p, summed(x, dims), count, CENTERED_BITS)
        xc = kept(p, self._minus(p, x, mean))
        squares = await self._sum_of_products(p, xc, xc)
        variance = await divided(p, squares, count, VARIANCE_BITS)
        inv, running = await gather(self._inverse(p, variance), self._updated(p, mean, variance, count))
        a, squared = await gather(
            product(p, MUL, inv, self.parameters["weight"], CENTERED_BITS), product(p, MUL, inv, inv, SQUARED_BITS)
        )
        y, q = await gather(self._scaled(p, xc, a), product(p, MUL, a, squared, FINE_BITS))
        self.buffers.update(running)
        return y, Statistics(xc, a, inv, q, count)

    async def _evaluate(self, p: Protocol, x: Fixed) -> Fixed:
        mean, variance = self.buffers["running_mean"], self.buffers["running_var"]
        inv = await self._inverse(p, await rescale(p, variance, VARIANCE_BITS))
        a = await product(p, MUL, inv, self.parameters["weight"], CENTERED_BITS)
        return await self._scaled(p, self._minus(p, x, await rescale(p, mean, CENTERED_BITS)), a)

    async def _updated(self, p: Protocol, mean: Fixed, variance: Fixed, count: int) -> dict[str, Fixed]:
        """The running statistics after this batch. 2 rounds, beside the inverse square root."""
        unbiased = self.momentum * count / (count - 1)

        async def mixed(old: Fixed, new: Fixed, share: float) -> Fixed:
            keep = raised(p, old, new.fraction_bits).data * round((1 - self.momentum) * 2**MIXING_BITS)
            z = keep + new.data * round(share * 2**MIXING_BITS)
            fine = Fixed(p.ring.wrap(z), new.fraction_bits + MIXING_BITS)
            return await rescale(p, fine, old.fraction_bits)

        means, variances = await gather(
            mixed(self.buffers["running_mean"], mean, self.momentum),
            mixed(self.buffers["running_var"], variance, unbiased),
        )
        return {"running_mean": means, "running_var": variances}

    async def _sum_of_products(self, p: Protocol, x: Fixed, y: Fixed) -> Fixed:
        """The sum over all but the features of x y, at 24 fraction bits. 3 rounds."""
        z = await p.multiply(MUL, x.data, y.data)
        z = p.ring.wrap(z.sum(tuple(d + 1 for d in self._dims(x)), dtype=z.dtype))
        return Fixed(await p.reduce(z, x.fraction_bits + y.fraction_bits - FINE_BITS), FINE_BITS)

    async def _moment(self, p: Protocol, saved: Statistics, dy: Fixed) -> Fixed:
        """The sum over all but the features of dy xc."""
        if saved.moment is None:
            saved.moment = await self._sum_of_products(p, saved.xc, dy)
        return saved.moment

    def _trained(self, saved: Saved) -> Statistics:
        if saved is None:
            raise ValueError(f"{self.name}: a forward pass in evaluation mode has no gradients")
        return saved  # type: ignore[no-any-return]

    async def input_grad(self, p: Protocol, saved: Saved, dy: Fixed) -> Fixed:
        """dx, through mean and variance."""
        s = self._trained(saved)

        async def coefficient() -> Fixed:
            total = await self._moment(p, s, dy)
            z = await p.multiply(MUL, s.q.data, (await divided(p, total, s.count, FINE_BITS)).data)
            return Fixed(await p.reduce(z, FINE_BITS), FINE_BITS)

        mean, slope = await gather(divided(p, summed(dy, self._dims(dy)), s.count, dy.fraction_bits + 2), coefficient())
        centered = self._minus(p, dy, mean)
        first = await p.multiply(MUL, centered.data, self._wide(s.a, dy).data)
        second = await p.multiply(MUL, s.xc.data, self._wide(slope, dy).data)
        bits = (centered.fraction_bits + s.a.fraction_bits, s.xc.fraction_bits + slope.fraction_bits)
        most = max(bits)
        z = p.ring.wrap((first << (most - bits[0])).sub_(second << (most - bits[1])))
        return Fixed(await p.reduce(z, most - self.working_bits), self.working_bits)

    async def weight_grad(self, p: Protocol, saved: Saved, dy: Fixed) -> dict[str, PartialGrad]:
        """Of weight: inv * sum(dy xc). Of bias: sum(dy). No round after input_grad, else 3."""
        s = self._trained(saved)
        total = await self._moment(p, s, dy)
        weight = PartialGrad(await p.multiply(MUL, s.inv.data, total.data), s.inv.fraction_bits + total.fraction_bits)
        return {"weight": weight, "bias": PartialGrad(p.partial(summed(dy, self._dims(dy)).data), dy.fraction_bits)}
