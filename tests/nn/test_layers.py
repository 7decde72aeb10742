"""Every layer's forward and both gradients, against torch in float64."""

from __future__ import annotations

import pytest
import torch

from mpcpipe.errors import ModelError
from mpcpipe.nn import layers as secure
from mpcpipe.nn.layers.activation import public_mask
from mpcpipe.protocol.replicated3 import Replicated3
from tests.nn.helpers import KINDS, UNIT, give, opened, parties, reduced, run, secret


def quantized(*shape, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale / UNIT).round() * UNIT


def check(kind, module, make, x, tolerance, bits=16):
    """Compare y, dx and weight gradients; returns the three outcomes (forward, input_grad, weight_grad)."""
    ps = parties(kind)
    module = module.double()
    for number, w in enumerate(module.parameters()):
        w.data = quantized(*w.shape, scale=0.3, seed=number + 5)
    models = [[make()] for _ in ps]
    give(ps, models, {f"{name_of(models[0][0], name)}": w for name, w in module.named_parameters()})
    x = x.clone().requires_grad_()
    y = module(x)
    dy = quantized(*y.shape, scale=0.5, seed=99)
    y.backward(dy)

    shared = secret(ps, x.detach(), bits)
    forward = run(ps, "f", lambda p: models[p.party][0].forward(p, shared[p.party], True))
    assert torch.allclose(opened(ps, [r[0] for r in forward.results]), y.detach(), rtol=0, atol=tolerance * UNIT)
    saved = [r[1] for r in forward.results]
    dys = secret(ps, dy)
    backward = run(ps, "b", lambda p: models[p.party][0].input_grad(p, saved[p.party], dys[p.party]))
    assert torch.allclose(opened(ps, backward.results), x.grad, rtol=0, atol=tolerance * UNIT)
    weights = run(ps, "w", lambda p: models[p.party][0].weight_grad(p, saved[p.party], dys[p.party]))
    for name, w in module.named_parameters():
        key = name_of(models[0][0], name)
        key = key if models[0][0].children() else name
        assert torch.allclose(reduced(ps, [g[key] for g in weights.results]), w.grad, rtol=0, atol=tolerance * UNIT)
    assert models[0][0].output_shape(tuple(x.shape)) == tuple(y.shape)
    assert weights.rounds == 0 or kind is not Replicated3
    return forward, backward, weights


def name_of(layer, parameter):
    return f"layer.{parameter}" if not layer.children() else parameter


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [True, False])
def test_linear(kind, bias):
    forward, backward, _ = check(
        kind, torch.nn.Linear(7, 5, bias=bias), lambda: secure.Linear("layer", 7, 5, bias), quantized(4, 7), 1.01
    )
    if kind is Replicated3:
        assert (forward.rounds, backward.rounds) == (2, 2)
        cost = parties(kind)[0].costs.reduce(4 * 5, 16)
        assert sum(forward.sent_bytes) == cost.sent_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_linear_takes_values_with_more_fraction_bits(kind):
    check(kind, torch.nn.Linear(7, 5), lambda: secure.Linear("layer", 7, 5), quantized(4, 7), 1.01, bits=18)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [
        ((1, 1), (0, 0), (1, 1), 1),
        ((2, 1), (1, 2), (1, 1), 1),
        ((1, 1), (2, 2), (2, 2), 2),
        ((2, 2), (1, 1), (1, 1), 4),
    ],
)
def test_conv2d(kind, stride, padding, dilation, groups):
    module = torch.nn.Conv2d(4, 8, (3, 3), stride, padding, dilation, groups)
    check(
        kind,
        module,
        lambda: secure.Conv2d("layer", 4, 8, (3, 3), stride, padding, dilation, groups),
        quantized(2, 4, 8, 9),
        1.01,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_relu(kind):
    forward, backward, _ = check(kind, torch.nn.ReLU(), lambda: secure.ReLU("layer"), quantized(3, 4, 5), 0)
    if kind is Replicated3:
        costs = parties(kind)[0].costs
        assert (forward.rounds, backward.rounds) == (9, 2)
        assert sum(forward.sent_bytes) == (costs.nonnegative(60) + costs.select(60)).sent_bytes
        assert sum(backward.sent_bytes) == costs.select_again(60).sent_bytes


def test_relu_sends_what_is_promised():
    """32 compared bits, a million elements and more: bytes a party and element."""
    costs = parties(Replicated3)[0].costs
    n = 3 * 64 * 1000
    # 262 planes of bits by all parties together, then 4 elements of 8 bytes
    assert (costs.nonnegative(n) + costs.select(n)).sent_bytes == n * 262 // 8 + n * 4 * 8
    assert costs.select_again(n).sent_bytes / 3 / n == 8


@pytest.mark.parametrize("kind", KINDS)
def test_relu_truncates_what_it_could_not_compare(kind):
    ps = parties(kind)
    x = torch.tensor([3000.0, -3000.0, 0.5], dtype=torch.float64)
    shared = secret(ps, x, 22)
    out = run(ps, "f", lambda p: secure.ReLU("r").forward(p, shared[p.party], True)).results
    assert out[0][0].fraction_bits == 16
    assert torch.allclose(opened(ps, [r[0] for r in out]), x.clamp(min=0), rtol=0, atol=UNIT)


@pytest.mark.parametrize("kind", KINDS)
def test_flatten(kind):
    check(kind, torch.nn.Flatten(), lambda: secure.Flatten("layer"), quantized(3, 4, 5, 2), 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "rounds"),
    [
        ((2, 2), (2, 2), (0, 0), 0),
        ((4, 2), (2, 3), (1, 1), 0),
        ((3, 3), (3, 3), (0, 0), 2),
        ((3, 3), (2, 2), (1, 1), 2),
        ((6, 6), (6, 6), (0, 0), 2),
    ],
)
def test_avg_pool(kind, kernel, stride, padding, rounds):
    x = quantized(2, 3, 7, 6)
    forward, backward, _ = check(
        kind,
        torch.nn.AvgPool2d(kernel, stride, padding),
        lambda: secure.AvgPool2d("layer", kernel, stride, padding),
        x,
        0 if rounds == 0 else 10 + 2**-12 / UNIT * float(x.abs().max()),
    )
    if kind is Replicated3:
        assert (forward.rounds, backward.rounds) == (rounds, rounds)


