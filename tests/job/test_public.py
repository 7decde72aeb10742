"""A job without private keys agrees with the whole one, loads again, and names no file."""

from __future__ import annotations

from pathlib import Path

from mpcpipe.job.digest import agreement
from mpcpipe.job.load import load
from mpcpipe.job.public import public
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


def test_public(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(ROWS)
    job = load(file)
    assert "patients-of-bob" in dumps(job) and "secret-folder" in dumps(job)
    kept = public(job)
    assert agreement(kept) == agreement(job)
    text = dumps(kept)
    for private in ("patients", "secret-folder", "pressure", "diagnosis", "csv"):
        assert private not in text
    assert kept.run.deadline_s == 60
    file.write_text(text)
    assert load(file) == kept
