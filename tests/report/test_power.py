"""Joules and clocks in the report: as written down, beside the timeline; what is not known is not 0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mpcpipe.errors import UsageError
from mpcpipe.report.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, time_chart
from mpcpipe.report.events import read_run
from mpcpipe.report.lanes import LEFT as LANES
from mpcpipe.report.lanes import PLOT, timeline
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
    at = [round(LANES + (at_s - 10.0) / drawn.seconds * PLOT, 1) for at_s in (10.0, 12.0, 15.0, 20.0)]
    assert clock.path == f"M{at[0]} 0.0H{at[1]}V0.0H{at[2]}V7.0H{at[3]}"
    assert clock.note == "700 to 1400 MHz, 1.50 kJ"
    assert "joules not known" in (timeline(run, 3, "").groups[0].clock or clock).title
    root = parse(page(run, Facts()))
    text = root.one("section", id="power").text
    assert "A100, simulated (not measured)" in text
    assert "1.75 kJ" in text and "700 to 1400 MHz" in text and "counter" in text
    assert len(root.all("g", class_="clock")) == 3, "one a timeline, of the one party that had the service"


def cap(from_s: float, cap_w: float | None) -> dict[str, Any]:
    return {"cap_w": cap_w, "from_s": from_s}


def test_the_cap_and_its_changes_beside_them(tmp_path: Path) -> None:
    """230 W, 130 W from 12 s, refused at 15 s, none from 20 s on: a line in the picture, words in the table."""
    folder = make_run(tmp_path / "run")
    lines = [cap(0.0, 230.0), reading(0.0, 1400.0, 200.0), cap(12.0, 130.0), reading(12.5, 1400.0, 140.0)]
    lines += [{"cap_refused": "below idle", "from_s": 15.0}, reading(16.0, 700.0, 120.0), cap(20.0, None)]
    lines += [reading(29.0, 1400.0, 240.0), energy(1, 2000.0), energy(2, 1300.0)]
    write(folder, "alice", *lines)
    write(folder, "bob", cap(0.0, None), reading(1.0, 1400.0), reading(2.0, 1400.0), energy(1, 1.0))
    run = read_run(folder)
    alice, bob = run.power
    assert alice.cap_words == ("230 W", "130 W from 12.0 s", "none from 20.0 s") and bob.cap_words == ("none",)
    assert [alice.cap_at(at_s) for at_s in (0.0, 11.9, 12.0, 20.0)] == [230.0, 230.0, 130.0, None]
    assert alice.above == pytest.approx(1 / 3), "one of three readings under a cap; the last has none"
    assert bob.above is None
    section = parse(page(run, Facts())).one("section", id="power")
    for said in (*alice.cap_words, "33.3 %"):
        assert said in section.text
    (level,) = [path for path in section.all("path", class_="level") if "cap" in path.attributes["class"].split()]
    drawn = time_chart("", [(0.0, 200.0), (29.0, 240.0)], alice.caps, 29.0)
    assert drawn is not None and level.attributes["d"] == drawn.limit
    high = 240.0 * 1.06
    ys = [round(HEIGHT - BOTTOM - watts / high * (HEIGHT - TOP - BOTTOM), 1) for watts in (230.0, 130.0)]
    xs = [round(LEFT + at_s / 29.0 * (WIDTH - LEFT - RIGHT), 1) for at_s in (0.0, 12.0, 20.0)]
    assert drawn.limit == f"M{xs[0]} {ys[0]}H{xs[1]}V{ys[1]}H{xs[2]}", "down at its change, and no line without a cap"
    titles = [group.one("title").text for group in parse(page(run, Facts())).all("g", class_="clock")]
    assert [("cap 230 W, then 130 W;" in title, "cap" in title) for title in titles if "alice" in title] == [
        (False, True),
        (True, True),
        (False, False),
    ], "230 W in the first step, both in the second, none in the third"


def test_many_readings_are_drawn_as_means() -> None:
    drawn = time_chart("", [(float(at), 100.0 + at % 2) for at in range(4000)], (), 4000.0)
    assert drawn is not None and drawn.path.count("L") == 399 and drawn.x_name == "minutes" and drawn.limit == ""
    assert len({point.split(" ")[1] for point in drawn.path[1:].split("L")}) == 1, (
        "each the mean of ten, half of them a watt more"
    )


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
