"""Dry runs say the same as real runs of all parties: every layer, every direction, every party, exactly."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mpcpipe.nn import zoo
from mpcpipe.nn.adam import Adam
from mpcpipe.nn.chain import Chain
from mpcpipe.nn.convert import convert
from mpcpipe.nn.fixed import Fixed
from mpcpipe.nn.layers import walk
from mpcpipe.nn.layers.base import first_trained, with_factors_shown
from mpcpipe.nn.loss import CrossEntropy, MeanSquaredError
from mpcpipe.nn.optim import SGD
from mpcpipe.plan.cost import chain_costs, cost
from mpcpipe.plan.drive import Setting
from mpcpipe.plan.trace import Work
from mpcpipe.protocol.additive2 import Additive2
from mpcpipe.protocol.plaintext import Plaintext
from mpcpipe.protocol.replicated3 import Replicated3
from mpcpipe.protocol.replicated4 import Replicated4
from mpcpipe.ring.bilinear import Conv2d, MatMul
from tests import simulate

ROWS = 3
Found = dict[tuple[str, str], tuple[int, list[int]]]


def setting(protocol: type = Replicated3, **changes: Any) -> Setting:
    plain = Setting(protocol, CrossEntropy, lambda: SGD(momentum=0.9), classes=10, batch_size=ROWS)
    return replace(plain, **changes)


def residual() -> torch.nn.Module:
    block = zoo.BasicBlock(2, 4, 2)
    return torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3, padding=1), block, torch.nn.Flatten(), torch.nn.Linear(64, 10))


def really(chain: Chain, how: Setting) -> Found:
    """Rounds and each party's bytes of a real step on shares of random numbers, layer by layer."""
    ps = simulate.parties(how.protocol, how.ring_bits, how.compare_bits)
    for leaf in walk(chain.layers):
        leaf.working_bits = how.fraction_bits
    models = [_copy(chain) for _ in ps]

    def share(shape: tuple[int, ...], bits: int) -> list[Fixed]:
        fresh = [p.at(f"in{len(ps[0].tape.used)}") for p in ps]  # type: ignore[attr-defined]
        small = torch.randint(-9, 9, shape).to(ps[0].ring.dtype)
        return [Fixed(x, bits) for x in simulate.share(fresh, small)]

    for copies in zip(*[list(walk(model)) for model in models], strict=True):
        for key, value in copies[0].initial.items():
            for leaf, held in zip(copies, share(tuple(value.shape), how.fraction_bits), strict=True):
                (leaf.buffers if key.startswith("running") else leaf.parameters)[key] = held
            for leaf in copies[:1] if key in copies[0].factors else []:
                shown = simulate.lockstep(
                    [p.at(f"shown {leaf.name}").show(c.parameters[key].data) for p, c in zip(ps, copies, strict=True)]
                )
                for copied, data in zip(copies, shown.results, strict=True):
                    copied.parameters[key] = Fixed(data, how.fraction_bits)

    found: Found = {}

    def run(name: str, direction: str, operation: Callable[[int], Any]) -> list[Any]:
        outcome = simulate.lockstep([operation(i) for i in range(len(ps))])
        found[name, direction] = (outcome.rounds, outcome.sent_bytes)
        return outcome.results

    at = [lambda scope, p=p: p.at(scope) for p in ps]
    xs = share((ROWS, *chain.input_shape), how.fraction_bits)
    kept = []
    for index, layer in enumerate(chain.layers):
        both = run(
            layer.name,
            "F",
            lambda i, n=index, xs=xs: models[i][n].forward(at[i](f"0/{n}/F"), xs[i], True),  # type: ignore[misc]
        )
        xs = [x for x, _ in both]
        kept.append([saved for _, saved in both])
    loss = how.make_loss()
    loss.working_bits = how.fraction_bits
    targets = share((ROWS, how.classes), 0)
    dys = [dy for dy, _ in run("loss", "F", lambda i: loss.forward_grad(at[i]("0/loss"), xs[i], targets[i]))]
    spared = first_trained(chain.layers)
    for n in reversed(range(spared, len(chain.layers))):
        name, saved = chain.layers[n].name, kept[n]
        outer = dys
        if n > spared or chain.layers[n].children():
            dys = run(
                name, "I", lambda i, n=n, d=outer, s=saved: models[i][n].input_grad(at[i](f"0/{n}/B"), s[i], d[i])
            )
        grads = run(name, "W", lambda i, n=n, d=outer, s=saved: models[i][n].weight_grad(at[i](f"0/{n}/W"), s[i], d[i]))
        if chain.layers[n].children() or not chain.layers[n].initial:
            continue
        optimizers = [how.make_optimizer() for _ in ps]
        for step in (0, 1):

            async def update(
                i: int, n: int = n, o: list[Any] = optimizers, g: list[Any] = grads, t: int = step
            ) -> None:
                scope, leaf = at[i](f"{t}/{n}/U"), models[i][n]
                new = await o[i].step(
                    scope,
                    {f"{leaf.name}.{k}": v for k, v in leaf.parameters.items()},
                    {f"{leaf.name}.{k}": v for k, v in g[i].items()},
                    how.learning_rate,
                    how.batch_size,
                )
                await with_factors_shown(scope, leaf, new)

            run(name, "U", update)
    return found


