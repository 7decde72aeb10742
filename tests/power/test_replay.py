"""The replay bench from the command line: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mpcpipe.cli.power import power
from mpcpipe.errors import PowerError, UsageError
from mpcpipe.services.power.cards import card_named
from mpcpipe.services.power.grid import load
from mpcpipe.services.power.networks import A100_CURVES, derived_grid
from mpcpipe.services.power.replay import Task, as_json, compare
from mpcpipe.services.power.saturated import Phase
from mpcpipe.services.power.world import World
from tests.power.grids import made, write
from tests.power.worlds import quiet


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    return write(made(clocks=(540, 900, 1260, 1620, 1950), batches=(1, 4, 16, 64, 256)), tmp_path / "net.csv")


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(power, ["replay", *map(str, words)], catch_exceptions=True)


def test_the_json_has_savings_gains_and_violations_by_policy(csv: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    page = tmp_path / "out.html"
    common = ("--policy", "pctodl", "--against", "morak,power-limit", "--grid", csv, "--seeds", 2, "--hold", 30)
    result = run(*common, "--cap", "150", "--cap", "230,130", "--json", file, "--html", page)
    assert result.exit_code == 0, result.output
    said = json.loads(file.read_text())
    assert said["replayed"] is True
    assert (
        set(said["gross_saving"]) == set(said["net_saving"]) == set(said["throughput_gain"]) == {"morak", "power-limit"}
    )
    assert set(said["violation_share"]) == {"pctodl", "morak", "power-limit"}
    assert all(0 <= share <= 1 for share in said["violation_share"].values())
    tasks = [task["caps_w"] for task in said["tasks"]]
    assert tasks == [[150.0], [230.0, 130.0]]
    ratios = [
        task["policies"]["pctodl"]["throughput_per_s"]["mean"] / task["policies"]["morak"]["throughput_per_s"]["mean"]
        - 1
        for task in said["tasks"]
    ]
    assert said["throughput_gain"]["morak"] == pytest.approx(sum(ratios) / 2, rel=0.05)
    html = page.read_text()
    assert html.count("<svg") == 2
    assert "not a measurement on a GPU" in html
    assert "http" not in html.replace("http-equiv", "")


def test_the_picture_is_a_png(csv: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "out.png"
    result = run("--policy", "dvfs", "--grid", csv, "--seeds", 1, "--hold", 15, "--cap", "150", "--png", file)
    assert result.exit_code == 0, result.output
    assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_same_seed_gives_the_same_replay_and_all_begin_alike() -> None:
    task = Task(quiet(), (Phase(150.0, 30.0),))
    first, second = (compare("dvfs", ["morak", "power-limit"], [task], 1) for _ in range(2))
    assert as_json(first) == as_json(second)
    began = {name: first.outcomes[task.name, name][0].trace[:20] for name in first.policies}
    assert began["dvfs"] == began["morak"] == began["power-limit"]


def test_a_policys_own_options_are_what_it_is_replayed_with(csv: Path, tmp_path: Path) -> None:
    """Without the memory clock, and with the GPU whole, it is the same as a policy that was made so."""
    said = tmp_path / "out.json"
    words = ("--with", "pctodl.lower_memory=false", "--with", "pctodl.partitions=false", "--json", said)
    result = run("--grid", csv, "--seeds", 1, "--hold", 15, "--cap", "150", "--against", "dvfs", *words)
    assert result.exit_code == 0, result.output
    options = {"pctodl": {"lower_memory": False, "partitions": False}}
    world = World(card_named("rtx3080ti"), load(csv).on(card_named("rtx3080ti")))
    found = compare("pctodl", ["dvfs"], [Task(world, (Phase(150.0, 15.0),))], 1, options=options)
    gain = json.loads(said.read_text())["throughput_gain"]["dvfs"]
    assert gain == pytest.approx(as_json(found)["throughput_gain"]["dvfs"])
    plain = compare("pctodl", ["dvfs"], [Task(world, (Phase(150.0, 15.0),))], 1)
    assert gain != pytest.approx(as_json(plain)["throughput_gain"]["dvfs"])


def test_the_truth_has_the_constants_of_sharing_that_are_given() -> None:
    world = replace(quiet(), sharing={"slowdown": 0.3, "launch_ms": 9.0})
    drawn, given = quiet().truth(3).sharing, world.truth(3).sharing
    assert (given.slowdown, given.launch_ms) == (0.3, 9.0)
    assert (given.large, given.small) == (drawn.large, drawn.small) != (quiet().truth(4).sharing.large, drawn.small)
    assert world.predictor.sharing == quiet().predictor.sharing  # what policies believe in stays


def test_savings_and_gains_are_ratios_of_the_outcomes() -> None:
    task = Task(quiet(), (Phase(150.0, 30.0),))
    found = compare("pctodl", ["dvfs"], [task], 1)
    ours, theirs = (found.outcomes[task.name, name][0] for name in ("pctodl", "dvfs"))
    said = as_json(found)
    energy, requests = (sum(getattr(p, key) for p in ours.phases) for key in ("energy_j", "requests"))
    assert ours.gross_j == pytest.approx(energy / requests)
    assert ours.net_j == pytest.approx((energy - 29.3 * 30.0) / requests)
    assert said["gross_saving"]["dvfs"] == pytest.approx(1 - ours.gross_j / theirs.gross_j)
    assert said["net_saving"]["dvfs"] == pytest.approx(1 - ours.net_j / theirs.net_j)
    assert said["throughput_gain"]["dvfs"] == pytest.approx(ours.throughput_per_s / theirs.throughput_per_s - 1)


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (("--cap", "25"), PowerError, "cap of 25 W cannot be kept: RTX 3080 Ti takes 42.0 W idle"),
        (("--cap", "160", "--slo", "0.0001"), PowerError, "0.1 ms cannot be met .* the fastest possible is"),
        (("--cap", "160", "--card", "rtx3080"), PowerError, "no card 'rtx3080'; did you mean 'rtx3080ti'"),
        (("--cap", "160", "--policy", "oracel"), PowerError, "did you mean 'oracle'"),
        (("--cap", "160", "--card", "h100"), PowerError, "is it another card's grid"),
        (("--cap", "watts"), UsageError, "--cap watts: watts, such as 160"),
        ((), UsageError, "--cap W is missing"),
        (("--cap", "160", "--policy", "clipper"), PowerError, "clipper decides batch by batch"),
        (
            ("--cap", "160", "--with", "pctodl.at_one=true"),
            UsageError,
            "no option 'at_one'. It has: partitions, ",
        ),
        (("--cap", "160", "--with", "morak.workers=1"), UsageError, "of a policy that is replayed: pctodl, static"),
        (("--cap", "160", "--with", "pctodl.at_once=no"), UsageError, "'no' is no value: true, false"),
        (("--cap", "160", "--with", "pctodl.shares=[60, 50]"), PowerError, r"shares \[60, 50\]: percents of the GPU"),
        (("--cap", "160", "--with", "pctodl.shares=50"), PowerError, "shares 50: percents .* such as"),
        (("--cap", "160", "--sharing", "big=0.1"), UsageError, "there is no 'big', there are large, small, slowdown"),
        (("--cap", "160", "--sharing", "large=much"), UsageError, "'much' is no number"),
        (("--cap", "160", "--sharing", "slowdown=-1"), UsageError, "slowdown is 0 or more"),
    ],
)
def test_what_cannot_be_is_said(csv: Path, words: tuple[str, ...], kind: type[Exception], message: str) -> None:
    result = run("--grid", csv, "--seeds", 1, "--hold", 10, *words)
    assert isinstance(result.exception, kind), result.output
    import re

    assert re.search(message, str(result.exception)), result.exception


def test_a_derived_network_meets_the_curve_that_it_comes_from() -> None:
    card = card_named("a100-40gb")
    for name, curve in A100_CURVES.items():
        grid = derived_grid(card, name)
        rate = 256e3 / grid.at(1215, 210, 256)[0]
        assert rate == pytest.approx(curve.per_s(210), rel=0.06)
        middle = 256e3 / grid.at(1215, 810, 256)[0]
        assert middle == pytest.approx(curve.per_s(810), rel=0.06)
    with pytest.raises(PowerError, match=r"no network 'resnet'; did you mean 'resnet50'"):
        derived_grid(card, "resnet")


def test_fit_prints_errors_on_what_was_held_out(csv: Path, tmp_path: Path) -> None:
    file = tmp_path / "fit.json"
    result = CliRunner().invoke(power, ["fit", str(csv), "--json", str(file)], catch_exceptions=False)
    assert "every third SM clock" in result.output
    said = json.loads(file.read_text())["net"]["physics and residual"]
    assert said[-1]["what"] == "all of these"
    assert said[-1]["energy_mape"] < 0.06