@pytest.mark.parametrize("kind", KINDS)
def test_adaptive_avg_pool(kind):
    check(
        kind,
        torch.nn.AdaptiveAvgPool2d((2, 1)),
        lambda: secure.AdaptiveAvgPool2d("layer", (2, 1)),
        quantized(2, 3, 4, 4),
        0,
    )


def test_adaptive_avg_pool_of_unequal_windows_is_refused():
    with pytest.raises(ModelError, match=r"layer: .*equal size"):
        secure.AdaptiveAvgPool2d("layer", (2, 2)).output_shape((1, 1, 5, 4))


@pytest.mark.parametrize("kind", KINDS)
def test_pooling_defers_at_most_eight_bits(kind):
    ps = parties(kind)
    x = quantized(1, 1, 8, 8)
    shared = secret(ps, x, 18)
    out = run(ps, "f", lambda p: secure.AvgPool2d("a", (8, 8)).forward(p, shared[p.party], True)).results
    assert out[0][0].fraction_bits == 24
    shared = secret(ps, x, 19)
    out = run(ps, "g", lambda p: secure.AvgPool2d("a", (8, 8)).forward(p, shared[p.party], True)).results
    assert out[0][0].fraction_bits == 16
    assert torch.allclose(opened(ps, [r[0] for r in out]), x.mean((2, 3), keepdim=True), rtol=0, atol=UNIT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "rounds"),
    [
        ((2, 2), (2, 2), (0, 0), 2),
        ((3, 3), (2, 2), (0, 0), 4),
        ((3, 3), (2, 2), (1, 1), 4),
        ((2, 3), (1, 1), (1, 1), 3),
    ],
)
def test_max_pool(kind, kernel, stride, padding, rounds):
    forward, backward, _ = check(
        kind,
        torch.nn.MaxPool2d(kernel, stride, padding),
        lambda: secure.MaxPool2d("layer", kernel, stride, padding),
        quantized(2, 3, 7, 8),
        0,
    )
    if kind is Replicated3:
        assert (forward.rounds, backward.rounds) == (9 * rounds, 2 * rounds)


@pytest.mark.parametrize("kind", KINDS)
def test_residual(kind):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Conv2d(3, 4, 3, padding=1)
            self.b = torch.nn.Conv2d(4, 4, 3, padding=1)
            self.s = torch.nn.Conv2d(3, 4, 1)

        def forward(self, x):
            return self.b(torch.relu(self.a(x))) + self.s(x)

    def make():
        body = [
            secure.Conv2d("a", 3, 4, (3, 3), padding=(1, 1)),
            secure.ReLU("r"),
            secure.Conv2d("b", 4, 4, (3, 3), padding=(1, 1)),
        ]
        return secure.Residual("layer", body, [secure.Conv2d("s", 3, 4, (1, 1))])

    forward, backward, _ = check(kind, Block(), make, quantized(2, 3, 5, 5), 30)
    if kind is Replicated3:
        assert (forward.rounds, backward.rounds) == (2 + 9 + 2, 2 + 2 + 2)


@pytest.mark.parametrize("kind", KINDS)
def test_residual_with_itself(kind):
    class Block(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x) + x

    check(kind, Block(), lambda: secure.Residual("layer", [secure.ReLU("r")]), quantized(2, 3, 5, 5), 0)


def test_walk_lists_leaves():
    inner = [secure.ReLU("a"), secure.Flatten("b")]
    model = [secure.Residual("r", inner[:1], inner[1:]), secure.ReLU("c")]
    assert [layer.name for layer in secure.walk(model)] == ["a", "b", "c"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p", [0.5, 0.3])
def test_dropout(kind, p):
    ps = parties(kind)
    x = quantized(20, 30)
    shared = secret(ps, x)
    layer = secure.Dropout("d", p, seed=3)
    out = run(ps, "f", lambda q: layer.forward(q, shared[q.party], True)).results
    mask = public_mask(3, "f", (20, 30), p).double()
    assert mask.mean() == pytest.approx(1 - p, abs=0.06)
    assert torch.allclose(opened(ps, [r[0] for r in out]), x * mask / (1 - p), rtol=2**-9, atol=UNIT)
    dx = run(ps, "b", lambda q: layer.input_grad(q, out[q.party][1], shared[q.party]))
    assert dx.rounds == 0 or kind is not Replicated3
    assert torch.allclose(opened(ps, dx.results), x * mask / (1 - p), rtol=2**-9, atol=UNIT)
    same = run(ps, "e", lambda q: layer.forward(q, shared[q.party], False)).results
    assert torch.equal(opened(ps, [r[0] for r in same]), x)
    assert not torch.equal(public_mask(3, "g", (20, 30), p).double(), mask)
