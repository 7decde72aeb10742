"""Joules and clocks in the report: as written down, beside the timeline; what is not known is not 0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mpcpipe.errors import UsageError
from mpcpipe.report.events import read_run
from mpcpipe.report.lanes import LEFT, PLOT, timeline
from mpcpipe.report.page import Facts, page
from tests.report.html import parse
from tests.report.runs import make_run

HEAD: dict[str, Any] = {"device": "A100, simulated", "simulated": True, "policy": "perseus"}


def write(folder: Path, party: str, *lines: dict[str, Any], rest: str = "") -> None:
    text = "".join(json.dumps(line) + "\n" for line in (HEAD, *lines))
    (folder / f"power.{party}.jsonl").write_text(text + rest)


def reading(at_s: float, clock: float | None, power_w: float | None = 200.0) -> dict[str, Any]:
    return {"at_s": at_s, "power_w": power_w, "sm_clock_mhz": clock, "memory_clock_mhz": None}


def energy(step: int, joules: float | None, steps: int = 1) -> dict[str, Any]:
    return {"step": step, "steps": steps, "joules": joules, "how": None if joules is None else "counter"}


def test_joules_and_clocks_beside_the_timeline(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    lines = [reading(0.0, 1400.0), reading(12.0, 1400.0, 220.0), reading(15.0, 700.0, 120.0), reading(29.0, 700.0)]
    write(folder, "alice", *lines, energy(1, 2000.0), energy(2, 1500.0), energy(3, None))
    run = read_run(folder)
    (power,) = run.power
    assert power.mean_j == 1750.0 and power.clocks_mhz == (700.0, 1400.0) and power.mean_w == 185.0
    drawn = timeline(run, 2, "")
    assert drawn.groups[1].clock is None, "bob had no service"
    clock = drawn.groups[0].clock
    assert clock is not None
    # Step 2 lasts from 10 s to 20 s: full clock for half of it, then half of it.
    at = [round(LEFT + (at_s - 10.0) / drawn.seconds * PLOT, 1) for at_s in (10.0, 12.0, 15.0, 20.0)]
    assert clock.path == f"M{at[0]} 0.0H{at[1]}V0.0H{at[2]}V7.0H{at[3]}"
    assert clock.note == "700 to 1400 MHz, 1.50 kJ"
    assert "joules not known" in (timeline(run, 3, "").groups[0].clock or clock).title
    root = parse(page(run, Facts()))
    text = root.one("section", id="power").text
    assert "A100, simulated (not measured)" in text
    assert "1.75 kJ" in text and "700 to 1400 MHz" in text and "counter" in text
    assert len(root.all("g", class_="clock")) == 3, "one a timeline, of the one party that had the service"


def test_without_the_service_nothing_is_said_of_it(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    assert run.power == ()
    assert 'id="power"' not in page(run, Facts())


def test_what_is_not_known_is_not_zero(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    write(folder, "alice", reading(1.0, None, None), energy(1, None), energy(3, None, steps=2))
    (power,) = read_run(folder).power
    assert (power.mean_j, power.mean_w, power.clocks_mhz) == (None, None, None)
    assert list(power.joules) == [1, 2, 3]
    text = parse(page(read_run(folder), Facts())).one("section", id="power").text
    assert text.count("not known") == 3 and "nothing" in text


def test_damage(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    write(folder, "alice", energy(1, 5.0), rest='{"step": 2, "jou')
    assert read_run(folder).power[0].joules == {1: 5.0}
    write(folder, "alice", {"step": "x"}, energy(1, 5.0))
    with pytest.raises(UsageError, match=r"power.alice.jsonl, line 2"):
        read_run(folder)
