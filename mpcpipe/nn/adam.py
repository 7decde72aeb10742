"""Adam on secret gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from mpcpipe.nn.fixed import Fixed, PartialGrad, rescale
from mpcpipe.nn.functional import inverse_sqrt
from mpcpipe.nn.optim import SIGNIFICANT_BITS, Optimizer, Term, factor_bits, reduce_all, with_room
from mpcpipe.protocol.base import Protocol, Share
from mpcpipe.protocol.rounds import gather
from mpcpipe.ring.bilinear import MUL

GRADIENT_BITS = 22
SQUARE_BITS = 40
MIXING_BITS = 14
"""Both betas are rounded to 14 bits: 0.999 is 0.99902, 0.9 is 0.90002."""

ROOT_BITS = 20


class Adam(Optimizer):
    """torch.optim.Adam, with epsilon under the root: w -= lr m / sqrt(v + epsilon^2), where torch has sqrt(v) +
    epsilon.

    Gradients well below epsilon therefore move weights in proportion to themselves, as SGD would, and not by their
    sign.
    Range: mean gradients (weight decay included) below 2^(limit_bits / 2) in magnitude; epsilon at least 2^-10.
    State: `m.<parameter>` (22 fraction bits), `v.<parameter>` (40), and the public count of `steps`.
    Cost: 32 rounds (25 for small models); 2 comparisons for each weight and octave of [epsilon^2, 2^limit_bits], 36
    with the defaults, and as many elements of memory: for models of some hundred thousand weights at most.
    """

    def __init__(
        self,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 2.0**-8,
        weight_decay: float = 0.0,
        limit_bits: int = 2,
    ) -> None:
        super().__init__()
        if epsilon < 2.0**-10:
            raise ValueError(f"Adam's epsilon must be 2^-10 or more in fixed point, not {epsilon:g}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"Adam's betas are in [0, 1), not {betas}")
        whole = 1 << MIXING_BITS
        self.betas = (round(betas[0] * whole) / whole, min(whole - 1, round(betas[1] * whole)) / whole)
        self.epsilon, self.weight_decay, self.limit_bits = epsilon, weight_decay, limit_bits

    async def step(
        self,
        p: Protocol,
        parameters: Mapping[str, Fixed],
        grads: Mapping[str, PartialGrad],
        learning_rate: float,
        batch_size: int,
    ) -> dict[str, Fixed]:
        """One step."""
        self.public["steps"] = self.public.get("steps", 0) + 1
        grads = await with_room(p, grads, 1 / batch_size, GRADIENT_BITS)
        terms = {name: self._mean(p, grad, parameters[name], batch_size) for name, grad in grads.items()}
        means = await reduce_all(p, terms)
        names = list(means)
        sizes = [means[name][0].numel() for name in names]
        flat = {key: self._flat(p, key, names, means) for key in ("g", "m", "v")}
        m, v = await gather(self._first(p, flat["g"], flat["m"]), self._second(p, flat["g"], flat["v"]))
        step, bits = await self._quotient(p, m, v, learning_rate)
        new = dict(parameters)
        pieces = zip(*[torch.split(x, sizes, dim=1) for x in (step, m.data, v.data)], strict=True)
        for name, (moved, first, second) in zip(names, pieces, strict=True):
            w = parameters[name]
            self.state[f"m.{name}"] = Fixed(first.clone(), GRADIENT_BITS)
            self.state[f"v.{name}"] = Fixed(second.clone(), SQUARE_BITS)
            finer = max(0, w.fraction_bits - bits)
            new[name] = Fixed(p.ring.wrap(w.data - (moved << finer).reshape(w.data.shape)), w.fraction_bits)
        return new

    def _flat(self, p: Protocol, key: str, names: list[str], means: Mapping[str, Share]) -> Fixed:
        bits = SQUARE_BITS if key == "v" else GRADIENT_BITS
        if key == "g":
            return Fixed(torch.cat([means[name].flatten(1) for name in names], dim=1), bits)
        kept = [self.state.get(f"{key}.{name}") for name in names]
        parts = [
            p.zeros((means[n][0].numel(),), means[n].device) if x is None else x.data
            for n, x in zip(names, kept, strict=True)
        ]
        return Fixed(torch.cat(parts, dim=1), bits)

    def _mean(self, p: Protocol, grad: PartialGrad, w: Fixed, batch_size: int) -> Term:
        """The mean gradient with 22 fraction bits, weight decay included."""
        extra = max(factor_bits(p, 1 / batch_size, grad.fraction_bits), GRADIENT_BITS - grad.fraction_bits)
        truncate = grad.fraction_bits + extra - GRADIENT_BITS
        z = grad.data * round(2**extra / batch_size)
        if self.weight_decay:
            up = truncate + GRADIENT_BITS - w.fraction_bits
            z = z.add_(p.partial(w.data), alpha=round(self.weight_decay * 2**up))
        return Term(p.ring.wrap(z), truncate)

    async def _first(self, p: Protocol, g: Fixed, m: Fixed) -> Fixed:
        keep = round(self.betas[0] * 2**MIXING_BITS)
        mixed = p.ring.wrap(m.data * keep + g.data * ((1 << MIXING_BITS) - keep))
        return Fixed(await p.truncate(mixed, MIXING_BITS), m.fraction_bits)

    async def _second(self, p: Protocol, g: Fixed, v: Fixed) -> Fixed:
        keep = round(self.betas[1] * 2**MIXING_BITS)
        spare = 2 * GRADIENT_BITS - SQUARE_BITS
        z = (await p.multiply(MUL, g.data, g.data)) * ((1 << MIXING_BITS) - keep)
        z = p.ring.wrap(z.add_(p.partial(v.data), alpha=keep << spare))
        return Fixed(await p.reduce(z, MIXING_BITS + spare), v.fraction_bits)

    async def _quotient(self, p: Protocol, m: Fixed, v: Fixed, learning_rate: float) -> tuple[Share, int]:
        """lr m' / sqrt(v' + epsilon^2) and its fraction bits, with the bias corrections of Adam."""
        first, second = (1 - beta ** int(self.public["steps"]) for beta in self.betas)
        grown = Fixed(p.ring.wrap(v.data * round(2**6 / second)), v.fraction_bits + 6)
        corrected = await rescale(p, grown, 24)
        floor = p.public(torch.full_like(v.data[0], max(1, round(self.epsilon**2 * 2**24))))
        inside = Fixed(p.ring.wrap(corrected.data + floor), 24)
        root = await inverse_sqrt(p, inside, self.epsilon**2, 2.0**self.limit_bits, ROOT_BITS, per_octave=2)
        factor = learning_rate / first
        extra = max(0, SIGNIFICANT_BITS - math.frexp(factor)[1]) if factor > 0 else 0
        z = (await p.multiply(MUL, m.data, root.data)) * round(factor * 2**extra)
        bits = 16
        return await p.reduce(p.ring.wrap(z), m.fraction_bits + root.fraction_bits + extra - bits), bits
