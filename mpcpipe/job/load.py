"""A job file, and what the command line changes in it, as a checked `Job`."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import operator
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from mpcpipe.errors import JobError, UsageError
from mpcpipe.job.check import check
from mpcpipe.job.schema import Job
from mpcpipe.job.where import Where, lines_of

_KINDS = {int: "a whole number", float: "a number", str: "text in quotes", bool: "true or false"}


def load(path: Path | str, overrides: Sequence[str] = ()) -> Job:
    """The job in the file `path`, changed by `overrides` ("train.epochs=3"; the value as in TOML, or text without
    quotes).

    Relative paths in the file start at its folder, those in overrides at the current one. Whatever is wrong is a
    JobError that names the key, its line and what would be right; a malformed override is a UsageError.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise JobError(f"there is no job file {path}; examples/ has some to start from") from error
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"the job file {path} cannot be read: {error}") from error
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise JobError(f"{path} is not valid TOML: {error}") from error
    paths = dict.fromkeys(_paths(Job, ""), path.parent)
    given = set()
    for override in overrides:
        key = _override(content, override)
        given.add(key)
        paths[re.sub(r"\[\d+\]", "[]", key)] = Path()
    where = Where(str(path), lines_of(text), frozenset(given))
    return _checked(content, where, paths)


def from_dict(content: Mapping[str, Any], name: str = "") -> Job:
    """The job that `content` describes, tables as dicts. Relative paths start at the current folder."""
    return _checked(content, Where(name), dict.fromkeys(_paths(Job, ""), Path()))


def to_dict(job: Job) -> dict[str, Any]:
    """Tables as dicts, without what is None: `from_dict(to_dict(job)) == job`, also by way of JSON."""
    return cast(dict[str, Any], _plain(job))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        pairs = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {name: _plain(inner) for name, inner in pairs if inner is not None}
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    return dict(value) if isinstance(value, Mapping) else value


def _checked(content: Mapping[str, Any], where: Where, paths: Mapping[str, Path]) -> Job:
    return check(_table(Job, content, "", where, paths), where)


# overrides


def _override(content: dict[str, Any], override: str) -> str:
    """Writes one "section.key=value" into `content`; its key."""
    key, equals, value = override.partition("=")
    key = key.strip()
    if not equals or not key:
        raise UsageError(f"--set {override}: write --set section.key=value, such as --set train.epochs=3")
    inside: Any = content
    *tables, last = re.findall(r"[^.\[\]]+", key)
    for name in tables:
        if isinstance(inside, list) != name.isdigit() or (name.isdigit() and int(name) >= len(inside)):
            raise UsageError(f"--set {key}: the job has no entry {name} there")
        inside = inside[int(name)] if name.isdigit() else inside.setdefault(name, {})
        if not isinstance(inside, dict | list):
            raise UsageError(f"--set {key}: {name} is not a table")
    if isinstance(inside, list):
        raise UsageError(f"--set {key}: say which entry, such as {'.'.join(tables)}[0].{last}")
    inside[last] = _value(value.strip())
    return key


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


# types


def _paths(kind: type, prefix: str) -> Iterator[str]:
    """All keys that hold paths, as `data.rows[].features.path`."""
    for f, inner, many in fields_of(kind):
        name = f"{prefix}{f.name}{'[]' if many is not None and dataclasses.is_dataclass(inner) else ''}"
        if dataclasses.is_dataclass(inner):
            yield from _paths(cast(type, inner), f"{name}.")
        elif f.metadata["path"]:
            yield name


def fields_of(kind: type) -> Iterator[tuple[dataclasses.Field[Any], Any, int | None]]:
    """Fields with their type (None taken off), and how many of it they hold: None for one, 0 for any number."""
    hints = typing.get_type_hints(kind)
    for f in dataclasses.fields(kind):
        hint = hints[f.name]
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
        if typing.get_origin(hint) is tuple:
            inner, *others = typing.get_args(hint)
            yield f, inner, 0 if others == [...] else 1 + len(others)
        else:
            yield f, hint, None


