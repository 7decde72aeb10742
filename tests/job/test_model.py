"""Building the model of a job: the same weights everywhere, and a sentence where a function is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from mpcpipe.errors import JobError, ModelError
from mpcpipe.job.model import build_chain, build_module, digests, function_of
from mpcpipe.job.schema import Job
from tests.job.jobs import TEXT, written

NET = """
from torch import nn

def build(width=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

def fails():
    raise RuntimeError("no such width")

def number():
    return 3

def gelu():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.GELU())

value = 3
"""


def job_with(folder: Path, function: str, *overrides: str) -> Job:
    (folder / "net.py").write_text(NET)
    return written(folder, TEXT.replace('zoo = "digits_mlp"', f'module = "net.py:{function}"'), *overrides)


def test_the_seed_decides_the_weights_and_torchs_generator_is_left_alone(tmp_path: Path) -> None:
    job = written(tmp_path)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = build_module(job)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    two = build_module(job)
    other = build_module(written(tmp_path, TEXT, "model.seed=2"))
    assert torch.equal(one[1].weight, two[1].weight) and not torch.equal(one[1].weight, other[1].weight)  # type: ignore[index]
    assert digests(job, one) == digests(job, two) != digests(job, other)


def test_a_function_in_a_file(tmp_path: Path) -> None:
    module, chain = build_chain(job_with(tmp_path, "build", "model.args.width=5"))
    assert isinstance(module, nn.Sequential) and chain.output_shapes == ((64,), (5,), (5,), (10,))


def test_the_source_of_a_function_is_agreed_on(tmp_path: Path) -> None:
    job = job_with(tmp_path, "build")
    ours = digests(job, build_module(job))
    (tmp_path / "other").mkdir()
    job = job_with(tmp_path / "other", "build")
    assert digests(job, build_module(job)) == ours
    (tmp_path / "other" / "net.py").write_text(NET + "\n# changed\n")
    theirs = digests(job, build_module(job))
    assert theirs["model.source_sha256"] != ours["model.source_sha256"]
    assert theirs["model.initial_sha256"] == ours["model.initial_sha256"]


def test_wrong_functions(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="has no function 'biuld'"):
        build_module(job_with(tmp_path, "biuld"))
    with pytest.raises(JobError, match="has no function 'value'"):
        build_module(job_with(tmp_path, "value"))
    with pytest.raises(JobError, match="failed: RuntimeError: no such width"):
        build_module(job_with(tmp_path, "fails"))
    with pytest.raises(JobError, match="unexpected keyword argument 'depth'"):
        build_module(job_with(tmp_path, "build", "model.args.depth=3"))
    with pytest.raises(ModelError, match="returns a int; it must return a torch"):
        build_module(job_with(tmp_path, "number"))
    with pytest.raises(JobError, match=r"model\.module: absent\.package cannot be imported: ModuleNotFoundError"):
        function_of("absent.package:build", "model.module")
    with pytest.raises(JobError, match="there is no file"):
        function_of(f"{tmp_path}/absent.py:build", "model.module")


def test_a_file_that_fails_is_read_again_the_next_time(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    reference = f"{tmp_path}/broken.py:f"
    for _ in range(2):
        with pytest.raises(JobError, match="ZeroDivisionError"):
            function_of(reference, "model.module")
    (tmp_path / "broken.py").write_text("def f(): return 1")
    assert function_of(reference, "model.module")() == 1


def test_a_layer_that_has_no_secure_form(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^2 \(GELU\) cannot be trained securely: use ReLU"):
        build_chain(job_with(tmp_path, "gelu"))


def test_wrong_sizes(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"10 scores a row, but data\.classes is 7"):
        build_chain(written(tmp_path, TEXT, "data.classes=7"))
    with pytest.raises(ModelError, match=r"1 \(Linear\) does not take an input of shape \(81,\)"):
        build_chain(written(tmp_path, TEXT, "data.shape=[1, 9, 9]"))
