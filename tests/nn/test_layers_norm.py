"""Batch normalization against torch: result, both gradients, running statistics, rounds."""

from __future__ import annotations

import pytest
import torch

from mpcpipe.nn import layers as secure
from mpcpipe.protocol.replicated3 import Replicated3
from tests.nn.helpers import KINDS, UNIT, give, opened, parties, reduced, right_rounds, run, secret
from tests.nn.test_layers import quantized


def setup(kind, features, module):
    ps = parties(kind)
    models = [[secure.BatchNorm("bn", features)] for _ in ps]
    module.weight.data = (1 + 0.3 * quantized(features, seed=1)).mul(2**16).round() / 2**16
    module.bias.data = quantized(features, seed=2)
    give(ps, models, {f"bn.{name}": value for name, value in module.named_parameters()})
    running = {"bn.running_mean": module.running_mean, "bn.running_var": module.running_var}
    give(ps, models, running, buffers=True)
    return ps, models


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(16, 5), (8, 5, 4, 4), (7, 5, 3, 2)])
def test_batch_norm(kind, shape):
    module = (torch.nn.BatchNorm1d if len(shape) == 2 else torch.nn.BatchNorm2d)(shape[1]).double()
    ps, models = setup(kind, shape[1], module)
    spread = torch.tensor([0.05, 0.3, 1, 3, 9], dtype=torch.float64).reshape(-1, *[1] * (len(shape) - 2))
    x = ((quantized(*shape) + 0.7) * spread).mul(2**16).round() / 2**16
    x = x.requires_grad_()
    y = module(x)
    dy = quantized(*shape, scale=0.5, seed=3)
    y.backward(dy)
    count = x.numel() // shape[1]

    shared, dys = secret(ps, x.detach()), secret(ps, dy)
    forward = run(ps, "f", lambda p: models[p.party][0].forward(p, shared[p.party], True))
    # the error of 1/sqrt(variance) counts in proportion to y; the flattest feature's variance is 10,000 units
    assert torch.allclose(opened(ps, [r[0] for r in forward.results]), y.detach(), rtol=1e-4, atol=8 * UNIT)
    saved = [r[1] for r in forward.results]
    backward = run(ps, "b", lambda p: models[p.party][0].input_grad(p, saved[p.party], dys[p.party]))
    assert torch.allclose(opened(ps, backward.results), x.grad, rtol=1e-3, atol=40 * UNIT)
    weights = run(ps, "w", lambda p: models[p.party][0].weight_grad(p, saved[p.party], dys[p.party]))
    scale = 2e-4 * count
    assert torch.allclose(
        reduced(ps, [g["weight"] for g in weights.results]), module.weight.grad, rtol=1e-3, atol=scale
    )
    assert torch.allclose(reduced(ps, [g["bias"] for g in weights.results]), module.bias.grad, rtol=0, atol=UNIT / 2)
    for key in ("running_mean", "running_var"):
        held = opened(ps, [model[0].buffers[key] for model in models])
        assert torch.allclose(held, getattr(module, key), rtol=2e-4, atol=3 * UNIT)
    if kind is Replicated3:
        assert (forward.rounds, backward.rounds, weights.rounds) == (27, 8, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_weight_gradients_without_the_way_back(kind):
    """The first layer of a model has no use for input_grad."""
    module = torch.nn.BatchNorm1d(5).double()
    ps, models = setup(kind, 5, module)
    x, dy = quantized(16, 5), quantized(16, 5, seed=3)
    module(x).backward(dy)
    shared, dys = secret(ps, x), secret(ps, dy)
    saved = [r[1] for r in run(ps, "f", lambda p: models[p.party][0].forward(p, shared[p.party], True)).results]
    weights = run(ps, "w", lambda p: models[p.party][0].weight_grad(p, saved[p.party], dys[p.party]))
    assert torch.allclose(reduced(ps, [g["weight"] for g in weights.results]), module.weight.grad, rtol=1e-3, atol=1e-3)
    assert right_rounds(kind, weights.rounds, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_uses_the_running_statistics(kind):
    module = torch.nn.BatchNorm2d(3).double()
    module.running_mean = quantized(3, seed=4)
    module.running_var = quantized(3, seed=5).abs() + 0.25
    ps, models = setup(kind, 3, module)
    x = quantized(2, 3, 4, 4)
    shared = secret(ps, x)
    out = run(ps, "e", lambda p: models[p.party][0].forward(p, shared[p.party], False))
    assert torch.allclose(opened(ps, [r[0] for r in out.results]), module.eval()(x).detach(), rtol=2e-5, atol=8 * UNIT)
    assert right_rounds(kind, out.rounds, 21)
    with pytest.raises(ValueError, match="bn: a forward pass in evaluation mode has no gradients"):
        run(ps, "b", lambda p: models[p.party][0].input_grad(p, out.results[p.party][1], shared[p.party]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_feature_that_does_not_vary(kind):
    """Its variance is below the range: the result is the bias, and gradients stay finite."""
    ps, models = setup(kind, 2, torch.nn.BatchNorm1d(2).double())
    x = quantized(16, 2)
    x[:, 0] = 1.5
    shared, dys = secret(ps, x), secret(ps, quantized(16, 2, seed=3))
    out = run(ps, "f", lambda p: models[p.party][0].forward(p, shared[p.party], True)).results
    bias = opened(ps, [model[0].parameters["bias"] for model in models])
    assert (opened(ps, [r[0] for r in out])[:, 0] - bias[0]).abs().max() <= 79 * 2**-17
    dx = run(ps, "b", lambda p: models[p.party][0].input_grad(p, out[p.party][1], dys[p.party])).results
    assert opened(ps, dx)[:, 0].abs().max() <= 79 * 1.5 * 4


def test_one_value_a_feature_is_refused():
    ps, models = setup(Replicated3, 2, torch.nn.BatchNorm1d(2).double())
    shared = secret(ps, quantized(1, 2))
    with pytest.raises(ValueError, match="more than one value"):
        run(ps, "f", lambda p: models[p.party][0].forward(p, shared[p.party], True))
