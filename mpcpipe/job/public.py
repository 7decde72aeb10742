"""A job without its owners' own affairs: what may be kept beside a result, shown and sent around."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from mpcpipe.job.schema import Job
from mpcpipe.job.write import absolute, tables_text


def public_text(job: Job, here: bool = True) -> str:
    """The job as TOML without private keys (files, sources, own addresses and folders, waiting times).

    What the parties agree on is left as it is, so `digest.agreement` of the job that it loads as is the same.
    here: a model's file is named by its path on this machine, so that it loads from any folder; else by its name.
    """
    if job.model.module is not None:
        module = absolute(job.model).module if here else PurePath(job.model.module).name
        job = dataclasses.replace(job, model=dataclasses.replace(job.model, module=module))
    return tables_text(_public(job))


def _public(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        public = [f.name for f in dataclasses.fields(value) if f.metadata.get("public", True)]
        found = ((name, _public(getattr(value, name))) for name in public)
        return {name: inner for name, inner in found if inner is not None}
    if isinstance(value, tuple):
        return [_public(inner) for inner in value]
    return dict(value) if isinstance(value, Mapping) else value
