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
    assert ROUND.timed(Segment(work, (0, 10, 20), (0, 30, 0))) == Timed(pytest.approx(7.75), 30, 30)
    assert ROUND.timed(Segment(work, (0, 0), (0, 0)), compute_s=1.0) == Timed(1.0)


def test_nodes_have_the_rounds_of_the_dry_run(costs: ChainCosts) -> None:
    for node, layer in zip(nodes(costs.layers, ROUND), costs.layers, strict=True):
        assert node.name == layer.name
        for direction, trace in layer.traces.items():
            assert [t.is_round for t in node.traces[direction]] == [s.is_round for s in trace]
            assert sum(t.sent_bytes for t in node.traces[direction]) == sum(sum(s.sent) for s in trace)


def test_real_tensors_take_the_same_rounds_as_the_dry_run(chain: Chain, costs: ChainCosts) -> None:
    """`nodes` zips pieces with segments strictly: one piece for each."""
    measured = timing(chain, SETTING, (4, 6), repeats=1)
    found = measured.nodes(costs, ROUND)
    assert [node.name for node in found] == [layer.name for layer in costs.layers]
    assert all(t.compute_s >= 0 for node in found for trace in node.traces.values() for t in trace)
    assert sum(t.compute_s for node in found for trace in node.traces.values() for t in trace) > 0
    assert Timing.from_json(json.loads(json.dumps(measured.to_json()))) == measured


def test_updates_do_not_depend_on_rows(chain: Chain) -> None:
    """The best measurement of all counts for them; everything else is as it was measured for these rows."""
    few, many = (chain_costs(chain, SETTING, rows) for rows in (2, 4))
    at = [
        {f"{r.name}/{d}": tuple(own for _ in t) for r in few.layers for d, t in r.traces.items()} for own in (3.0, 1.0)
    ]
    silent = Machine("free rounds", 1e6, 1e6, 1e6, 0.0, 0.0, 1e6)
    found = Timing((2, 4), (at[0], at[1])).nodes(few, silent)
    for node in found:
        for direction, trace in node.traces.items():
            assert {t.compute_s for t in trace} == {1.0 if direction == "U" else 3.0}
    assert [node.name for node in Timing((4,), (at[1],)).nodes(many, silent)] == [r.name for r in many.layers]


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
