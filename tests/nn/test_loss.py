"""Losses: gradient and value against torch, accuracy counted in secret, rounds."""

from __future__ import annotations

import pytest
import torch

from mpcpipe.nn.fixed import Fixed
from mpcpipe.nn.loss import CrossEntropy, MeanSquaredError, correct, count_correct
from mpcpipe.protocol.replicated3 import Replicated3
from tests.nn.helpers import KINDS, UNIT, opened, parties, right_rounds, run, secret
from tests.nn.test_functional import logits


def labels(batch, classes):
    return torch.randint(classes, (batch,), generator=torch.Generator().manual_seed(batch))


def check(kind, loss, y, target, expected_grad, expected_value, grad_units, value_units):
    ps = parties(kind)
    ys, ts = secret(ps, y), secret(ps, target)
    forward = run(ps, "f", lambda p: loss.forward_grad(p, ys[p.party], ts[p.party]))
    grad = opened(ps, [r[0] for r in forward.results])
    assert (grad - expected_grad).abs().max() <= grad_units * UNIT
    value = run(ps, "v", lambda p: loss.value(p, forward.results[p.party][1]))
    assert all(r.shape == () for r in value.results)
    assert abs(opened(ps, value.results) - expected_value) <= value_units * UNIT
    assert all(p.openings[:-2] == [] for p in ps)  # only what this test opened
    return forward.rounds, value.rounds


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("classes", "rounds"), [(2, (31, 13)), (10, (34, 13)), (20, (85, 19))])
def test_cross_entropy(kind, classes, rounds):
    y = (logits(60, classes) / 200).mul(2**16).round() / 2**16
    target = torch.nn.functional.one_hot(labels(60, classes), classes).double()
    z = y.clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(z, target.argmax(1), reduction="sum")
    expected.backward()
    # each of 60 values is a unit off at most, and so is the mean's truncation; the factor 1/60 is rounded to 2^-17
    measured = check(kind, CrossEntropy(), y, target, z.grad, expected.item() / 60, 3, 6)
    if kind is Replicated3:
        assert measured == rounds


@pytest.mark.parametrize("kind", KINDS)
def test_cross_entropy_of_logits_far_apart(kind):
    y = torch.tensor([[0.0, 400.0, -500.0], [0, 0, 0]], dtype=torch.float64)
    target = torch.tensor([[1.0, 0, 0], [0, 0, 1]], dtype=torch.float64)
    expected = torch.softmax(y, 1) - target
    check(kind, CrossEntropy(), y, target, expected, (16 + torch.log(torch.tensor(3.0))) / 2, 2, 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("features", "rounds"), [(1, 0), (2, 0), (8, 0), (10, 2), (512, 0), (1024, 2)])
def test_mean_squared_error(kind, features, rounds):
    generator = torch.Generator().manual_seed(features)
    y, target = (
        torch.randn(12, features, generator=generator, dtype=torch.float64).mul(2**16).round() / 2**16 for _ in "yt"
    )
    z = y.clone().requires_grad_()
    expected = torch.nn.functional.mse_loss(z, target)
    expected.backward()
    measured = check(kind, MeanSquaredError(), y, target, z.grad * 12, expected.item(), 1.1, 4)
    if kind is Replicated3:
        assert measured == (rounds, 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("bits", "rounds"), [(0, 1 + 9 + 4), (16, 2 + 9 + 4)])
def test_count_correct(kind, bits, rounds):
    y = logits(60, 10)
    chosen = torch.where(torch.arange(60) % 3 == 0, y.argmax(1), labels(60, 10))
    target = torch.nn.functional.one_hot(chosen, 10).double()
    ps = parties(kind)
    ys, ts = secret(ps, y), secret(ps, target, bits)
    rows = run(ps, "r", lambda p: correct(p, ys[p.party], ts[p.party]))
    expected = (y.gather(1, chosen[:, None])[:, 0] >= y.max(1).values).double()
    assert torch.equal(opened(ps, [Fixed(r, 0) for r in rows.results]), expected)
    out = run(ps, "c", lambda p: count_correct(p, ys[p.party], ts[p.party]))
    assert opened(ps, [Fixed(r, 0) for r in out.results]) == expected.sum()
    assert right_rounds(kind, out.rounds, rounds)
