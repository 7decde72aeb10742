"""What the pages say runs: their Python, their jobs, their links, their verbs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from unittest import mock

import pytest

from mpcpipe import errors
from mpcpipe.cli.main import VERBS
from mpcpipe.job.load import from_dict
from mpcpipe.nn import match
from mpcpipe.protocol.registry import PROTOCOLS

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(page for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md") if (page := ROOT / name).exists()),
]
FENCE = re.compile(r"^```(\w+)( no-run)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """(line, text) of every fenced block in that language that is to be run."""
    text = page.read_text(encoding="utf-8")
    found = [match for match in FENCE.finditer(text) if match[1] == language and not match[2]]
    return [(text.count("\n", 0, match.start()) + 2, match[3]) for match in found]


def by_name(page: Path) -> str:
    return page.name


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=by_name)
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page in order, in one namespace, in a folder from which examples/ is seen."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    names: dict[str, object] = {"__name__": "page"}
    with mock.patch.dict(match.MAKERS):
        for line, text in blocks(page, "python"):
            exec(compile("\n" * (line - 1) + text, str(page), "exec"), names)


def test_the_runner_finds_a_wrong_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n\n```python no-run\n1 / 0\n```\n")
    assert [line for line, _ in blocks(page, "python")] == [2, 6]
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(AssertionError):
        test_python_runs(page, tmp_path / "elsewhere", monkeypatch)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=by_name)
def test_jobs_load(page: Path) -> None:
    whole = [text for _, text in blocks(page, "toml") if "[job]" in text]
    for text in whole:
        assert from_dict(tomllib.loads(text)).name


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    inside = [target for target in targets if not target.startswith(("http:", "https:", "mailto:"))]
    missing = [target for target in inside if not (page.parent / target).exists()]
    assert not missing


def test_every_page_is_on_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"]({page.name})" not in index] == ["index.md"]


def test_every_error_is_explained_with_its_code() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", page, re.MULTILINE))
    kinds = [kind for kind in errors._tree(errors.MpcpipeError) if kind.__module__ == errors.__name__]
    assert rows == {kind.__name__: str(kind.exit_code) for kind in kinds}


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_verbs_exist(page: Path) -> None:
    typed = re.findall(r"(?:^    |`)mpcpipe ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(typed) <= set(VERBS)


def test_names_of_files_and_tests_exist() -> None:
    """Paths into the repository that the pages name in code."""
    missing = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"`((?:mpcpipe|tests|examples|kernels|docs)/[A-Za-z_][\w./-]*)`", text):
            if not (ROOT / name).exists():
                missing.append(f"{page.name}: {name}")
    assert not missing


def test_the_promise_of_every_protocol_is_in_the_table() -> None:
    promised = re.findall(r"^\| `(\w+)`.*\|$", (ROOT / "SECURITY.md").read_text("utf-8"), re.MULTILINE)
    assert set(PROTOCOLS) <= set(promised)
