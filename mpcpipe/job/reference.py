"""The job file's reference, from the schema itself, as Markdown.

python -m mpcpipe.job.reference                      prints it
python -m mpcpipe.job.reference docs/job-file.md     renews the part of that page below its mark
"""

from __future__ import annotations

import dataclasses
import json
import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from mpcpipe.job.load import fields_of
from mpcpipe.job.schema import Job

INTRODUCTION = (
    "A job file is TOML. Its tables and keys are below; keys that are not *needed* may be left out. Keys of *all* "
    "must be the same at all parties, who compare them before the first share; *own* keys are each party's own, "
    "and nobody else learns them."
)

MARK = "<!-- Below this line: python -m mpcpipe.job.reference docs/job-file.md -->"

_KINDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}


def reference() -> str:
    """Markdown: a section a table, a row a key, with type, default, range, and whether the parties must agree on it."""
    return "\n".join(["# Job files", "", INTRODUCTION, "", *_section(Job, "", "")])


def renewed(page: str) -> str:
    """`page` with everything below its mark as the schema has it now."""
    above, mark, _ = page.partition(MARK)
    if not mark:
        raise ValueError(f"the page lacks the line {MARK}")
    _, _, tables = reference().partition("\n## ")
    return f"{above}{mark}\n\n## {tables.rstrip()}\n"


def _section(kind: type, prefix: str, about: str) -> Iterator[str]:
    tables: list[tuple[type, str, str]] = []
    rows: list[str] = []
    for f, inner, many in fields_of(kind):
        full = f"{prefix}{f.name}"
        if dataclasses.is_dataclass(inner):
            title = f"[[{full}]]" if many is not None else f"[{full}]"
            tables.append((cast(type, inner), full, f"{title}: {f.metadata['about']}"))
        else:
            whose = "all" if f.metadata["public"] else "own"
            rows.append(f"| `{f.name}` | {_kind(inner, many)} | {_default(f)} | {whose} | {_allowed(f.metadata)} |")
    if about:
        title, _, sentence = about.partition(": ")
        yield from (f"## `{title}`", "", f"{sentence[0].upper()}{sentence[1:]}.", "")
    if rows:
        yield from ("| key | type | default | whose | |", "|---|---|---|---|---|", *rows, "")
    for inner, full, text in tables:
        yield from _section(inner, f"{full}.", text)


def _kind(kind: Any, many: int | None) -> str:
    if typing.get_origin(kind) is not None:
        return "table"
    return f"list of {_KINDS[kind]}s" if many is not None else _KINDS[kind]


def _default(f: dataclasses.Field[Any]) -> str:
    if f.default_factory is not dataclasses.MISSING:
        return ""
    if f.default is dataclasses.MISSING:
        return "**needed**"
    return "" if f.default in (None, ()) else f"`{json.dumps(f.default)}`"


def _allowed(rules: Mapping[str, Any]) -> str:
    words = {"low": "at least", "above": "more than", "high": "at most", "below": "less than"}
    bounds = [f"{text} {rules[name]}" for name, text in words.items() if rules[name] is not None]
    choices = [", ".join(f"`{choice}`" for choice in rules["choices"])] if rules["choices"] else []
    limits = "; ".join([*choices, *bounds])
    about = rules["about"].replace("|", "\\|")
    return f"{about[0].upper()}{about[1:]}." + (f" ({limits})" if limits else "")


if __name__ == "__main__":
    if sys.argv[1:]:
        file = Path(sys.argv[1])
        file.write_text(renewed(file.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(reference())
