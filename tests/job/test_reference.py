"""The reference has every table and every key of the schema."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mpcpipe.job.load import fields_of
from mpcpipe.job.reference import MARK, reference, renewed
from mpcpipe.job.schema import Job


def test_every_table_and_key_is_there() -> None:
    text = reference()
    tables: list[tuple[type, str]] = [(Job, "")]
    for table, prefix in tables:
        if prefix:
            head = next(title for title in (f"## `[{prefix}]`", f"## `[[{prefix}]]`") if title in text)
            section = text.split(head)[1].split("\n## ")[0]
        for field, inner, _ in fields_of(table):
            if dataclasses.is_dataclass(inner):
                tables.append((inner, f"{prefix}.{field.name}" if prefix else field.name))
            else:
                assert f"| `{field.name}` |" in section
                assert field.metadata["about"][1:].replace("|", "\\|") in section


def test_what_a_row_says() -> None:
    text = reference()
    assert '| `optimizer` | text | `"sgd"` | all | How. (`sgd`, `adam`) |' in text
    assert "| `path` | text |  | own | The file, from the job file's folder. |" in text
    assert (
        "| `momentum` | number | `0.0` | all | Sgd: share of the last step that is kept. (at least 0; less than 1) |"
        in text
    )
    assert "| `classes` | whole number | **needed** | all |" in text


def test_the_page_has_the_reference_of_this_schema() -> None:
    page = (Path(__file__).parents[2] / "docs" / "job-file.md").read_text(encoding="utf-8")
    assert MARK in page
    assert page == renewed(page), "renew it: python -m mpcpipe.job.reference docs/job-file.md"
    assert renewed(page.replace("| `epochs` |", "| `epoch` |")) == page


def test_a_page_without_the_mark() -> None:
    with pytest.raises(ValueError, match="lacks the line"):
        renewed("# Job files\n")
