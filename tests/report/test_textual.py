"""The timeline in letters, against the picture of the known run."""

from __future__ import annotations

from pathlib import Path

from mpcpipe.report.events import Run, read_run
from mpcpipe.report.textual import LEGEND, step_timeline
from tests.report.runs import PICTURE, make_run


def test_the_known_step(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    width = 3 + 3 + 20  # names, frame, two columns a second
    rows = [f"{worker} │{''.join(2 * sign for sign in signs)}│" for worker, signs in PICTURE.items()]
    expected = ["step 3, alice", *rows, f"    └{'─' * 15} 10 s┘", LEGEND]
    assert step_timeline(run, width=width).splitlines() == expected


def test_another_party_and_step(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    assert step_timeline(run, step=1, party="carol").startswith("step 1, carol\n")
    assert max(map(len, step_timeline(run, width=70).splitlines()[1:-1])) == 70


def test_nothing_to_draw(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    assert step_timeline(Run(run.folder, run.result, ())) == "no timeline: the run wrote no events"
