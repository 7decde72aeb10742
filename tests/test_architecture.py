"""Arrows point downwards only; every public error has its own exit code."""

from __future__ import annotations

import ast
from pathlib import Path

import mpcpipe
from mpcpipe import errors

PACKAGE = Path(mpcpipe.__file__).parent
MAY_IMPORT = {
    "errors": set(),
    "ring": {"errors"},
    "random": {"errors", "ring"},
    "link": {"errors", "random"},
    "protocol": {"errors", "ring", "random", "link"},
    "nn": {"errors", "ring", "random", "protocol"},
    "job": {"errors", "protocol", "nn"},
    "checkpoint": {"errors", "random", "job"},
    "dealt": {"errors", "random", "link"},
    "data": {"errors", "job", "ring"},
    "plan": {"errors", "ring", "random", "link", "protocol", "nn", "job"},
    "report": {"errors", "protocol", "job", "plan"},
    "runtime": {
        "errors", "ring", "link", "protocol", "nn", "job", "checkpoint", "data", "plan", "services",
    },
    "services": {"errors", "job", "plan", "report"},
    "programs": {"errors", "ring", "random", "link", "protocol", "nn"},
    "selfcheck": {"errors", "ring", "random", "link", "protocol"},
    "launch": {
        "errors", "ring", "random", "link", "protocol", "nn", "job", "dealt", "data", "plan", "services", "runtime",
    },
    "api": {"errors", "job", "checkpoint", "plan", "runtime", "launch"},
    "device": {"errors", "ring"},
    "ops": {"ring", "device"},
    "cli": {
        "errors", "ring", "device", "protocol", "job", "checkpoint", "plan", "report", "services", "runtime",
        "selfcheck", "launch",
    },
}


def imports(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module] if node.module != "mpcpipe" else [f"mpcpipe.{alias.name}" for alias in node.names]
        rooms |= {m.split(".")[1] for m in modules if m.startswith("mpcpipe.")}
    return rooms


def test_rooms_import_only_what_is_below_them() -> None:
    for room, allowed in MAY_IMPORT.items():
        paths = (PACKAGE / room).rglob("*.py") if (PACKAGE / room).is_dir() else [PACKAGE / f"{room}.py"]
        for path in paths:
            wrong = imports(path) - {room, "__version__"} - allowed
            assert not wrong, f"{path.relative_to(PACKAGE)} imports {wrong}"


def test_every_error_has_an_exit_code_of_its_own() -> None:
    # What is derived elsewhere carries another's code: `launch.machine.Failure` that of the first cause.
    kinds = [kind for kind in errors._tree(errors.MpcpipeError) if kind.__module__ == errors.__name__]
    codes = [kind.exit_code for kind in kinds]
    assert len(set(codes)) == len(codes)
    drawn = errors.__doc__ or ""
    assert all(f"{kind.__name__} " in drawn and f" {kind.exit_code}" in drawn for kind in kinds)
