"""Optimizers and schedules against torch's; a small network trained in secret follows torch's loss curve."""

from __future__ import annotations

import pytest
import torch

from mpcpipe.nn import layers as secure
from mpcpipe.nn.adam import Adam
from mpcpipe.nn.fixed import PartialGrad
from mpcpipe.nn.layers import parameters, set_parameters
from mpcpipe.nn.loss import CrossEntropy
from mpcpipe.nn.optim import SGD
from mpcpipe.nn.schedules import constant, cosine, stepped, warmed_up
from mpcpipe.protocol.plaintext import Plaintext
from mpcpipe.protocol.replicated3 import Replicated3
from tests.nn.helpers import KINDS, UNIT, give, opened, parties, run, secret
from tests.nn.test_layers import quantized

SHAPES = {"a.weight": (6, 5), "a.bias": (6,), "b.weight": (3, 2, 2, 2)}


def follow(kind, make, reference, steps, rates, grad_bits, batch=32, scale=1.0):
    """Steps with the same gradients in secret and by torch: pairs of weights after each, and its rounds."""
    ps = parties(kind)
    optimizers = [make() for _ in ps]
    plain = {
        name: quantized(*shape, scale=0.5, seed=i).requires_grad_() for i, (name, shape) in enumerate(SHAPES.items())
    }
    held = {name: secret(ps, value.detach()) for name, value in plain.items()}
    weights = [{name: held[name][p.party] for name in SHAPES} for p in ps]
    torch_optimizer = reference(list(plain.values()))
    pairs, rounds = [], []
    for step in range(steps):
        for group in torch_optimizer.param_groups:
            group["lr"] = rates(step)
        grads = {
            name: quantized(*shape, scale=scale, seed=100 * step + i) for i, (name, shape) in enumerate(SHAPES.items())
        }
        for name, value in plain.items():
            value.grad = grads[name].clone()
        torch_optimizer.step()
        shared = {name: secret(ps, grad * batch, grad_bits[name]) for name, grad in grads.items()}
        out = run(
            ps,
            f"step{step}",
            lambda p, shared=shared, step=step, weights=weights: optimizers[p.party].step(
                p,
                weights[p.party],
                {n: PartialGrad(p.partial(s[p.party].data), grad_bits[n]) for n, s in shared.items()},
                rates(step),
                batch,
            ),
        )
        weights = out.results
        rounds.append(out.rounds)
        pairs += [(opened(ps, [w[name] for w in weights]), plain[name].detach().clone()) for name in SHAPES]
    return pairs, rounds


PRODUCTS = {"a.weight": 32, "a.bias": 16, "b.weight": 36}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("momentum", "decay", "nesterov"),
    [(0, 0, False), (0.9, 0, False), (0.9, 5e-3, False), (0.9, 1e-3, True), (0, 1e-2, False)],
)
def test_sgd(kind, momentum, decay, nesterov):
    pairs, rounds = follow(
        kind,
        lambda: SGD(momentum, decay, nesterov),
        lambda ws: torch.optim.SGD(ws, lr=0.1, momentum=momentum, weight_decay=decay, nesterov=nesterov),
        6,
        constant(0.05),
        PRODUCTS,
    )
    # a unit a step, carried on by the momentum; factors have 10 significant bits where there is room
    assert max(float((a - b).abs().max()) for a, b in pairs) <= 6 * 10 * UNIT + 2**-10 * 6 * 0.05 * 3 * (
        10 if momentum else 1
    )
    if kind is Replicated3:
        assert rounds == [2] * 6


@pytest.mark.parametrize("kind", KINDS)
def test_a_velocity_follows_the_learning_rate(kind):
    rates = stepped(0.1, 2, 0.5)
    pairs, _ = follow(kind, lambda: SGD(0.9), lambda ws: torch.optim.SGD(ws, lr=0.1, momentum=0.9), 6, rates, PRODUCTS)
    assert max(float((a - b).abs().max()) for a, b in pairs) <= 100 * UNIT


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_too_fine_for_one_truncation(kind):
    """48 fraction bits leave no room for a factor of 2^-19: two truncations."""
    bits = {"a.weight": 48, "a.bias": 16, "b.weight": 32}
    pairs, rounds = follow(
        kind, SGD, lambda ws: torch.optim.SGD(ws, lr=0.1), 2, constant(2.0**-8), bits, 2048, scale=0.25
    )
    assert max(float((a - b).abs().max()) for a, b in pairs) <= 4 * UNIT
    if kind is Replicated3:
        assert rounds == [4, 4]


@pytest.mark.parametrize("kind", KINDS)
def test_small_steps_are_right_on_average(kind):
    """Steps of a tenth of a unit: rounding to the nearest would never move, rounding at random moves one in ten."""
    ps = parties(kind)
    w = secret(ps, torch.zeros(20000, dtype=torch.float64))
    g = secret(ps, torch.full((20000,), 0.1, dtype=torch.float64), 32)
    out = run(
        ps,
        "s",
        lambda p: SGD().step(p, {"w": w[p.party]}, {"w": PartialGrad(p.partial(g[p.party].data), 32)}, 2.0**-16, 1),
    )
    moved = opened(ps, [r["w"] for r in out.results]) / UNIT
    if kind is not Plaintext:
        assert -float(moved.mean()) == pytest.approx(0.1, abs=0.015)  # five standard deviations
    else:
        assert float(moved.abs().max()) == 0


