"""The public names, what importing them costs, and training from Python."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

import mpcpipe
from mpcpipe import errors
from mpcpipe.job.load import from_dict, load
from mpcpipe.job.write import absolute, dumps, value

ROOT = Path(__file__).parent.parent
SMALL = {
    "job": {"name": "small"},
    "model": {"module": "tests.test_public:network", "reveal_to": "bob"},
    "data": {
        "shape": [4],
        "classes": 2,
        "train": [0, 32],
        "test": [32, 48],
        "features": {"owner": "alice", "source": "synthetic"},
        "labels": {"owner": "bob", "source": "synthetic"},
    },
    "train": {"batch_size": 16},
}


def network():
    from torch import nn

    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def test_the_public_names_are_these() -> None:
    assert sorted(mpcpipe.__all__) == ["Local", "MpcpipeError", "Party", "Secret", "__version__", "local", "train"]
    assert dir(mpcpipe) == sorted(mpcpipe.__all__)
    assert mpcpipe.MpcpipeError is errors.MpcpipeError
    assert all(getattr(mpcpipe, name).__doc__ for name in mpcpipe.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        mpcpipe.trian  # noqa: B018


def test_importing_it_imports_nothing_heavy() -> None:
    program = "import sys, mpcpipe; print(sorted({'torch', 'numpy', 'click', 'rich'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert found.stdout.strip() == "[]"


def test_training_from_a_dict(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    seen = []
    result = mpcpipe.train(
        SMALL, run={"output": str(tmp_path), "threads": 1}, train={"epochs": 2}, on_event=seen.append
    )
    assert len(result["steps_s"]) == 4 and result["right"][1] == 16 and result["protocol"] == "replicated3"
    assert [event["step"] for event in seen if event["event"] == "step" and event["party"] == 0] == [1, 2, 3, 4]
    folder = Path(result["run_folder"])
    assert {"job.toml", "model.safetensors"} <= {path.name for path in folder.iterdir()}
    kept = load(folder / "job.toml")
    assert (kept.train.epochs, kept.train.batch_size, kept.model.reveal_to) == (2, 16, "bob")


def test_a_ring_of_32_bits_trains_evaluates_and_opens_losses(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    tables = {"run": {"output": str(tmp_path), "threads": 1}, "reveal": {"loss_every": 1}}
    loss = {"loss": "mean_squared_error", "batch_size": 16}
    wide = mpcpipe.train(SMALL, **tables, train=loss)
    narrow = mpcpipe.train(SMALL, **tables, train=loss, protocol={"ring_bits": 32, "fraction_bits": 10})
    assert len(wide["losses"]) == 2
    assert narrow["losses"] == pytest.approx(wide["losses"], abs=0.02)
    assert abs(narrow["right"][0] - wide["right"][0]) <= 2


def test_training_reports_what_is_wrong(tmp_path) -> None:
    with pytest.raises(errors.JobError, match=r"train\.epochs"):
        mpcpipe.train(SMALL, train={"epochs": 0})
    with pytest.raises(errors.JobError, match="give a table"):
        mpcpipe.train(SMALL, epochs=2)
    with pytest.raises(errors.JobError, match="there is no job file"):
        mpcpipe.train(tmp_path / "none.toml")
    with pytest.raises(errors.JobError, match=r"train\.epochs"):
        mpcpipe.train(ROOT / "examples" / "digits.toml", train={"epochs": "two"})
    with pytest.raises(errors.UsageError, match="machines of their own"):
        mpcpipe.train(SMALL, parties={"hosts": ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]})
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(errors.UsageError, match=r"run\.output"):
        mpcpipe.train(SMALL, run={"output": str(blocked)})


JOBS = [path for path in sorted((ROOT / "examples").rglob("*.toml")) if path.name != "pyproject.toml"]


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_a_written_job_is_the_job(path, tmp_path) -> None:
    job = load(path)
    written = tmp_path / "job.toml"
    written.write_text(dumps(job))
    assert load(written) == absolute(job)


def test_a_written_job_keeps_odd_texts_rows_and_relative_paths(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = {"source": "csv", "path": "a b/ü\t.csv", "delimiter": "\x7f"}
    rows = [
        {"owner": who, "train": [0, 8], "features": source, "labels": source | {"column": 'say "x"\\'}}
        for who in ("alice", "bob")
    ]
    job = from_dict(
        {
            "job": {"name": "odd \U0001f600"},
            "model": {"module": "net.py:build", "args": {"a key": [1.5, True, {"deep": "y"}]}},
            "data": {"shape": [2], "classes": 2, "rows": rows},
            "train": {"batch_size": 4, "learning_rate": 1e-7},
            "evaluate": {"how": "none"},
        }
    )
    elsewhere = tmp_path / "run"
    elsewhere.mkdir()
    (elsewhere / "job.toml").write_text(dumps(job), encoding="utf-8")
    found = load(elsewhere / "job.toml")
    assert found.data.rows[1].features.path == str(tmp_path / "a b/ü\t.csv")
    assert found.model.module == f"{tmp_path}/net.py:build"
    without = dataclasses.replace(found, model=job.model, data=job.data, parties=job.parties)
    assert without == job
    assert found.data.rows[0].labels.column == job.data.rows[0].labels.column == 'say "x"\\'
    with pytest.raises(TypeError, match="no object"):
        value(object())
