"""Run folders: what is read, and the sentence about what is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mpcpipe.errors import UsageError
from mpcpipe.report.events import Event, newest, read_events, read_run, worker_key
from mpcpipe.report.pieces import Piece
from tests.report.runs import ACTIONS, NAMES, lines, make_run


def test_a_run(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    assert run.names == NAMES and run.steps == (1, 2, 3) and run.notes == ()
    assert run.job is not None and run.job.name == "known"
    alice, bob, _ = run.parties
    assert alice.workers == ("0.0", "1.0")
    assert len(alice.of(2)) == sum(map(len, ACTIONS.values()))
    assert alice.of(99) == ()
    # Bob began half a second later, and says so: his first piece stands at 10.5 on Alice's clock.
    assert bob.rows(2)[0].pieces[0] == Piece(10.5, 11.5, "F")
    assert run.span_of(2) == (10.0, 20.5)


def test_pieces_of_an_action() -> None:
    event = Event(1, "0.0", "0B0", 4.0, 8.0, 1.0, 2.0, ((7.0, 8.0),))
    assert event.pieces() == (Piece(4.0, 6.0, " "), Piece(6.0, 7.0, "B"), Piece(7.0, 8.0, "."))
    assert (event.kind, event.compute_s) == ("B", 1.0)


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("", False),
        ("{whole}\n", False),
        ("{whole}\n{part}", True),
        ("{whole}\n{part}\n", True),
        ("{part}", True),
    ],
)
def test_a_last_line_that_is_cut_off(tmp_path: Path, text: str, cut: bool) -> None:
    line = lines()[0]
    file = tmp_path / "events.alice.jsonl"
    file.write_text(text.replace("{whole}", line).replace("{part}", line[:40]))
    events, was_cut = read_events(file)
    assert was_cut is cut
    assert len(events) == text.count("{whole}")


def test_a_cut_line_is_noted(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    file = folder / "events.bob.jsonl"
    file.write_text(file.read_text()[:-10])
    assert read_run(folder).notes == ("the last line of events.bob.jsonl is cut off, and left out",)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"end_s": 1.0, "begin_s": 2.0}, "it ends at 1.0 s and begins at 2.0 s"),
        ({"end_s": float("nan")}, "it ends at nan s"),
        ({"action": "0X0"}, "'0X0' is no action"),
        ({"action": "17"}, ""),
        ({"worker": "first"}, "invalid literal"),
        ({"waits": [[1, 2], [1.5, 3]]}, "its waits are out of order"),
        ({"waits": [[1]]}, ""),
        ({"step": "one"}, "invalid literal"),
    ],
)
def test_a_damaged_line(tmp_path: Path, change: dict[str, object], says: str) -> None:
    file = tmp_path / "events.alice.jsonl"
    first, second, third = lines()[:3]
    file.write_text("\n".join([first, json.dumps(json.loads(second) | change), third]) + "\n")
    with pytest.raises(UsageError, match=rf"events.alice.jsonl, line 2: .* is no event of a run: .*{says}"):
        read_events(file)


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a folder; a run's folder has result\.json in it"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"is not a run's folder: it has no result\.json"):
        read_run(tmp_path)


def test_a_run_that_has_not_finished(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "result.json").unlink()
    with pytest.raises(UsageError, match="has not finished, or failed"):
        read_run(folder)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is damaged"),
        ("[]", "it must be an object"),
        ('{"format": 1}', "is not the result of a run: 'step_s' is None"),
    ],
)
def test_a_damaged_result(tmp_path: Path, text: str, says: str) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "result.json").write_text(text)
    with pytest.raises(UsageError, match=says):
        read_run(folder)


def test_without_events_and_job(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", job=False)
    for file in folder.glob("events.*"):
        file.unlink()
    run = read_run(folder)
    assert run.parties == () and run.steps == () and run.job is None
    assert any("no timelines" in note for note in run.notes)
    assert any("the job is not known" in note for note in run.notes)


def test_the_newest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        newest(tmp_path / "runs")
    (tmp_path / "runs" / "unfinished").mkdir(parents=True)
    with pytest.raises(UsageError, match="has no finished run"):
        newest(tmp_path / "runs")
    older, newer = make_run(tmp_path / "runs" / "b"), make_run(tmp_path / "runs" / "a")
    os.utime(older / "result.json", (1, 1))
    assert newest(tmp_path / "runs") == newer


def test_workers_are_sorted_by_stage() -> None:
    names = ["10.0", "2.1", "0+3.0", "2.0", "0.1"]
    assert sorted(names, key=worker_key) == ["0.1", "0+3.0", "2.0", "2.1", "10.0"]
