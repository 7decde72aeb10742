"""Losses: what starts the way back, and the value for whoever may see it.

Gradients are *sums* over the batch: the division by the batch size is in the optimizer's one public factor. The value
is another computation, done only when the job reveals it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from mpcpipe.nn.fixed import DEFERRED_BITS, Fixed, at_most, divided, raised, rescale, summed
from mpcpipe.nn.functional import log, narrow, product_of_bits
from mpcpipe.nn.softmax import MOST_PAIRED, Softmax, octaves, softmax
from mpcpipe.protocol.base import Protocol, Share
from mpcpipe.protocol.rounds import gather
from mpcpipe.ring.bilinear import MUL

Saved = Any


class Loss(ABC):
    """The loss of one micro-batch. working_bits: fraction bits of gradients and values."""

    working_bits: int = 16

    @abstractmethod
    async def forward_grad(self, p: Protocol, y: Fixed, target: Fixed) -> tuple[Fixed, Saved]:
        """The gradient of the loss by the model's result y, summed over the batch; and what `value` needs."""

    @abstractmethod
    async def value(self, p: Protocol, saved: Saved) -> Fixed:
        """The loss, averaged over the batch: a secret scalar, shape ()."""


@dataclass(frozen=True)
class _Logits:
    parts: Softmax
    target: Fixed


class CrossEntropy(Loss):
    """torch.nn.CrossEntropyLoss for logits (batch, classes) and one-hot targets, shares of 0 and 1 with any fraction
    bits.

    The gradient is softmax(logits) - target. Cost: `softmax`, 34 rounds for ten classes.
    The value is log(sum of exp) + max - logit of the target, where differences to the largest logit count as 16 at
    most.
    """

    async def forward_grad(self, p: Protocol, y: Fixed, target: Fixed) -> tuple[Fixed, Saved]:
        """softmax(y) - target, and the softmax."""
        parts = await softmax(p, y, self.working_bits)
        target = await rescale(p, target, self.working_bits)
        return Fixed(p.ring.wrap(parts.probabilities.data - target.data), self.working_bits), _Logits(parts, target)

    async def value(self, p: Protocol, saved: Saved) -> Fixed:
        """The mean over the batch. Cost: 13 rounds for up to 16 classes. Worst error: 12 units or so of 16 fraction
        bits.
        """
        parts: Softmax = saved.parts
        target, batch, classes = saved.target, saved.target.shape[0], saved.target.shape[1]

        async def of_target() -> Fixed:
            chosen = await p.multiply(MUL, parts.below.data.transpose(1, 2), target.data)
            bits = parts.below.fraction_bits + target.fraction_bits
            total = p.ring.wrap(chosen.sum((1, 2), dtype=chosen.dtype))
            return Fixed(await p.reduce(total, bits - self.working_bits), self.working_bits)

        async def of_sum() -> Fixed:
            if classes <= MOST_PAIRED:
                return await narrow(p, "log", parts.total, octaves(classes), self.working_bits)
            return await log(p, parts.total, 1.0, float(2 ** octaves(classes)), self.working_bits)

        chosen, logs = await gather(of_target(), of_sum())
        return await divided(
            p, Fixed(p.ring.wrap(summed(logs, (0,)).data - chosen.data), self.working_bits), batch, self.working_bits
        )


class MeanSquaredError(Loss):
    """torch.nn.MSELoss: the mean over batch and features of (y - target)^2.

    The gradient is 2 (y - target) / features. Cost: nothing where features is a power of two, else a truncation, 2
    rounds.
    """

    async def forward_grad(self, p: Protocol, y: Fixed, target: Fixed) -> tuple[Fixed, Saved]:
        """The gradient, and the difference."""
        bits = max(y.fraction_bits, target.fraction_bits)
        d = Fixed(p.ring.wrap(raised(p, y, bits).data - raised(p, target, bits).data), bits)
        features = torch.Size(d.shape[1:]).numel()
        if features & (features - 1) == 0:
            grad = Fixed(d.data, bits + features.bit_length() - 2)
            if grad.fraction_bits < 0:
                grad = raised(p, grad, 0)
            return await at_most(p, grad, self.working_bits + DEFERRED_BITS, self.working_bits), d
        return await divided(p, Fixed(p.ring.wrap(d.data * 2), bits), features, self.working_bits), d

    async def value(self, p: Protocol, saved: Saved) -> Fixed:
        """The mean. Cost: 4 rounds."""
        d = await at_most(p, saved, self.working_bits + 4, self.working_bits)
        squares = await p.multiply(MUL, d.data, d.data)
        total = p.ring.wrap(squares.sum(tuple(range(1, squares.dim())), dtype=squares.dtype))
        summed_up = Fixed(await p.reduce(total, 2 * d.fraction_bits - self.working_bits), self.working_bits)
        return await divided(p, summed_up, torch.Size(d.shape).numel(), self.working_bits)


async def correct(p: Protocol, logits: Fixed, onehot: Fixed) -> Share:
    """For each row, 1 if the logit of the true class is not exceeded by any other, else 0: ring elements (batch,).

    logits, onehot (batch, classes). Security: nothing is opened. Cost: 1 + 9 + ceil(log2 classes) rounds, and a
    comparison for each class and row; a one-hot with fraction bits costs a truncation (2 rounds) in the first product.
    """
    x = await at_most(p, logits, 16, 16)
    z = await p.multiply(MUL, x.data, onehot.data)
    truth = await p.reduce(p.ring.wrap(z.sum(2, dtype=z.dtype)), onehot.fraction_bits)
    # a unit of slack: the truncation may be a unit off; logits as near as that count as equal
    slack = p.public(torch.ones_like(x.data[0])) if onehot.fraction_bits else p.zeros(x.shape)
    lead = p.ring.wrap(truth.unsqueeze(2) - x.data + slack)
    wins = await p.to_ring(await p.nonnegative(lead.transpose(1, 2).contiguous()))
    return await product_of_bits(p, wins)


async def count_correct(p: Protocol, logits: Fixed, onehot: Fixed) -> Share:
    """How many rows are `correct`: an integer share of shape (). Reveal it, and nothing but the count is known."""
    rows = await correct(p, logits, onehot)
    return p.ring.wrap(rows.sum(1, dtype=rows.dtype))
