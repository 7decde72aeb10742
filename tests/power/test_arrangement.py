"""The pipeline and the clock with the least energy: what the search finds is what trying everything finds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from mpcpipe.cli.main import mpcpipe
from mpcpipe.errors import PowerError
from mpcpipe.job.load import load
from mpcpipe.job.model import build_chain
from mpcpipe.plan.machine import device
from mpcpipe.plan.net import parse
from mpcpipe.plan.partition import Wish
from mpcpipe.plan.planner import estimated
from mpcpipe.plan.stages import NodesOf
from mpcpipe.runtime.planning import setting_of
from mpcpipe.services.power.arrangement import STRIDE, Way, at_clock, ways
from mpcpipe.services.power.cards import CARDS
from mpcpipe.services.power.clockplan import Curve
from mpcpipe.services.power.setting import Limits
from tests import tiny

CARD = CARDS["a100-40gb"]
CURVE = Curve(CARD, 1215, CARD.sm_clocks_mhz)
NET = parse("lan")
WISH = Wish(max_workers=2, microbatches=2)


@pytest.fixture(scope="module")
def tiny_job(tmp_path_factory: pytest.TempPathFactory) -> tuple[NodesOf, int, int]:
    """Layers in seconds, how many there are, and the batch."""
    job = load(tiny.columns(tmp_path_factory.mktemp("job")), [])
    _, chain = build_chain(job)
    return estimated(chain, setting_of(job), device("a100")), len(chain.layers), job.train.batch_size


def found_of(tiny_job: tuple[NodesOf, int, int], limits: Limits, wish: Wish = WISH) -> list[Way]:
    nodes_of, layers, batch = tiny_job
    return ways(nodes_of, layers, batch, NET, 1.0, wish, CURVE, limits)


@pytest.mark.parametrize("later", [1.0, 1.2, 4.0])
def test_the_cheapest_clock_of_each_pipeline_is_found(tiny_job: tuple[NodesOf, int, int], later: float) -> None:
    fastest_s = min(way.full_s for way in found_of(tiny_job, Limits()))
    found = found_of(tiny_job, Limits(deadline_s=later * fastest_s))
    assert found == sorted(found, key=lambda way: way.joules)
    for way in found:
        tried = [at_clock(way.choice, CURVE, NET, 1.0, clock) for clock in CARD.sm_clocks_mhz[::-STRIDE]]
        in_time = [joules for step, joules in tried if step.step_s <= later * fastest_s]
        assert way.joules == min(in_time) and way.step_s <= later * fastest_s
    assert len({way.numbers for way in found}) == len(found)


def test_a_cap_takes_the_high_clocks_away(tiny_job: tuple[NodesOf, int, int]) -> None:
    found = found_of(tiny_job, Limits(cap_w=150.0, deadline_s=1.0))
    assert all(CURVE.busy_w(way.clock_mhz) <= 150.0 for way in found)
    with pytest.raises(PowerError, match=r"a cap of 50 W is kept by no clock of A100 .* under full load: it takes"):
        found_of(tiny_job, Limits(cap_w=50.0))


def test_a_deadline_that_nothing_meets_says_the_fastest(tiny_job: tuple[NodesOf, int, int]) -> None:
    fastest_s = min(way.full_s for way in found_of(tiny_job, Limits()))
    with pytest.raises(PowerError, match=f"cannot be met: the fastest possible is {fastest_s:.4g} s"):
        found_of(tiny_job, Limits(deadline_s=fastest_s / 2))


def test_numbers_that_are_given_stay(tiny_job: tuple[NodesOf, int, int]) -> None:
    (only,) = found_of(tiny_job, Limits(deadline_s=1.0), replace(WISH, pieces=1))
    assert only.numbers == (2, 1)


def test_the_command(tmp_path: Path) -> None:
    words = ["power", "plan", str(tiny.columns(tmp_path)), "--net", "lan"]
    words += ["--set", "pipeline.stages=auto", "--set", "pipeline.pieces=auto", "--set", "pipeline.schedule=auto"]
    power = ["--set", "services.power.deadline_s=1"]
    told = CliRunner().invoke(mpcpipe, [*words, *power, "--device", "a100", "--card", "h100", "--json", "-"])
    plain = json.loads(told.output)
    assert plain["card"] == "h100" and 'policy="perseus", deadline_s=1' in plain["keys"]
    assert plain["ways"][0]["joules"] == min(way["joules"] for way in plain["ways"])
    assert [way["microbatches"] for way in plain["ways"]] == [1] * len(plain["ways"]), "what the job says stays"
