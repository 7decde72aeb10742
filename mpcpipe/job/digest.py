"""What the parties must agree on before the first share: the public keys of their jobs.

A key is private only where the schema says so: files and sources, own addresses, own folders, waiting times. A new key
is therefore agreed on from the day it is born.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from mpcpipe.job.schema import Job, Model


def agreement(job: Job) -> dict[str, str]:
    """Dotted key -> canonical value (JSON) of every public key, in the schema's order.

    A `module` appears by file name and function; `mpcpipe.job.model.digests` adds what its source and the weights are.
    """
    return dict(_leaves(job, ""))


def _leaves(value: Any, prefix: str) -> Iterator[tuple[str, str]]:
    for f in dataclasses.fields(value):
        if not f.metadata.get("public", True):
            continue
        full, inner = f"{prefix}{f.name}", getattr(value, f.name)
        if isinstance(value, Model) and f.name == "module" and inner is not None:
            inner = PurePath(inner).name
        if dataclasses.is_dataclass(inner):
            yield from _leaves(inner, f"{full}.")
        elif isinstance(inner, tuple) and inner and dataclasses.is_dataclass(inner[0]):
            yield full, str(len(inner))
            for i, entry in enumerate(inner):
                yield from _leaves(entry, f"{full}[{i}].")
        else:
            yield full, json.dumps(inner, sort_keys=True, default=dict)


def digest(agreed: Mapping[str, str]) -> str:
    """SHA-256 of an agreement, the same whatever the order of its keys."""
    return hashlib.sha256(json.dumps(sorted(agreed.items())).encode()).hexdigest()


def apart(there: Mapping[str, str], here: Mapping[str, str]) -> str | None:
    """In words, the first key in which something made for an agreement (`there`) does not fit this one."""
    different = first_difference(there, here)
    if different is None:
        return None
    key, *values = different
    was, is_ = ("absent" if value is None else value for value in values)
    return f"there {key} was {was}, here it is {is_}"


def first_difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[str, str | None, str | None] | None:
    """The first key whose value differs, with both values (None: absent there); None where all are the same."""
    for key in [*ours, *(key for key in theirs if key not in ours)]:
        if ours.get(key) != theirs.get(key):
            return key, ours.get(key), theirs.get(key)
    return None