def _table(kind: type[Any], content: Any, prefix: str, where: Where, paths: Mapping[str, Path]) -> Any:
    """An instance of the dataclass `kind` from a table; prefix: its dotted key with a dot behind, or nothing."""
    if not isinstance(content, Mapping):
        raise where.error(prefix[:-1], f"is {_shown(content)}; it must be a table of keys")
    known = {f.name: (f, inner, many) for f, inner, many in fields_of(kind)}
    for name in content:
        if name not in known:
            raise _unknown(prefix, name, list(known), where)
    values: dict[str, Any] = {}
    for name, (f, inner, many) in known.items():
        full = f"{prefix}{name}"
        if name in content:
            values[name] = _entry(f, inner, many, content[name], full, where, paths)
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise where.error(full, f"is missing: {f.metadata['about']}")
        elif f.metadata["path"] and f.default is not None:
            values[name] = _from_folder(str(f.default), paths.get(full, Path()))
    return kind(**values)


def _entry(
    f: dataclasses.Field[Any],
    kind: Any,
    many: int | None,
    value: Any,
    full: str,
    where: Where,
    paths: Mapping[str, Path],
) -> Any:
    if value == "auto" and f.metadata["auto"] is not dataclasses.MISSING:
        return f.metadata["auto"]
    if many is None:
        return _single(f, kind, value, full, where, paths)
    if not isinstance(value, list):
        raise where.error(full, f"is {_shown(value)}; it must be a list")
    if many and len(value) != many:
        raise where.error(full, f"has {len(value)} entries; it must have {many}: {f.metadata['about']}")
    return tuple(_single(f, kind, inner, f"{full}[{i}]", where, paths) for i, inner in enumerate(value))


def _single(
    f: dataclasses.Field[Any], kind: Any, value: Any, full: str, where: Where, paths: Mapping[str, Path]
) -> Any:
    if dataclasses.is_dataclass(kind):
        return _table(cast(type[Any], kind), value, f"{full}.", where, paths)
    if typing.get_origin(kind) is not None:  # a table whose keys are free
        if not isinstance(value, dict):
            raise where.error(full, f'is {_shown(value)}; it must be a table, such as {{ pool = "max" }}')
        return dict(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise where.error(full, f"is {_shown(value)}; it must be {_KINDS[kind]}: {f.metadata['about']}")
    _check_range(f.metadata, value, full, where)
    if f.metadata["path"]:
        return _from_folder(value, paths.get(re.sub(r"\[\d+\]", "[]", full), Path()))
    return value


def _from_folder(value: str, folder: Path) -> str:
    """A path, or "file.py:function", from its folder. "package.module:function" is not a path."""
    file, colon, function = value.rpartition(":")
    if colon and not file.endswith(".py"):
        return value
    return str(folder / file) + colon + function if colon else str(folder / value)


def _check_range(rules: Mapping[str, Any], value: Any, full: str, where: Where) -> None:
    if rules["choices"] and value not in rules["choices"]:
        near = difflib.get_close_matches(value, rules["choices"], 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise where.error(full, f"is {value!r}; {hint}It is one of {', '.join(rules['choices'])}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise where.error(full, f"is {value}; it must be a finite number: {rules['about']}")
    for name, wrong, words in (
        ("low", operator.lt, "at least"),
        ("high", operator.gt, "at most"),
        ("above", operator.le, "more than"),
        ("below", operator.ge, "less than"),
    ):
        if rules[name] is not None and wrong(value, rules[name]):
            raise where.error(full, f"is {value}; it must be {words} {rules[name]}: {rules['about']}")


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)


def _unknown(prefix: str, name: str, known: list[str], where: Where) -> JobError:
    near = difflib.get_close_matches(name, known, 1)
    others = [full for full in _all_keys(Job, "") if full.rsplit(".", 1)[-1] == name]
    if near:
        hint = f"did you mean {near[0]!r}?"
    elif others:
        hint = f"did you mean {' or '.join(others)}?"
    else:
        hint = f"known here: {', '.join(known)}."
    return where.error(f"{prefix}{name}", f"there is no such key; {hint}")


def _all_keys(kind: type, prefix: str) -> Iterator[str]:
    for f, inner, many in fields_of(kind):
        name = f"{prefix}{f.name}{'[]' if many is not None and dataclasses.is_dataclass(inner) else ''}"
        yield name
        if dataclasses.is_dataclass(inner):
            yield from _all_keys(cast(type, inner), f"{name}.")
