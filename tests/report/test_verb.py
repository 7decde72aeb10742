"""`mpcpipe report` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mpcpipe.cli.report import report
from mpcpipe.errors import PlanError, UsageError
from tests.report.runs import PICTURE, make_run
from tests.report.test_page import simple_plan


def call(*arguments: object) -> Result:
    return CliRunner().invoke(
        report, [str(argument) for argument in arguments], catch_exceptions=False, standalone_mode=False
    )


def test_all_it_writes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    trace, summary = tmp_path / "trace.json", tmp_path / "summary.json"
    done = call(folder, "--trace", trace, "--json", summary)
    assert "1f1b: 2 stages from layers 0, 3" in done.output
    assert "0.0 │" in done.output and "1.0 │" in done.output and "step 3, alice" in done.output
    assert "not the openings" not in done.output
    text = (folder / "report.html").read_text()
    assert "exactly the openings" in text and "MaxPool2d" in text
    assert json.loads(trace.read_text())["traceEvents"]
    found = json.loads(summary.read_text())
    assert found["page"] == str(folder / "report.html")
    assert (found["steps"], found["step_s"], found["accuracy"], found["opened_as_checked"]) == (3, 10.0, 0.75, True)
    first = found["workers"][0]
    assert (first["party"], first["worker"], first["actions"]) == ("alice", "0.0", 12)
    assert (first["compute_s"], first["wait_s"], first["idle_s"]) == (12.0, 12.0, 6.0)
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert layers["features"]["forward_bytes"] == 64 * 64 * 8  # each pixel of 64 pictures, to one of the others
    assert layers["3"]["stage"] == 1


def test_the_newest_run_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "runs" / "one")
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.html"
    assert str(Path("runs/one")) in call("-o", page).output
    assert page.exists() and not (tmp_path / "runs" / "one" / "report.html").exists()


def test_json_alone(tmp_path: Path) -> None:
    assert json.loads(call(make_run(tmp_path / "run"), "--json", "-").output)["steps"] == 3


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        call(tmp_path / "nowhere")
    folder = make_run(tmp_path / "run")
    with pytest.raises(UsageError, match="cannot be written"):
        call(folder, "-o", tmp_path / "nowhere" / "page.html")
    with pytest.raises(UsageError, match=r"--plan .*nowhere: cannot be read"):
        call(folder, "--plan", tmp_path / "nowhere")
    plan = tmp_path / "plan.json"
    plan.write_text(simple_plan().to_json())
    with pytest.raises(PlanError, match="a plan made for another job"):
        call(folder, "--plan", plan)


def test_a_run_without_its_job(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", job=False)
    done = call(folder)
    assert "the job is not known" in done.output
    assert all(f"{worker} │" in done.output for worker in PICTURE)


def test_a_model_that_is_not_here(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    file = folder / "job.toml"
    file.write_text(file.read_text().replace('zoo = "digits_cnn"', 'module = "gone.py:net"'))
    assert "the model cannot be built here" in call(folder).output
