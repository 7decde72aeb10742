"""Optimizers: where weight gradients are reduced, and everything else of a step joined with that one truncation.

Learning rate, momentum, weight decay and 1 / batch are public, so they are integers that multiply partials at no cost:

    z = A g + B v + C w      g: the partial gradient, a sum over the batch      A ~ lr / batch * 2^e
    v = z >> t               v: the velocity, already times the learning rate    B ~ momentum * lr / last lr * 2^t
    w = w - v                local                                               C ~ lr * weight decay * 2^t

with t = bits(g) + e - bits(w). All parties compute the same factors: only IEEE additions,
products and quotients are used.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from mpcpipe.nn.fixed import Fixed, PartialGrad, raised
from mpcpipe.protocol.base import Partial, Protocol, Share
from mpcpipe.protocol.rounds import gather

UPDATE_BITS = 4
"""A step must move every weight by less than 2^4: the room that the joined truncation leaves."""

SIGNIFICANT_BITS = 10
"""Bits that the factor lr / batch has where there is room, an error of a thousandth; four fewer are tolerated."""

TOGETHER = 1 << 16
"""Parameters smaller than this are reduced as one flat tensor; larger ones would only be copied."""


@dataclass(frozen=True)
class Term:
    """A sum waiting for its reduction: partial / 2^truncate."""

    data: Partial
    truncate: int


async def reduce_all(p: Protocol, terms: Mapping[str, Term]) -> dict[str, Share]:
    """Reduce all terms in the same rounds; small ones with the same truncation as one flat tensor. 2 or 3 rounds."""
    groups: dict[int, list[str]] = {}
    alone: list[str] = []
    for name, term in terms.items():
        (groups.setdefault(term.truncate, []) if term.data[0].numel() < TOGETHER else alone).append(name)

    async def several(names: list[str], truncate: int) -> dict[str, Share]:
        flat = [terms[name].data.flatten(1) for name in names]
        out = await p.reduce(torch.cat(flat, dim=1), truncate)
        ends = list(itertools.accumulate(part.shape[1] for part in flat))
        return {
            name: out[:, end - part.shape[1] : end].reshape(out.shape[0], *terms[name].data.shape[1:])
            for name, part, end in zip(names, flat, ends, strict=True)
        }

    async def one(name: str) -> dict[str, Share]:
        return {name: await p.reduce(terms[name].data, terms[name].truncate)}

    found = await gather(
        *[several(names, truncate) for truncate, names in groups.items()], *[one(name) for name in alone]
    )
    return {name: share for part in found for name, share in part.items()}


def factor_bits(p: Protocol, factor: float, gradient_bits: int) -> int:
    """e: as many extra bits as the factor needs, and as there is room for."""
    wanted = max(0, SIGNIFICANT_BITS - math.frexp(factor)[1] + 1) if factor > 0 else 0
    return max(0, min(wanted, p.ring.bits - 2 - UPDATE_BITS - gradient_bits))


async def with_room(p: Protocol, grads: Mapping[str, PartialGrad], factor: float, bits: int) -> dict[str, PartialGrad]:
    """Gradients so fine that no useful factor fits beside them, truncated to `bits` first. Usually none."""
    tight = {
        name: grad
        for name, grad in grads.items()
        if factor > 0
        and round(factor * 2 ** factor_bits(p, factor, grad.fraction_bits)) < 1 << (SIGNIFICANT_BITS - 4)
        and grad.fraction_bits > bits
    }
    if not tight:
        return dict(grads)
    out = await reduce_all(p, {name: Term(grad.data, grad.fraction_bits - bits) for name, grad in tight.items()})
    return dict(grads) | {name: PartialGrad(p.partial(share), bits) for name, share in out.items()}


class Optimizer(ABC):
    """What turns gradients into new weights.

    A checkpoint holds `state`, its secret memory by name, and `public`, numbers that everybody knows.
    """

    def __init__(self) -> None:
        self.state: dict[str, Fixed] = {}
        self.public: dict[str, float] = {}

    @abstractmethod
    async def step(
        self,
        p: Protocol,
        parameters: Mapping[str, Fixed],
        grads: Mapping[str, PartialGrad],
        learning_rate: float,
        batch_size: int,
    ) -> dict[str, Fixed]:
        """New parameters, in new tensors; those without a gradient stay. Gradients are sums over `batch_size` rows."""


class SGD(Optimizer):
    """torch.optim.SGD (no dampening).

    Range: no weight moves by 16 or more in one step. The velocity is kept times the learning rate, as
    `v.<parameter>`; a learning rate of exactly 0 forgets it.
    Cost: 3 rounds in all (2 for a small model), one `reduce` with truncation an element (two with nesterov).
    """

    def __init__(self, momentum: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False) -> None:
        super().__init__()
        if nesterov and not momentum:
            raise ValueError("nesterov needs a momentum above 0")
        self.momentum, self.weight_decay, self.nesterov = momentum, weight_decay, nesterov

    async def step(
        self,
        p: Protocol,
        parameters: Mapping[str, Fixed],
        grads: Mapping[str, PartialGrad],
        learning_rate: float,
        batch_size: int,
    ) -> dict[str, Fixed]:
        """One step."""
        factor = learning_rate / batch_size
        last_rate = self.public.get("last_rate", 0.0)
        carried = self.momentum * learning_rate / last_rate if last_rate else 0.0
        grads = await with_room(p, grads, factor, 16)
        terms: dict[str, Term] = {}
        for name, grad in grads.items():
            w, v = parameters[name], self.state.get(f"v.{name}")
            terms[name] = self._term(p, grad, w, v, factor, carried, learning_rate)
            if self.nesterov:
                faster = (1 + self.momentum, self.momentum * carried, learning_rate * (1 + self.momentum))
                terms[f"nesterov {name}"] = self._term(p, grad, w, v, factor * faster[0], faster[1], faster[2])
        moved = await reduce_all(p, terms)
        new = dict(parameters)
        for name in grads:
            bits = parameters[name].fraction_bits
            if self.momentum:
                self.state[f"v.{name}"] = Fixed(moved[name], bits)
            step = moved[f"nesterov {name}" if self.nesterov else name]
            new[name] = Fixed(p.ring.wrap(parameters[name].data - step), bits)
        self.public["last_rate"] = learning_rate
        return new

    def _term(
        self, p: Protocol, grad: PartialGrad, w: Fixed, v: Fixed | None, factor: float, carried: float, rate: float
    ) -> Term:
        extra = factor_bits(p, factor, grad.fraction_bits)
        truncate = grad.fraction_bits + extra - w.fraction_bits
        if truncate < 0:
            extra, truncate = extra - truncate, 0
        z = grad.data * round(factor * 2**extra)
        if v is not None and carried:
            z = z.add_(p.partial(raised(p, v, w.fraction_bits).data), alpha=round(carried * 2**truncate))
        if self.weight_decay and rate:
            z = z.add_(p.partial(w.data), alpha=round(rate * self.weight_decay * 2**truncate))
        return Term(p.ring.wrap(z), truncate)
