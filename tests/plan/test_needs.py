"""What a step needs of the dealer is what the dealer sends in it."""

from __future__ import annotations

from dataclasses import replace

import torch

from mpcpipe.nn import zoo
from mpcpipe.nn.convert import convert
from mpcpipe.nn.loss import CrossEntropy, MeanSquaredError
from mpcpipe.nn.optim import SGD
from mpcpipe.plan.cost import chain_costs, cost
from mpcpipe.plan.drive import Setting
from mpcpipe.plan.needs import step_needs
from mpcpipe.protocol.additive2 import Additive2
from mpcpipe.protocol.additive2.offline import Need
from mpcpipe.protocol.replicated3 import Replicated3

SETTING = Setting(Additive2, CrossEntropy, lambda: SGD(momentum=0.9), classes=10, batch_size=6, owner=0)


def test_bytes_are_those_of_the_dry_run() -> None:
    chain = convert(zoo.lenet("avg"), (1, 28, 28))
    for rows in ([6], [2, 2, 2], [3, 3], [3, 2, 1]):
        sent = 0
        for index, size in enumerate(rows):
            for layer in chain_costs(chain, SETTING, size, 2).layers:
                directions = "FIWU" if index == 0 else "FIW"
                sent += sum(cost(trace).sent_bytes for d, trace in layer.traces.items() if d in directions)
        assert sum(need.nbytes for need in step_needs(chain, SETTING, rows).values()) == sent > 0


def test_a_layer_by_hand() -> None:
    """Linear(4, 2) on 3 rows: a product of 3 x 2 and its truncation; x^T dy of 2 x 4; two truncations to update."""
    chain = convert(torch.nn.Sequential(torch.nn.Linear(4, 2)), (4,))
    setting = replace(SETTING, make_loss=MeanSquaredError, classes=2, batch_size=3)
    needs = step_needs(chain, setting, [3])
    assert needs["products"] == Need(2, 6 + 8, 8 * (6 + 8))
    assert (needs["truncations"].numel, set(needs)) == (6 + 8 + 2, {"products", "truncations"})
    assert step_needs(chain, setting, [3, 3])["products"] == Need(4, 28, 8 * 28)


def test_a_protocol_without_a_dealer_needs_nothing() -> None:
    chain = convert(torch.nn.Sequential(torch.nn.Linear(4, 2)), (4,))
    assert step_needs(chain, replace(SETTING, protocol=Replicated3), [3]) == {}
