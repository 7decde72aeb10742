"""From a network of the zoo to a plan, here and on a machine that is not here; what needs no torch imports none."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mpcpipe.nn import zoo
from mpcpipe.nn.chain import Chain
from mpcpipe.nn.convert import convert
from mpcpipe.nn.loss import CrossEntropy
from mpcpipe.nn.optim import SGD
from mpcpipe.plan.check import validate
from mpcpipe.plan.drive import Setting
from mpcpipe.plan.machine import device
from mpcpipe.plan.net import NETS
from mpcpipe.plan.partition import Wish
from mpcpipe.plan.plan import Plan, timeline
from mpcpipe.plan.planner import estimated, measured, plan_for, signature
from mpcpipe.plan.profile import this_machine
from mpcpipe.protocol.plaintext import Plaintext
from mpcpipe.protocol.replicated3 import Replicated3

SETTING = Setting(Replicated3, CrossEntropy, lambda: SGD(0.9), classes=10, batch_size=16, owner=0)
FEW = Wish(max_workers=3, max_simulations=20)


@pytest.fixture(scope="module")
def chain() -> Chain:
    return convert(zoo.secureml(), (1, 28, 28))


def test_a_plan_for_a_device(chain: Chain, tmp_path: Path) -> None:
    plan = plan_for(chain, SETTING, NETS["wan"], "ab" * 32, FEW, machine=device("h100"), cache=tmp_path)
    validate(plan.schedule)
    assert plan.machine == "h100" and plan.net == "rtt=40ms,rate=100Mbit/s"
    assert plan.bound_s * (1 - 1e-9) <= plan.predicted_step_s <= plan.sequential_step_s * (1 + 1e-9)
    assert Plan.from_json(plan.to_json()) == plan
    assert len(timeline(plan).splitlines()) == len(plan.schedule.workers) + 1
    assert not list(tmp_path.iterdir())


def test_published_cut(chain: Chain) -> None:
    plan = plan_for(chain, SETTING, NETS["lan"], "ab", Wish((0, 2), (1, 1), 4, "gpipe"), machine=device("v100"))
    assert [stage.layers for stage in plan.stages] == [("0", "1"), ("2", "3", "4", "5")]
    assert (plan.starts, plan.microbatches, plan.schedule.name) == ((0, 2), 4, "gpipe")


def test_measurements_are_kept(chain: Chain, tmp_path: Path) -> None:
    machine = this_machine(tmp_path)
    assert this_machine(tmp_path) == machine
    first = measured(chain, SETTING, machine, tmp_path)(16)
    assert measured(chain, SETTING, machine, tmp_path)(16) == first
    assert len(list(tmp_path.iterdir())) == 2


def test_layers_are_whole_whatever_the_pieces_of_the_job() -> None:
    lenet = convert(zoo.lenet(), (1, 28, 28))
    large, in_pieces = replace(SETTING, batch_size=64), replace(SETTING, batch_size=64, pieces=2)
    assert estimated(lenet, in_pieces, device("h100"))(32) == estimated(lenet, large, device("h100"))(32)


def test_what_measurements_depend_on(chain: Chain) -> None:
    plain = signature(chain, SETTING)
    assert signature(convert(zoo.secureml(), (1, 28, 28)), SETTING) == plain
    for other in (
        Setting(Plaintext, CrossEntropy, lambda: SGD(0.9), classes=10, batch_size=16, owner=0),
        Setting(Replicated3, CrossEntropy, SGD, classes=10, batch_size=16, owner=0),
        Setting(Replicated3, CrossEntropy, lambda: SGD(0.9), classes=10, batch_size=16),
    ):
        assert signature(chain, other) != plain
    assert signature(convert(zoo.lenet(), (1, 28, 28)), SETTING) != plain


def test_schedules_and_the_simulator_need_no_torch() -> None:
    rooms = "actions check schedule trace net machine simulate stages partition plan"
    imports = "; ".join(f"import mpcpipe.plan.{room}" for room in rooms.split())
    code = f"{imports}; import sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
