"""A tiny training job on files of its own: 12 features, 3 classes, a network of two layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

FEATURES, CLASSES, ROWS = 12, 3, 96

NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")
"""The tensors of the network without a norm."""

NET = """\
from torch import nn


def build(norm=False):
    between = [nn.BatchNorm1d(16)] if norm else []
    return nn.Sequential(nn.Linear(12, 16), *between, nn.ReLU(), nn.Linear(16, 3))


def unsupported():
    return nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 3))
"""

HEAD = """\
[job]
name = "tiny"

[parties]
names = ["alice", "bob", "carol"]

[model]
module = "net.py:build"

[train]
epochs = 2
batch_size = 16
learning_rate = 0.25
momentum = 0.5
"""

COLUMNS = """
[data]
shape = [12]
classes = 3
train = [0, 64]
test = [64, 96]

[data.features]
owner = "alice"
source = "npz"
path = "alice/features.npz"

[data.labels]
owner = "bob"
source = "npz"
path = "bob/labels.npz"
"""

HOSPITALS = """
[data]
shape = [12]
classes = 3

[[data.rows]]
owner = "alice"
train = [0, 40]
test = [40, 56]
features = { source = "npz", path = "alice/features.npz" }
labels = { source = "npz", path = "alice/labels.npz" }

[[data.rows]]
owner = "carol"
train = [0, 24]
test = [24, 40]
features = { source = "npz", path = "carol/features.npz" }
labels = { source = "npz", path = "carol/labels.npz" }
"""


def values() -> tuple[np.ndarray, np.ndarray]:
    """Features (96, 12) around a center for each class, and labels (96,)."""
    random = np.random.default_rng(5)
    labels = random.integers(0, CLASSES, ROWS)
    centers = random.normal(0.0, 1.0, (CLASSES, FEATURES))
    return (centers[labels] + random.normal(0.0, 0.5, (ROWS, FEATURES))).astype(np.float32), labels


def save(path: Path, array: np.ndarray) -> None:
    """One array as npz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, array)


def columns(folder: Path, head: str = HEAD) -> Path:
    """Alice has the features, Bob the labels. Returns the job file."""
    features, labels = values()
    return write(folder, head + COLUMNS, {"alice/features.npz": features, "bob/labels.npz": labels})


def hospitals(folder: Path, head: str = HEAD) -> Path:
    """Alice and Carol have rows of their own. Returns the job file."""
    features, labels = values()
    own = {"alice": slice(0, 56), "carol": slice(56, 96)}
    files = {f"{name}/features.npz": features[rows] for name, rows in own.items()}
    files |= {f"{name}/labels.npz": labels[rows] for name, rows in own.items()}
    return write(folder, head + HOSPITALS, files)


def write(folder: Path, job: str, files: dict[str, np.ndarray]) -> Path:
    """The job, its network and its files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in files.items():
        save(folder / name, array)
    (folder / "net.py").write_text(NET)
    (folder / "job.toml").write_text(job)
    return folder / "job.toml"


def trained_in_the_clear(job_file: Path, steps: int, sizes: dict[str, object] | None = None) -> dict[str, torch.Tensor]:
    """The state dict after `steps` steps of plain torch on the same batches: SGD, written down once more."""
    from mpcpipe.data.batches import Batches
    from mpcpipe.job.load import load
    from mpcpipe.job.model import build_module

    job = load(job_file, [f"model.args.{key}={value}" for key, value in (sizes or {}).items()])
    arrays = {
        path.relative_to(job_file.parent).as_posix(): np.load(path)["arr_0"] for path in job_file.parent.glob("*/*.npz")
    }
    module = build_module(job).train()
    velocity = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    for step, _, batch in Batches(job).training():
        if step == steps:
            break
        x, y = (
            torch.cat(
                [torch.from_numpy(_rows(arrays, job.parties.names[p.owner], what)[p.rows.numpy()]) for p in pieces]
            )
            for what, pieces in (("features", batch.features), ("labels", batch.labels))
        )
        order = torch.arange(len(x)) if batch.order is None else batch.order
        loss = torch.nn.functional.cross_entropy(module(x[order]), y[order])
        grads = torch.autograd.grad(loss, list(module.parameters()))
        with torch.no_grad():
            for (name, parameter), grad in zip(module.named_parameters(), grads, strict=True):
                velocity[name] = job.train.momentum * velocity[name] + grad
                parameter -= job.train.learning_rate * velocity[name]
    return {name: value.detach() for name, value in module.state_dict().items()}


def _rows(arrays: dict[str, np.ndarray], party: str, what: str) -> np.ndarray:
    return arrays[f"{party}/{what}.npz"]
