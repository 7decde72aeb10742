"""A job without private keys agrees with the whole one, loads again, and names no file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpcpipe.job.digest import agreement
from mpcpipe.job.load import load
from mpcpipe.job.public import public_text
from mpcpipe.job.write import dumps

ROWS = """
[job]
name = "clinics"
[parties]
names = ["alice", "bob", "carol"]
[model]
zoo = "digits_mlp"
[data]
shape = [1, 8, 8]
classes = 10
[[data.rows]]
owner = "alice"
train = [0, 100]
features = { source = "npz", path = "patients-of-alice.npz", array = "x" }
labels = { source = "npz", path = "patients-of-alice.npz", array = "y" }
[[data.rows]]
owner = "bob"
train = [0, 200]
features = { source = "csv", path = "patients-of-bob.csv", columns = ["pressure"] }
labels = { source = "csv", path = "patients-of-bob.csv", column = "diagnosis" }
[evaluate]
how = "none"
[run]
output = "secret-folder"
deadline_s = 7
"""


def test_public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "job.toml"
    file.write_text(ROWS)
    job = load(file)
    assert "patients-of-bob" in dumps(job) and "secret-folder" in dumps(job)
    monkeypatch.chdir(tmp_path)
    text = public_text(job)
    for private in ("patients", "secret-folder", "pressure", "diagnosis", "csv", str(tmp_path), "deadline_s"):
        assert private not in text
    file.write_text(text)
    kept = load(file)
    assert agreement(kept) == agreement(job)
    assert kept.run.deadline_s == 60
    assert public_text(kept) == text


def test_a_model_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(ROWS.replace('zoo = "digits_mlp"', 'module = "nets/mine.py:build"'))
    job = load(file)
    assert f'module = "{tmp_path}/nets/mine.py:build"' in public_text(job)
    assert 'module = "mine.py:build"' in public_text(job, here=False)
    assert str(tmp_path) not in public_text(job, here=False)
