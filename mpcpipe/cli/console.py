"""The only file that draws: a live line and tables for a person at a terminal, plain lines otherwise, JSON for
machines.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from mpcpipe.errors import MpcpipeError, UsageError


def _console(stderr: bool = False) -> Console:
    console = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 120
    return console


def error(what: MpcpipeError, who: str = "") -> None:
    """One sentence on the standard error, with the exit code that goes with it; `who` says it, if there are several."""
    console = _console(stderr=True)
    console.print(f"mpcpipe{who and f' {who}'}: ", style="bold red", end="")
    console.print(f"{what}", markup=False, end="")
    console.print(f"  (exit code {what.exit_code})", style="dim")


def note(text: str) -> None:
    """A line on the standard error, so that the standard output stays the result's."""
    _console(stderr=True).print(text, markup=False, style="dim")


def warning(text: str) -> None:
    """A line on the standard error that nobody should overlook."""
    _console(stderr=True).print(text, markup=False, style="bold red")


def bullets(title: str, entries: Iterable[str]) -> None:
    """A title, and a line for each entry under it."""
    console = _console()
    console.print(title, markup=False, style="bold")
    for entry in entries:
        console.print(f"  - {entry}", markup=False)


def text(block: str) -> None:
    """Lines as they are."""
    _console().print(block, markup=False)


def blank() -> None:
    """An empty line."""
    _console().print()


def lines(rows: Iterable[tuple[str, str]], stderr: bool = False) -> None:
    """Name and value, a row each."""
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    console = _console(stderr)
    for name, value in rows:
        console.print(f"{name:<{width}}  ", style="bold", end="")
        console.print(value, markup=False)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], stderr: bool = False) -> None:
    """A table; numbers to the right, text to the left."""
    drawn = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for index, column in enumerate(columns):
        cells = [row[index] for row in rows]
        numeric = bool(cells) and all(not cell or cell[0].isdigit() or cell[0] in "-+" for cell in cells)
        drawn.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        drawn.add_row(*(escape(cell) for cell in row))
    _console(stderr).print(drawn)


def check_json(file: str | None, option: str = "--json") -> None:
    """Refuse a file that cannot be written before the work is done, not after."""
    if file in (None, "-"):
        return
    try:
        Path(str(file)).open("a").close()
    except OSError as failure:
        raise UsageError(f"{option} {file}: cannot be written: {failure.strerror}") from failure


def write_json(file: str | None, content: Any) -> None:
    """One JSON object into `file`; - is the standard output; None writes nothing."""
    if file is None:
        return
    text = json.dumps(content, indent=2) + "\n"
    if file == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        Path(file).write_text(text)
    except OSError as failure:
        raise UsageError(f"--json {file}: cannot be written: {failure.strerror}") from failure


class Training:
    """The progress of a training run. Draws on the standard error; a bar for a person, else a line now and then."""

    EVERY_S = 10.0

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._console = _console(stderr=True)
        self._live = self._console.is_terminal
        self._last = time.monotonic()
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[about]}"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task("training", total=steps, about="")

    def __enter__(self) -> Training:
        if self._live:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def step(self, step: int, epoch: int, seconds: float, loss: float | None) -> None:
        """One step is done; `loss` is known only where the job reveals it."""
        about = f"epoch {epoch}  {seconds:.2f} s a step" + (f"  loss {loss:.4f}" if loss is not None else "")
        if self._live:
            self._progress.update(self._task, completed=step, about=about)
        elif step == self.steps or loss is not None or time.monotonic() - self._last > self.EVERY_S:
            self._last = time.monotonic()
            self._console.print(f"step {step}/{self.steps}  {about}", markup=False)

    def evaluated(self, step: int, right: int, of: int) -> None:
        """An evaluation."""
        self._console.print(f"after step {step}: {right} of {of} right ({right / of:.1%})", markup=False)
