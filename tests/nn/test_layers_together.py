"""A small convolutional network with normalization, residual and pooling follows torch through training."""

from __future__ import annotations

import pytest
import torch

from mpcpipe.nn import layers as secure
from mpcpipe.nn.layers import full_names, parameters, set_parameters
from mpcpipe.nn.loss import CrossEntropy
from mpcpipe.nn.optim import SGD
from tests.nn.helpers import KINDS, give, opened, parties, run, secret
from tests.nn.test_layers import quantized

RATE = 0.1


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.n = torch.nn.Conv2d(6, 6, 3, padding=1, bias=False), torch.nn.BatchNorm2d(6)
        self.s = torch.nn.Conv2d(6, 6, 1)

    def forward(self, x):
        return torch.relu(self.n(self.a(x))) + self.s(x)


def in_torch():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 6, 3, padding=1),
        torch.nn.MaxPool2d(2),
        torch.nn.ReLU(),
        Block(),
        torch.nn.BatchNorm2d(6),
        torch.nn.AdaptiveAvgPool2d((1, 1)),
        torch.nn.Flatten(),
        torch.nn.Linear(6, 3),
    ).double()


def in_secret():
    body = [
        secure.Conv2d("3.a", 6, 6, (3, 3), padding=(1, 1), bias=False),
        secure.BatchNorm("3.n", 6),
        secure.ReLU("3.r"),
    ]
    return [
        secure.Conv2d("0", 1, 6, (3, 3), padding=(1, 1)),
        secure.MaxPool2d("1", (2, 2)),
        secure.ReLU("2"),
        secure.Residual("3", body, [secure.Conv2d("3.s", 6, 6, (1, 1))]),
        secure.BatchNorm("4", 6),
        secure.AdaptiveAvgPool2d("5", (1, 1)),
        secure.Flatten("6"),
        secure.Linear("7", 6, 3),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_training_follows_torch(kind):
    model = in_torch()
    for i, (name, w) in enumerate(model.named_parameters()):
        normalized = name in ("3.n.weight", "4.weight")
        w.data = torch.ones_like(w) if normalized else quantized(*w.shape, scale=0.3, seed=i)
    labels = torch.arange(24) % 3
    patterns = quantized(3, 1, 8, 8, seed=40)
    x = ((patterns[labels] + quantized(24, 1, 8, 8, scale=0.5, seed=41)) * 2**16).round() / 2**16
    ps = parties(kind)
    models = [in_secret() for _ in ps]
    give(ps, models, dict(model.named_parameters()))
    give(ps, models, {k: v for k, v in model.named_buffers() if "running" in k}, buffers=True)
    xs, ts = secret(ps, x), secret(ps, torch.nn.functional.one_hot(labels, 3).double())
    optimizers = [SGD(0.9) for _ in ps]
    reference = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)

    async def step(p, number):
        own, y, kept = models[p.party], xs[p.party], []
        for layer in own:
            y, saved = await layer.forward(p.at(f"{number}/{layer.name}/f"), y, True)
            kept.append(saved)
        dy, _ = await CrossEntropy().forward_grad(p.at(f"{number}/loss"), y, ts[p.party])
        grads = {}
        for layer, saved in reversed(list(zip(own, kept, strict=True))):
            dx = await layer.input_grad(p.at(f"{number}/{layer.name}/b"), saved, dy)
            grads |= full_names(layer, await layer.weight_grad(p.at(f"{number}/{layer.name}/w"), saved, dy))
            dy = dx
        new = await optimizers[p.party].step(p.at(f"{number}/u"), parameters(own), grads, RATE, 24)
        set_parameters(own, new)

    async def evaluate(p):
        y = xs[p.party]
        for layer in models[p.party]:
            y, _ = await layer.forward(p.at(f"test/{layer.name}"), y, False)
        return y

    losses = []
    for number in range(8):
        run(ps, "", lambda p, number=number: step(p, number))
        reference.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        reference.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    for name, w in model.named_parameters():
        held = opened(ps, [parameters(own)[name] for own in models])
        assert (held - w.detach()).abs().max() <= 1.5e-3, name
    y = opened(ps, run(ps, "", evaluate).results)
    assert (y - model.eval()(x).detach()).abs().max() <= 5e-3
