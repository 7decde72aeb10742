"""Measured and estimated machines: every piece is there, and the cache."""

from __future__ import annotations

import json
import math
import stat
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from mpcpipe.nn import zoo
from mpcpipe.nn.chain import Chain
from mpcpipe.nn.convert import convert
from mpcpipe.nn.loss import CrossEntropy
from mpcpipe.nn.optim import SGD
from mpcpipe.plan.cost import ChainCosts, chain_costs
from mpcpipe.plan.drive import Setting
from mpcpipe.plan.machine import Machine, nodes
from mpcpipe.plan.measure import Timing, timing
from mpcpipe.plan.profile import cache_folder, cached, calibrate
from mpcpipe.plan.trace import Segment, Timed, Work
from mpcpipe.protocol.replicated3 import Replicated3

SETTING = Setting(Replicated3, CrossEntropy, SGD, classes=10, batch_size=8, owner=0)
ROUND = Machine("a round number", 1e6, 1e6, 1e6, 0.5, 0.25, 1e6)


@pytest.fixture(scope="module")
def chain() -> Chain:
    return convert(zoo.lenet(), (1, 28, 28))


@pytest.fixture(scope="module")
def costs(chain: Chain) -> ChainCosts:
    return chain_costs(chain, SETTING, 4)


def test_seconds_from_rates() -> None:
    work = Work(macs=2_000_000, touched_bytes=3_000_000, drawn_bytes=500_000, calls=4)
    assert ROUND.compute_s(work) == pytest.approx(2 + 3 + 0.5 + 2)
    assert ROUND.timed(Segment(work, (0, 10, 20), (0, 30, 0))) == Timed(pytest.approx(7.75 + 30e-6), 30, 30)
    assert ROUND.timed(Segment(work, (0, 0), (0, 0)), compute_s=1.0) == Timed(1.0)


def test_nodes_have_the_rounds_of_the_dry_run(costs: ChainCosts) -> None:
    for node, layer in zip(nodes(costs.layers, ROUND), costs.layers, strict=True):
        assert node.name == layer.name
        for direction, trace in layer.traces.items():
            assert [t.is_round for t in node.traces[direction]] == [s.is_round for s in trace]
            assert sum(t.sent_bytes for t in node.traces[direction]) == sum(sum(s.sent) for s in trace)


def test_real_tensors_take_the_same_rounds_as_the_dry_run(chain: Chain, costs: ChainCosts) -> None:
    """`nodes` zips pieces with segments strictly: one piece for each."""
    measured = timing(chain, SETTING, (2, 6), repeats=1)
    found = measured.nodes(costs, ROUND)
    assert [node.name for node in found] == [layer.name for layer in costs.layers]
    assert all(t.compute_s >= 0 for node in found for trace in node.traces.values() for t in trace)
    assert sum(t.compute_s for node in found for trace in node.traces.values() for t in trace) > 0
    assert Timing.from_json(json.loads(json.dumps(measured.to_json()))) == measured


def test_other_rows_lie_on_the_line() -> None:
    two = Timing((2, 4), ({"a/F": (1.0, 3.0), "a/U": (5.0,)}, {"a/F": (2.0, 1.0), "a/U": (4.0,)}))
    assert two._at("a/F", 3, 2) == [1.5, 2.0]
    assert two._at("a/F", 6, 2) == [3.0, 0.0]
    assert two._at("a/U", 100, 1) == [4.0]
    one = Timing((2,), ({"a/F": (1.0,), "a/U": (5.0,)},))
    assert (one._at("a/F", 6, 1), one._at("a/U", 6, 1)) == ([3.0], [5.0])


def test_fewer_rounds_for_few_rows() -> None:
    """A layer of two pieces for 2 rows and three for 6: the sum is on the line, in the proportions of the like."""
    two = Timing((2, 6), ({"a/F": (1.0, 3.0)}, {"a/F": (2.0, 4.0, 6.0)}))
    assert two._at("a/F", 3, 2) == [1.5, 4.5]
    assert two._at("a/F", 4, 3) == pytest.approx([4 / 3, 8 / 3, 4.0])
    assert two._at("a/F", 4, 4) == [2.0] * 4


def test_this_machine_has_rates() -> None:
    rates = asdict(calibrate())
    assert not rates.pop("estimated")
    assert all(math.isfinite(rate) and rate > 0 for key, rate in rates.items() if key != "name")


def test_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made: list[int] = []

    def make() -> dict[str, Any]:
        made.append(1)
        return {"x": len(made)}

    assert cache_folder() == tmp_path / "mpcpipe"
    assert [cached("thing", {"rows": rows}, make)["x"] for rows in (1, 1, 2, 1)] == [1, 1, 2, 1]
    assert stat.S_IMODE(cache_folder().stat().st_mode) == 0o700
    for file in cache_folder().iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        file.write_text("damaged")
    assert cached("thing", {"rows": 1}, make)["x"] == 3
    (tmp_path / "no folder").write_text("a file")
    assert cached("thing", {"rows": 1}, make, tmp_path / "no folder" / "x")["x"] == 4
