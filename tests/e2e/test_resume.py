"""The command line: a party of a run is killed, `--resume` goes on; and what is wrong with a `--resume`."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from mpcpipe.cli.main import mpcpipe
from mpcpipe.errors import CheckpointError
from tests import tiny
from tests.running import Run

SETTINGS = ("--set", "checkpoint.every=1", "--set", "reveal.loss_every=1", "--insecure-keys", "5", "--model-digest")


def test_killed_and_resumed(tmp_path: Path) -> None:
    job = tiny.columns(tmp_path)
    cut = Run(tmp_path, "train", job, *SETTINGS)
    try:
        cut.until_training()
        os.kill(cut.parties()[1], signal.SIGKILL)
        assert cut.finish() == 12, cut.story()
        assert "checkpoints  every step, each party its own shares, in plain (mode 600)" in cut.err
    finally:
        cut.close()
    (folder,) = (tmp_path / "runs").iterdir()
    on = Run(tmp_path, "train", job, *SETTINGS, "--resume", folder, "--json", "on.json")
    try:
        on.ok()
    finally:
        on.close()
    result = json.loads((tmp_path / "on.json").read_text())
    step = result["checkpoints"]["resumed_from"]
    assert step >= 1 and f"goes on after step {step}" in on.err
    assert result["loss_steps"] == list(range(1, 9)) and len(result["steps_s"]) == 8 - step
    assert f"{8 - step}, " in next(line for line in on.out.splitlines() if line.startswith("checkpoints"))
    (second,) = (path for path in (tmp_path / "runs").iterdir() if path != folder)
    assert (second / "checkpoints").resolve() == (folder / "checkpoints").resolve()


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        ((), "there is no such run folder"),
        (("run",), "it has no checkpoints; a job writes them only with checkpoint.every above 0"),
    ],
)
def test_a_wrong_folder_is_said_before_anything_starts(tmp_path: Path, made: tuple[str, ...], sentence: str) -> None:
    for name in made:
        (tmp_path / name).mkdir()
    job = tiny.columns(tmp_path)
    said = CliRunner().invoke(
        mpcpipe, ["train", str(job), "--resume", str(tmp_path / "run"), "--set", f"run.output={tmp_path}"]
    )
    assert isinstance(said.exception, CheckpointError) and sentence in str(said.exception), said.output
    assert not list(tmp_path.glob("*tiny*"))


def test_check_says_what_goes_to_disk(tmp_path: Path) -> None:
    job = str(tiny.columns(tmp_path))

    def said(*settings: str) -> list[str]:
        changes = [word for setting in settings for word in ("--set", setting)]
        found: list[str] = json.loads(CliRunner().invoke(mpcpipe, ["check", job, "--json", "-", *changes]).stdout)[
            "checkpoints_in_words"
        ]
        return found

    assert said() == []
    plain = said("checkpoint.every=3")
    # 259 weights and as many velocities, two components of 8 bytes
    assert "every 3 steps (2 times), each party writes its own shares of 518 values" in plain[0]
    assert "8,288 bytes" in plain[0] and "the last 2 stay" in plain[0] and "in plain" in plain[1]
    assert "of 777 values" in said("checkpoint.every=3", "train.optimizer=adam")[0]
    dealt = said("checkpoint.every=3", "protocol.name=additive2", "checkpoint.key_file=k", "checkpoint.dir=d")
    assert "each party but carol, which has none" in dealt[0] and "in a folder of the run in d" in dealt[0]
    assert dealt[1].startswith("encrypted (AES-256-GCM) with the key in k")
