"""services.kernels: what is chosen for a job, and that training does not depend on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mpcpipe.job.load import load
from mpcpipe.ring import native
from mpcpipe.ring.choice import BACKENDS, Call, choice
from mpcpipe.ring.shapes import conv_shape
from mpcpipe.runtime.kernels import calls_of, choose_kernels, time_calls, write_choice

ROOT = Path(__file__).parents[2]
JOB = ROOT / "examples" / "benchmarks" / "mobilenet.toml"
NET = """\
from torch import nn


def build():
    separable = nn.Conv2d(3, 3, 3, 2, 1, groups=3), nn.Conv2d(3, 4, 1)
    return nn.Sequential(*separable, nn.ReLU(), nn.AvgPool2d(16), nn.Flatten(), nn.Linear(4, 10))
"""


@pytest.fixture(autouse=True)
def rule_again() -> Iterator[None]:
    yield
    choice().use({})


def test_the_products_of_depthwise_separable_convolutions(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    text = JOB.read_text().replace('zoo = "mobilenet_like"', 'module = "net.py:build"').split("[pipeline]")[0]
    (tmp_path / "job.toml").write_text(text)
    calls = calls_of(load(tmp_path / "job.toml", ["train.batch_size=2"]))
    shapes = {call.shape for call in calls if call.operator == "conv2d"}
    assert conv_shape((2, 3, 32, 32), (3, 1, 3, 3), (2, 2), (1, 1), (1, 1), 3) in shapes
    assert conv_shape((2, 3, 16, 16), (4, 3, 1, 1), (1, 1), (0, 0), (1, 1), 1) in shapes
    assert {call.dtype for call in calls} == {torch.int64}
    assert {"matmul", "conv2d_input_grad", "conv2d_weight_grad"} <= {call.operator for call in calls}


def test_micro_batches_of_two_sizes() -> None:
    calls = calls_of(load(ROOT / "examples" / "digits.toml", ["train.batch_size=5", "pipeline.microbatches=2"]))
    assert {call.shape[0][0] for call in calls if isinstance(call.shape, tuple)} >= {2, 3}


def test_the_rule_and_one_for_all() -> None:
    assert choose_kernels(load(JOB, [])) is None
    assert not choice().made
    assert choose_kernels(load(JOB, ["services.kernels=reference"])) == {"rule": "reference"}
    assert choice().of("matmul", torch.int64, ((1, 1), (1, 1))) == "reference"


def test_timing_chooses_and_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    job = load(
        ROOT / "examples" / "digits.toml", ["services.kernels=auto", "train.batch_size=4", "pipeline.microbatches=1"]
    )
    found = choose_kernels(job)
    assert found is not None
    write_choice(found, tmp_path, "alice")
    assert json.loads((tmp_path / "kernels.alice.json").read_text()) == found
    assert len(found["chosen"]) == len(calls_of(job))
    for each in found["chosen"]:
        times = each["microseconds"]
        assert each["backend"] in BACKENDS and times[each["backend"]] == min(times.values())
    assert choose_kernels(job) == found  # from the cache: the same times to the last digit


def test_every_back_end_of_a_call_is_timed() -> None:
    s = conv_shape((2, 4, 8, 8), (4, 1, 3, 3), (1, 1), (1, 1), (1, 1), 4)
    times = time_calls([Call("conv2d", torch.int64, s), Call("conv2d_weight_grad", torch.int64, s)])
    first, second = times.values()
    ours = {"native", "products"} if native.load() is not None else set()
    assert set(first) == ours | {"torch", "reference"}
    assert set(second) == ours | {"reference"}
