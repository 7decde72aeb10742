"""Costs of layers: what a dry run says, times the micro-batches; real layers against bytes worked out by hand."""

from __future__ import annotations

from dataclasses import asdict

from torch import nn

from mpcpipe.nn.convert import convert
from mpcpipe.nn.loss import MeanSquaredError
from mpcpipe.nn.optim import SGD
from mpcpipe.plan.cost import ChainCosts, chain_costs
from mpcpipe.plan.drive import Setting
from mpcpipe.plan.trace import Recorded, Segment
from mpcpipe.protocol.plaintext import Plaintext
from mpcpipe.report.layers import layer_costs


def made_up(rows: int) -> ChainCosts:
    """A layer that sends 10 bytes a row in two rounds, back 1 byte a row in one, and 7 bytes for its update."""
    forward = (Segment(sent=(0, 4 * rows)), Segment(sent=(0, 6 * rows)), Segment())
    back = (Segment(sent=(0, rows)),)
    layer = Recorded("only", {"F": forward, "I": back, "W": (Segment(),), "U": (Segment(sent=(0, 7)),)})
    return ChainCosts(rows, 0, (Recorded("features"), layer, Recorded("loss", {"F": (Segment(sent=(0, 3)),)})))


def test_micro_batches_of_two_sizes() -> None:
    features, layer, loss = layer_costs(made_up, (3, 2, 2), ["Linear"], [0])
    assert asdict(layer) == {
        "name": "only",
        "kind": "Linear",
        "stage": 0,
        "forward_bytes": 70,
        "forward_rounds": 2,
        "backward_bytes": 7,
        "backward_rounds": 1,
        "update_bytes": 7,
        "update_rounds": 1,
    }
    assert layer.sent_bytes == 84
    assert (features.stage, features.sent_bytes, loss.stage, loss.sent_bytes) == (None, 0, None, 9)


def test_real_layers_and_stages() -> None:
    """In plaintext only the owner's features travel: 8 bytes a number to two parties."""
    chain = convert(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), (5,))
    setting = Setting(Plaintext, MeanSquaredError, SGD, classes=3, batch_size=6, owner=0)
    kinds = [type(layer).__name__ for layer in chain.layers]
    found = layer_costs(lambda rows: chain_costs(chain, setting, rows), (3, 3), kinds, [0, 2])
    assert [one.name for one in found] == ["features", *(layer.name for layer in chain.layers), "loss"]
    assert [one.stage for one in found] == [None, 0, 0, 1, None]
    assert [one.sent_bytes for one in found] == [6 * 5 * 8 * 2, 0, 0, 0, 0]
