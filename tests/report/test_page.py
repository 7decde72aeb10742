"""The page: all there, nothing fetched, everything escaped; what is missing is said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mpcpipe.plan.machine import Node
from mpcpipe.plan.net import Net
from mpcpipe.plan.partition import Wish, choose
from mpcpipe.plan.plan import Plan, make_plan
from mpcpipe.plan.trace import Timed
from mpcpipe.report.events import read_run
from mpcpipe.report.lanes import LEFT, PLOT, chosen_steps, timeline
from mpcpipe.report.layers import LayerCost
from mpcpipe.report.openings import openings_of
from mpcpipe.report.page import Facts, page
from tests.report.html import parse
from tests.report.runs import NAMES, make_run

LAYERS = (
    LayerCost("features", "shared by its owner", None, 1000, 1, 0, 0, 0, 0),
    LayerCost("0", "Conv2d", 0, 2_000_000, 3, 500_000, 3, 1500, 3),
    LayerCost("1", "ReLU", 1, 350_000, 9, 0, 0, 0, 0),
    LayerCost("loss", "and its gradient", None, 300_000, 40, 0, 0, 0, 0),
)


def simple_plan() -> Plan:
    """Two stages, two micro-batches; the first layer waits as long as it computes."""
    waits = {"F": (Timed(1.0, 1, 1),), "I": (), "W": (Timed(1.0),), "U": (Timed(1.0),)}
    computes = {"F": (Timed(1.0),), "I": (Timed(1.0),), "W": (), "U": ()}

    def nodes_of(rows: int) -> tuple[Node, ...]:
        return Node("features"), Node("first", waits), Node("second", computes), Node("loss")

    net = Net(2.0)
    return make_plan(choose(nodes_of, 2, 4, net, 2, Wish((0, 1), (1, 1), 2, "1f1b")), "ab" * 32, "here", str(net), 2)


def test_the_whole_page(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    facts = Facts("3 parties, semi-honest", None, LAYERS, openings_of(run.result["reveals"]))
    root = parse(page(run, facts))
    assert root.one("h1").text == "known"
    assert "replicated3: 3 parties, semi-honest" in root.one("p", class_="lead").text
    assert "1f1b: 2 stages from layers 0, 3; 1 slot each; 2 micro-batches" in root.one("p", class_="lead").text.lower()
    tiles = {div.one("dt").text: [dd.text for dd in div.all("dd")] for div in root.one("dl", class_="tiles").all("div")}
    assert tiles["test accuracy"] == ["75.0%", "270 of 360; 76.1% in the clear"]
    assert tiles["a step"] == ["10.0 s", "median of 3"]
    figures = root.all("figure", class_="timeline")
    assert [figure.attributes["data-step"] for figure in figures] == ["1", "2", "3"]
    assert sum("hidden" not in figure.attributes for figure in figures) == 1
    for figure in figures:
        groups = figure.all("g", class_="group")
        assert [group.attributes["data-party"] for group in groups] == list(NAMES)
        for group in groups:
            assert [lane.attributes["data-worker"] for lane in group.all("g", class_="lane")] == ["0.0", "1.0"]
    assert len(root.one("section", id="loss").all("circle")) == 3
    rows = root.one("section", id="layers").one("tbody").all("tr")
    assert [row.one("th").text for row in rows] == ["features", "0", "1", "loss"]
    assert "cut" in rows[2].attributes["class"]
    opened = root.one("section", id="openings")
    assert "nothing else was opened" in opened.text and len(opened.one("tbody").all("tr")) == 3
    assert root.all("p", class_="warning") == []
    assert 'name = "known"' in root.one("details").text


def test_nothing_is_fetched(tmp_path: Path) -> None:
    text = page(read_run(make_run(tmp_path / "run")), Facts(layers=LAYERS, plan=simple_plan()))
    root = parse(text)
    assert "default-src 'none'" in text
    assert not re.search(r"https?:|//\w|url\(|@import", text.replace("</", ""))
    for tag in ("link", "img", "iframe", "object"):
        assert root.all(tag) == []
    assert all("src" not in script.attributes for script in root.all("script"))
    for other in ("report.html", "/tmp"):
        assert other not in text


def test_everything_is_escaped(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>'
    folder = make_run(tmp_path / "run", job=False, protocol=evil, link=evil, versions={evil: evil})
    reveals = [{"why": evil, "to": None, "shape": []}]
    plain = json.loads((folder / "result.json").read_text()) | {"reveals": reveals}
    (folder / "result.json").write_text(json.dumps(plain))
    (folder / "events.carol.jsonl").rename(folder / "events.<b>&'.jsonl")
    text = page(read_run(folder), Facts(promise=evil, notes=(evil,)))
    assert evil not in text and "<b>&" not in text
    assert len(parse(text).all("script")) == 1
    assert parse(text).one("section", id="openings").one("tbody").one("th").text == evil


def test_the_prediction_stands_above(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    plan = simple_plan()
    line = timeline(run, 1, "first", plan)
    assert [group.name for group in line.groups] == ["predicted", *NAMES]
    assert line.groups[0].predicted and line.groups[0].y < line.groups[1].y
    assert [lane.name for lane in line.groups[0].lanes] == ["0.0", "1.0"]
    # One scale for both: all of the plan's seconds against the 10.5 of the step.
    whole_s = max(10.5, plan.predicted_step_s)
    assert line.groups[0].lanes[0].width == pytest.approx(PLOT * plan.predicted_step_s / whole_s, abs=0.1)
    assert line.groups[1].lanes[0].width == pytest.approx(PLOT * 10.0 / whole_s, abs=0.1)
    text = page(run, Facts(plan=plan))
    assert "predicted" in text and "by the plan for rtt=2000ms,rate=none" in text


def test_geometry_of_a_lane(tmp_path: Path) -> None:
    line = timeline(read_run(make_run(tmp_path / "run")), 1, "", None)
    first = line.groups[0].lanes[0]
    # The step has 10.5 seconds, since Bob began half a second later.
    second = PLOT / 10.5
    assert first.note == "40% computing"  # F, F, B, U of 10
    assert dict(first.paths)["forward"].startswith(f"M{LEFT} 0h{round(second * 2) / 2:g}v")
    assert [box.label for box in first.boxes] == ["0F0", "0F1", "B", "0U"]
    idle = line.groups[0].lanes[1].boxes[0]
    assert idle.x == pytest.approx(LEFT + 2 * second, abs=0.1)  # its name stands where it gets to work
    assert "4.00 s, of which 2.00 s computing, 0 µs waiting, 2.00 s idle, 30 bytes sent" in idle.title


def test_steps_that_are_shown(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=40)
    lines = [json.loads(line) for line in (folder / "events.alice.jsonl").read_text().splitlines()]
    for event in lines:
        if event["step"] == 17 and event["action"] == "0U":
            event["end_s"] += 5
    (folder / "events.alice.jsonl").write_text("".join(json.dumps(event) + "\n" for event in lines))
    steps = dict(chosen_steps(read_run(folder)))
    assert len(steps) == 9 and list(steps) == sorted(steps)
    assert steps[1] == "first" and steps[17] == "slowest"
    assert {"fastest", "median"} <= set(steps.values())


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    changes = {"losses": [], "loss_steps": [], "accuracy": None, "right": None, "clear_accuracy": None, "reveals": []}
    folder = make_run(tmp_path / "run", job=False, **changes)
    for file in folder.glob("events.*"):
        file.unlink()
    root = parse(page(read_run(folder), Facts()))
    assert root.one("h1").text == "run"
    assert "Every loss stayed secret" in root.one("section", id="loss").text
    assert root.all("section", id="timeline") == [] and root.all("section", id="layers") == []
    assert "Nothing was opened" in root.one("section", id="openings").text
    assert any("no timelines" in note.text for note in root.all("p", class_="note"))
    assert [row.one("th").text for row in root.one("section", id="parties").one("tbody").all("tr")] == [
        "party 0",
        "party 1",
        "party 2",
    ]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"protocol": "plaintext"}, "plaintext protects nothing"),
        ({"insecure_keys": True}, "Nothing was protected"),
    ],
)
def test_what_does_not_protect_says_so(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    root = parse(page(read_run(make_run(tmp_path / "run", **changes)), Facts()))
    assert any(says in warning.text for warning in root.all("p", class_="warning"))


def test_other_openings_than_checked(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    fewer = openings_of(run.result["reveals"])[1:]
    assert "not the openings that" in parse(page(run, Facts(expected=fewer))).one("section", id="openings").text
