"""A job without its owners' own affairs: what may be kept beside a result, shown and sent around."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from mpcpipe.job.schema import Job

T = TypeVar("T")


def public(job: Job) -> Job:
    """The job with every private key (files, sources, own addresses and folders, waiting times) at its default.

    What the parties agree on is left as it is, so `digest.agreement` of both is the same.
    """
    return _public(job)


def _public(table: T) -> T:
    changed: dict[str, Any] = {}
    for f in dataclasses.fields(table):  # type: ignore[arg-type]
        found = getattr(table, f.name)
        if not f.metadata.get("public", True):
            make: Any = f.default_factory
            changed[f.name] = make() if f.default is dataclasses.MISSING else f.default
        elif dataclasses.is_dataclass(found):
            changed[f.name] = _public(found)
        elif isinstance(found, tuple) and found and dataclasses.is_dataclass(found[0]):
            changed[f.name] = tuple(_public(inner) for inner in found)
    return dataclasses.replace(table, **changed)  # type: ignore[type-var]