def _copy(chain: Chain) -> list[Any]:
    return copy.deepcopy(list(chain.layers))


NETWORKS = {
    "secureml": (zoo.secureml, (1, 28, 28)),
    "lenet": (zoo.lenet, (1, 28, 28)),
    "minionn max": (lambda: zoo.minionn("max"), (1, 28, 28)),
    "residual": (residual, (1, 8, 8)),
}


@pytest.mark.parametrize(
    ("network", "protocol", "parties"),
    [
        *[(network, protocol, 3) for network in NETWORKS for protocol in (Replicated3, Additive2, Plaintext)],
        ("secureml", Replicated4, 4),
    ],
)
def test_dry_runs_equal_real_ones(network: str, protocol: type, parties: int) -> None:
    build, shape = NETWORKS[network]
    chain, how = convert(build(), shape), setting(protocol, parties=parties)
    real = really(chain, how)
    most = dict.fromkeys(real, 0)
    for party in range(parties):
        dry = chain_costs(chain, how, ROWS, party)
        for layer in dry.layers:
            for direction, trace in layer.traces.items():
                if (where := (layer.name, direction)) in real:
                    rounds, sent = real[where]
                    measured = cost(trace)
                    assert measured.sent_bytes == sent[party] and measured.rounds <= rounds, where
                    most[where] = max(most[where], measured.rounds)
        assert {(layer.name, d) for layer in dry.layers for d in layer.traces} >= set(real)
    # what only a dealer sends is no round for the party that gets nothing of it
    assert most == {where: rounds for where, (rounds, _) in real.items()}


@pytest.mark.parametrize(
    "changes",
    [
        {"make_loss": MeanSquaredError},
        {"make_optimizer": Adam},
        {"ring_bits": 32, "fraction_bits": 8, "compare_bits": 24, "make_loss": MeanSquaredError},
    ],
    ids=["mean squared error", "adam", "32 bits"],
)
def test_other_settings(changes: dict[str, Any]) -> None:
    chain, how = convert(zoo.secureml(), (1, 28, 28)), setting(**changes)
    real = really(chain, how)
    for layer in chain_costs(chain, how, ROWS, 1).layers:
        for direction, trace in layer.traces.items():
            if (layer.name, direction) in real:
                assert (cost(trace).rounds, cost(trace).sent_bytes) == (
                    real[layer.name, direction][0],
                    real[layer.name, direction][1][1],
                ), (layer.name, direction)


def test_multiply_adds_are_those_that_the_protocol_declares() -> None:
    chain = convert(zoo.lenet(), (1, 28, 28))
    layers = {layer.name: layer.traces for layer in chain_costs(chain, setting(), 4).layers}
    conv = Conv2d()
    assert cost(layers["3"]["F"]).macs == 2 * conv.macs((4, 20, 12, 12), (50, 20, 5, 5))
    assert cost(layers["3"]["I"]).macs == cost(layers["3"]["W"]).macs == cost(layers["3"]["F"]).macs
    assert cost(layers["7"]["W"]).macs == 2 * MatMul(transpose_a=True).macs((4, 500), (4, 800))
    assert "I" not in layers["0"]


def test_work_grows_with_rows_and_updates_do_not() -> None:
    chain = convert(zoo.secureml(), (1, 28, 28))
    few, many = (chain_costs(chain, setting(), rows).layers for rows in (64, 128))
    for small, large in zip(few, many, strict=True):
        for direction, trace in small.traces.items():
            a, b = (sum((s.work for s in t), Work()) for t in (trace, large.traces[direction]))
            assert (a == b) if direction == "U" else (b.macs == 2 * a.macs and b.calls == a.calls)


def test_a_residual_block_updates_all_that_is_in_it() -> None:
    chain = convert(residual(), (1, 8, 8))
    block = chain_costs(chain, setting(), 2).layers[2].traces["U"]
    parameters = sum(value.numel() for leaf in walk([chain.layers[1]]) for value in leaf.initial.values())
    assert cost(block).rounds == 2
    assert cost(block).sent_bytes > 8 * parameters / 3 * 2


def test_sharing_the_features() -> None:
    """The owner sends one ring element for each value to one party; the others send nothing."""
    chain = convert(zoo.secureml(), (1, 28, 28))
    sent = [cost(chain_costs(chain, setting(owner=1), 5, i).layers[0].traces["F"]).sent_bytes for i in range(3)]
    assert sent == [0, 8 * 5 * 784, 0]
    assert chain_costs(chain, setting(), 5).layers[0].traces == {}


def test_the_chain_is_left_alone() -> None:
    chain = convert(zoo.secureml(), (1, 28, 28))
    chain_costs(chain, setting(), 2)
    assert all(not leaf.parameters for leaf in walk(chain.layers))
