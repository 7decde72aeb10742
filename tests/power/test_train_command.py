"""`mpcpipe power train`, and what it makes in `mpcpipe power replay`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mpcpipe.cli.power import power
from mpcpipe.errors import PowerError, UsageError
from mpcpipe.services.power.greendls.weights import load_policy

CARD = ["--card", "v100s", "--network", "densenet201", "--slo", "0.2"]


@pytest.fixture
def rate(tmp_path: Path) -> Path:
    file = tmp_path / "rate.csv"
    file.write_text("requests_per_second\n" + "60\n90\n" * 4)
    return file


def called(*arguments: str) -> Result:
    return CliRunner().invoke(power, arguments, catch_exceptions=False)


def test_an_agent_is_trained_kept_and_replayed(tmp_path: Path, rate: Path) -> None:
    out, said = tmp_path / "agent.safetensors", tmp_path / "said.json"
    done = called("train", *CARD, "--rate", str(rate), "--steps", "40", "--out", str(out), "--json", str(said))
    assert done.exit_code == 0
    report = json.loads(said.read_text())
    # 1 memory clock, 27 SM clocks from 517 MHz, 18 batches.
    assert report["actions"] == 27 * 18 and report["steps"] == 40 and report["slo_s"] == 0.2
    assert len(load_policy(out)[1]) == 27 * 18
    figures = tmp_path / "figures.json"
    played = called(
        *("replay", *CARD, "--rate", str(rate), "--policy", "greendls", "--agent", str(out)),
        *("--against", "clipper-variant,eais", "--seeds", "2", "--json", str(figures)),
    )
    assert played.exit_code == 0
    found = json.loads(figures.read_text())
    assert set(found["gross_saving"]) == set(found["net_saving"]) == {"clipper-variant", "eais"}
    assert all(0.0 <= share <= 1.0 for share in found["violation_share"].values())
    power_w = found["mean_power_w"]
    # With two seeds the mean of the ratios and the ratio of the means differ a little.
    assert found["gross_saving"]["eais"] == pytest.approx(1 - power_w["greendls"] / power_w["eais"], abs=0.02)


def test_the_published_agent_can_be_trained(tmp_path: Path, rate: Path) -> None:
    out = tmp_path / "agent.safetensors"
    called("train", *CARD, "--rate", str(rate), "--steps", "30", "--paper-exact", "--out", str(out))
    learning = load_policy(out)[2]
    assert learning.paper_exact and not learning.double and learning.gamma == 0.99
    # 95 % of exploration is gone at the end, as after 95,000 of 100,000 published steps.
    assert learning.explore_step * learning.steps == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("more", "kind", "said"),
    [
        (["--steps", "0"], UsageError, "at least one"),
        (["--slo", "-1"], UsageError, "seconds, above 0"),
        (["--slo", "0.001"], PowerError, "the fastest possible"),
        (["--grid", "x.csv"], UsageError, "either --grid"),
        (["--network", "densenet"], PowerError, "did you mean 'densenet201'"),
        (["--card", "v100"], PowerError, "did you mean 'v100s'"),
    ],
)
def test_what_cannot_be_trained(tmp_path: Path, rate: Path, more: list[str], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        called("train", *CARD, "--rate", str(rate), "--out", str(tmp_path / "agent"), *more)
