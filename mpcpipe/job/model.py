"""The torch module that a job trains, the same at every party, and its chain of secure layers."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mpcpipe.errors import JobError, ModelError
from mpcpipe.job.schema import Job
from mpcpipe.nn import zoo
from mpcpipe.nn.chain import Chain
from mpcpipe.nn.convert import convert


def function_of(reference: str, key: str) -> Callable[..., Any]:
    """The function that "package.module:function" or "file.py:function" names; a JobError about `key` if none."""
    name, _, function = reference.rpartition(":")
    try:
        module = _module_from(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except Exception as error:
        raise JobError(f"{key}: {name} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, function, None)
    if not callable(found):
        raise JobError(f"{key}: {name} has no function {function!r}")
    loaded: Callable[..., Any] = found
    return loaded


def _module_from(path: Path) -> Any:
    # The name is that of the place, so that two files called net.py do not meet.
    name = f"mpcpipe_job_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def build_module(job: Job) -> nn.Module:
    """The job's torch module with its initial weights, which `model.seed` draws: the same at every party, and public.

    torch's own generator is left as it was. Errors: JobError (the function), ModelError (what it returns).
    """
    m = job.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(m.seed)
        if m.zoo is not None:
            return zoo.build(m.zoo, m.args)
        build = function_of(str(m.module), "model.module")
        try:
            module = build(**m.args)
        except Exception as error:
            raise JobError(f"model.module: {m.module} failed: {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"model.module: {m.module} returns a {type(module).__name__}; it must return a torch.nn.Module"
        )
    return module


def build_chain(job: Job) -> tuple[nn.Module, Chain]:
    """The job's torch module and its secure layers. ModelError for layers that have no secure form, or wrong sizes."""
    module = build_module(job)
    chain = convert(module, job.data.shape, seed=job.train.seed)
    if chain.output_shape != (job.data.classes,):
        gives = " x ".join(map(str, chain.output_shape))
        raise ModelError(f"the model ends in {gives} scores a row, but data.classes is {job.data.classes}")
    return module, chain


def digests(job: Job, module: nn.Module) -> dict[str, str]:
    """What the parties agree on besides the keys of the job: the model's source, and its initial weights.

    The weights are drawn by torch, whose generators may differ between versions; parties that start from different
    weights would train noise.
    """
    weights = hashlib.sha256()
    for name, value in module.state_dict().items():
        weights.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        weights.update(value.detach().cpu().contiguous().numpy().tobytes())
    found = {"model.initial_sha256": weights.hexdigest()}
    if job.model.module is not None:
        source = inspect.getsourcefile(function_of(job.model.module, "model.module"))
        content = Path(source).read_bytes() if source else b""
        found["model.source_sha256"] = hashlib.sha256(content).hexdigest()
    return found
