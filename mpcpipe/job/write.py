"""A job as TOML, the inverse of `mpcpipe.job.load`: for jobs that were made in Python, and for keeping what was run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from mpcpipe.job.load import to_dict
from mpcpipe.job.schema import Job

T = TypeVar("T")


def dumps(job: Job) -> str:
    """The job as a TOML text that loads as the same job from any folder: its relative paths become absolute."""
    return tables_text(to_dict(absolute(job)))


def tables_text(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables as TOML; what is inside a table stands in one line."""
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{_key(key)} = {value(inner)}" for key, inner in table.items()), ""]
    return "\n".join(lines)


def value(found: Any) -> str:
    """One value, tables inline. A type that TOML does not have is a TypeError."""
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, int | float):
        return repr(found)
    if isinstance(found, str):
        # JSON's escapes are TOML's, but for one: a delete character must not stand as it is.
        return json.dumps(found, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(found, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {value(inner)}" for key, inner in found.items()) + "}"
    if isinstance(found, list | tuple):
        return "[" + ", ".join(map(value, found)) + "]"
    raise TypeError(f"a job file has texts, numbers, true, false, lists and tables, but no {type(found).__name__}")


def absolute(table: T) -> T:
    """A table of a job with every path in it absolute."""
    changed: dict[str, Any] = {}
    for f in dataclasses.fields(table):  # type: ignore[arg-type]
        found = getattr(table, f.name)
        if dataclasses.is_dataclass(found):
            changed[f.name] = absolute(found)
        elif isinstance(found, tuple) and found and dataclasses.is_dataclass(found[0]):
            changed[f.name] = tuple(absolute(inner) for inner in found)
        elif f.metadata["path"] and found is not None:
            changed[f.name] = _from_root(found)
    return dataclasses.replace(table, **changed)  # type: ignore[type-var]


def _from_root(path: str) -> str:
    """A path, or "file.py:function". "package.module:function" is not a path."""
    file, colon, function = path.rpartition(":")
    if colon and not file.endswith(".py"):
        return path
    return f"{Path(file).absolute()}:{function}" if colon else str(Path(path).absolute())


def _key(key: str) -> str:
    return key if key.isascii() and key.replace("_", "").replace("-", "").isalnum() else value(key)
