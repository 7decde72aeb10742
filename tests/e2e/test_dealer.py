"""additive2 by the real command line: two parties and a dealer as processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from safetensors import safe_open

from mpcpipe.cli.check import check
from tests import tiny
from tests.running import Run

PIPELINED = ("pipeline.stages=[0, 2]", "pipeline.schedule=1f1b", "pipeline.microbatches=2")
ONE_AFTER_ANOTHER = ("pipeline.stages=[0, 2]", "pipeline.schedule=sequential", "pipeline.microbatches=2")


def trained(job: Path, *changes: str) -> tuple[dict[str, Any], Run]:
    words = [word for change in changes for word in ("--set", change)]
    run = Run(job.parent, "train", job, "--protocol", "additive2", *words, "--insecure-keys", "3", "--model-digest")
    try:
        run.ok()
    finally:
        run.close()
    (folder,) = (job.parent / "runs").iterdir()
    return json.loads((folder / "result.json").read_text()), run


@pytest.mark.parametrize("changes", [PIPELINED, ONE_AFTER_ANOTHER], ids=["pipelined", "sequential"])
def test_the_dealer_deals_what_check_says(tmp_path: Path, changes: tuple[str, ...]) -> None:
    """To the byte, and the model is the same one whoever is ahead of whom."""
    job = tiny.columns(tmp_path / "job")
    changes = (*changes, "train.steps=4", "reveal.loss_every=0")
    words = [word for change in changes for word in ("--set", change)]
    said = json.loads(
        CliRunner()
        .invoke(check, [str(job), "--protocol", "additive2", *words, "--json", "-"], standalone_mode=False)
        .output
    )
    result, run = trained(job, *changes)
    assert said["dealer"] == "carol"
    assert result["payload_bytes_per_step"][2] == sum(need["nbytes"] for need in said["dealt_per_step"].values())
    assert result["protocol"] == "additive2" and "carol.log" in run.logs(), run.story()
    other, _ = trained(tiny.columns(tmp_path / "other"), *ONE_AFTER_ANOTHER, "train.steps=4", "reveal.loss_every=0")
    assert result["model_sha256"] == other["model_sha256"]


def test_the_dealer_keeps_no_model(tmp_path: Path) -> None:
    job = tiny.columns(tmp_path / "job")
    result, run = trained(job, "train.steps=2", "reveal.loss_every=1")
    assert len(result["losses"]) == 2 and all(loss is not None for loss in result["losses"]), run.story()
    (folder,) = (job.parent / "runs").iterdir()
    kept = sorted(path.name for path in folder.glob("*.shares.safetensors"))
    assert kept == ["model.alice.shares.safetensors", "model.bob.shares.safetensors"]
    with safe_open(folder / kept[0], "pt") as mine, safe_open(folder / kept[1], "pt") as others:
        assert set(mine.keys()) == set(others.keys()) != set()
