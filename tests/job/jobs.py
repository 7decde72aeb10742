"""A small job to change in tests."""

from __future__ import annotations

from pathlib import Path

from mpcpipe.job.load import load
from mpcpipe.job.schema import Job

TEXT = """\
[job]
name = "small"

[parties]
names = ["alice", "bob", "carol"]

[model]
zoo = "digits_mlp"
reveal_to = "alice"

[data]
shape = [1, 8, 8]
classes = 10
train = [0, 96]
test = [96, 128]

[data.features]
owner = "alice"
source = "synthetic"

[data.labels]
owner = "bob"
source = "synthetic"

[train]
epochs = 2
batch_size = 32
"""

ROWS = """\
[job]
name = "hospitals"

[model]
zoo = "digits_mlp"

[data]
shape = [64]
classes = 10

[[data.rows]]
owner = "alice"
train = [10, 60]
test = [0, 10]
features = { source = "synthetic" }
labels = { source = "synthetic", seed = 2 }

[[data.rows]]
owner = "carol"
train = [0, 30]

[data.rows.features]
source = "synthetic"
seed = 3

[data.rows.labels]
source = "synthetic"
seed = 4

[train]
batch_size = 16
epochs = 2
"""


def written(folder: Path, text: str = TEXT, *overrides: str, name: str = "job.toml") -> Job:
    """The job in `text`, read from a file in `folder`."""
    (folder / name).write_text(text)
    return load(folder / name, overrides)