class UnderTheRoot(torch.optim.Optimizer):
    """Adam with epsilon under the root and betas of 14 bits, in float64."""

    def __init__(self, ws, lr, decay):
        super().__init__(ws, {"lr": lr})
        self.decay, self.steps = decay, 0
        self.b1, self.b2 = (round(b * 2**14) / 2**14 for b in (0.9, 0.999))

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for w in self.param_groups[0]["params"]:
            s = self.state[w]
            g = w.grad + self.decay * w
            s["m"] = self.b1 * s.get("m", 0) + (1 - self.b1) * g
            s["v"] = self.b2 * s.get("v", 0) + (1 - self.b2) * g * g
            m, v = s["m"] / (1 - self.b1**self.steps), s["v"] / (1 - self.b2**self.steps)
            w -= self.param_groups[0]["lr"] * m / (v + 2.0**-16).sqrt()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decay", [0, 0.01])
def test_adam(kind, decay):
    pairs, rounds = follow(
        kind,
        lambda: Adam(weight_decay=decay),
        lambda ws: UnderTheRoot(ws, 0.01, decay),
        5,
        constant(0.01),
        PRODUCTS,
        scale=0.1,
    )
    assert max(float((a - b).abs().max()) for a, b in pairs) <= 5 * (2 * UNIT + 0.01 * 4e-3)
    if kind is Replicated3:
        assert rounds == [25] * 5


def test_adam_is_torchs_where_epsilon_does_not_matter():
    grads = quantized(50)
    ours, theirs = (torch.zeros(50, dtype=torch.float64, requires_grad=True) for _ in "ot")
    first, second = UnderTheRoot([ours], 0.01, 0), torch.optim.Adam([theirs], 0.01)
    for _ in range(3):
        ours.grad, theirs.grad = grads.clone(), grads.clone()
        first.step()
        second.step()
    large = grads.abs() > 0.3
    assert torch.allclose(ours[large], theirs[large], rtol=1e-3)


def test_what_optimizers_refuse():
    with pytest.raises(ValueError, match="nesterov needs a momentum"):
        SGD(nesterov=True)
    with pytest.raises(ValueError, match="epsilon must be"):
        Adam(epsilon=1e-8)
    with pytest.raises(ValueError, match="betas are in"):
        Adam(betas=(0.9, 1.0))


def test_schedules_are_torchs():
    def of_torch(make, steps):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.2)
        schedule = make(optimizer)
        seen = []
        for _ in range(steps):
            seen.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return seen

    found = of_torch(lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5), 10)
    assert [stepped(0.2, 3, 0.5)(i) for i in range(10)] == pytest.approx(found)
    found = of_torch(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10, 0.01), 11)
    assert [cosine(0.2, 10, 0.01)(i) for i in range(11)] == pytest.approx(found)
    assert cosine(0.2, 10, 0.01)(50) == pytest.approx(0.01)
    assert [warmed_up(constant(1.0), 4)(i) for i in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]


def network():
    return [
        secure.Linear("0", 8, 16),
        secure.ReLU("1"),
        secure.Linear("2", 16, 4),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_training_follows_torch(kind):
    """30 steps on four clusters: the same loss curve, the same weights within a small multiple of the rounding."""
    torch_model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).double()
    for i, w in enumerate(torch_model.parameters()):
        w.data = quantized(*w.shape, scale=0.4, seed=i)
    centers = quantized(4, 8, scale=1.0, seed=50)
    labels = torch.arange(32) % 4
    x = ((centers[labels] + quantized(32, 8, scale=0.7, seed=51)) * 2**16).round() / 2**16
    onehot = torch.nn.functional.one_hot(labels, 4).double()

    ps = parties(kind)
    models = [network() for _ in ps]
    give(ps, models, dict(torch_model.named_parameters()))
    xs, ts = secret(ps, x), secret(ps, onehot)
    optimizers = [SGD(0.9) for _ in ps]
    loss = CrossEntropy()
    reference = torch.optim.SGD(torch_model.parameters(), lr=0.05, momentum=0.9)

    async def step(p, number, last):
        model, y, saved = models[p.party], xs[p.party], []
        for layer in model:
            y, kept = await layer.forward(p.at(f"{number}/{layer.name}/f"), y, True)
            saved.append(kept)
        dy, kept = await loss.forward_grad(p.at(f"{number}/loss"), y, ts[p.party])
        value = await loss.value(p.at(f"{number}/value"), kept) if last else None
        grads = {}
        for index in (2, 1, 0):
            layer = model[index]
            own = await layer.weight_grad(p.at(f"{number}/{layer.name}/w"), saved[index], dy)
            grads |= secure.full_names(layer, own)
            if index:
                dy = await layer.input_grad(p.at(f"{number}/{layer.name}/b"), saved[index], dy)
        new = await optimizers[p.party].step(p.at(f"{number}/sgd"), parameters(model), grads, 0.05, 32)
        set_parameters(model, new)
        return value

    curve, expected = [], []
    for number in range(30):
        valued = number % 5 == 4
        out = run(ps, "", lambda p, number=number, valued=valued: step(p, number, valued))
        reference.zero_grad()
        torch_loss = torch.nn.functional.cross_entropy(torch_model(x), labels)
        torch_loss.backward()
        reference.step()
        if valued:
            curve.append(float(opened(ps, out.results)))
            expected.append(torch_loss.item())
        elif kind is Replicated3:
            # 2 + 9 + 2 forward, softmax of 4 classes 32, back 2 + 2, update 2
            assert out.rounds == 13 + 32 + 4 + 2
    assert curve == pytest.approx(expected, abs=2e-3)
    assert curve[-1] < 0.3 * curve[0]
    for name, w in torch_model.named_parameters():
        held = opened(ps, [parameters(model)[name] for model in models])
        error = (held - w.detach()).abs()
        # Where an activation is within rounding of zero, a ReLU may let one sample through for one neuron, or not.
        assert error.median() <= 5e-4
        assert error.max() <= 3e-2
