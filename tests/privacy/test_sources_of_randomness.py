"""Masks come from the tape and from nowhere else: read in the source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mpcpipe

PACKAGE = Path(mpcpipe.__file__).parent
SECURE = ("protocol", "nn", "ring")
BANNED_MODULES = {"random", "secrets", "pickle", "numpy.random"}
BANNED_NAMES = {
    "rand",
    "randn",
    "randint",
    "randperm",
    "rand_like",
    "randn_like",
    "randint_like",
    "manual_seed",
    "random_",
    "normal_",
    "uniform_",
    "bernoulli",
    "bernoulli_",
}
PUBLIC = {("nn", "dropout.py"), ("nn", "zoo.py")}  # public masks, public initial weights


def offences(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name in BANNED_MODULES]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module in BANNED_MODULES else []
        elif isinstance(node, ast.Attribute) and node.attr in BANNED_NAMES:
            names = [node.attr]
        found += [f"line {node.lineno}: {name}" for name in names]
    return found


@pytest.mark.parametrize(
    "path", [p for room in SECURE for p in sorted((PACKAGE / room).rglob("*.py"))], ids=lambda p: p.name
)
def test_no_other_randomness_in_secure_code(path: Path) -> None:
    if (path.relative_to(PACKAGE).parts[0], path.name) in PUBLIC:
        return
    assert offences(path.read_text()) == []


def test_no_pickle_anywhere() -> None:
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
                assert not {"pickle", "cloudpickle", "dill"} & set(names), path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec"}, path


def test_the_test_sees_what_it_bans() -> None:
    assert len(offences("import random\nimport torch\ntorch.randn(3)\ntorch.manual_seed(1)\nx.random_()")) == 4
