"""The trace holds every action once, what is inside it fills it, and its counters end at the sums."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from mpcpipe.report.events import read_run
from mpcpipe.report.trace import chrome_trace
from tests.report.runs import ACTIONS, NAMES, SENT, STEPS, make_run


@pytest.fixture
def entries(tmp_path: Path) -> list[dict[str, Any]]:
    trace = json.loads(json.dumps(chrome_trace(read_run(make_run(tmp_path / "run")))))
    assert trace["displayTimeUnit"] == "ms"
    return trace["traceEvents"]  # type: ignore[no-any-return]


def test_a_process_a_party_and_a_thread_a_worker(entries: list[dict[str, Any]]) -> None:
    named = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in entries if e["name"].endswith("_name")}
    assert [named["process_name", pid, 0] for pid in range(3)] == list(NAMES)
    assert [named["thread_name", 1, tid] for tid in range(3)] == ["steps", "worker 0.0", "worker 1.0"]


def test_actions_and_what_is_inside(entries: list[dict[str, Any]]) -> None:
    slices = [e for e in entries if e["ph"] == "X"]
    inside = {"computing", "waiting", "idle"}
    actions = [e for e in slices if e["name"] not in inside and e["tid"]]
    assert len(actions) == 3 * STEPS * sum(map(len, ACTIONS.values()))
    for action in actions:
        begin, end = action["ts"], action["ts"] + action["dur"]
        own = [
            e
            for e in slices
            if (e["pid"], e["tid"]) == (action["pid"], action["tid"]) and e["name"] in inside and begin <= e["ts"] < end
        ]
        assert sum(e["dur"] for e in own) == pytest.approx(action["dur"])
        for name in inside:
            took_ms = sum(e["dur"] for e in own if e["name"] == name) / 1e3
            assert took_ms == pytest.approx(action["args"][f"{name}_ms"])
    assert min(e["ts"] for e in slices) == 0
    # Bob began half a second after Alice.
    assert min(e["ts"] for e in slices if e["pid"] == 1) == pytest.approx(0.5e6)
    steps = [e for e in slices if e["pid"] == 0 and e["tid"] == 0]
    assert [(e["name"], e["ts"], e["dur"]) for e in steps] == [(f"step {n}", (n - 1) * 1e7, 1e7) for n in (1, 2, 3)]


def test_counters(entries: list[dict[str, Any]]) -> None:
    values = defaultdict(list)
    for e in entries:
        if e["ph"] == "C":
            values[e["pid"], e["name"]].append((e["ts"], e["args"]["value"]))
    for pid in range(3):
        assert values[pid, "sent bytes"][-1][1] == STEPS * SENT
        computing = values[pid, "workers computing"]
        assert computing[-1][1] == 0 and max(value for _, value in computing) == 2
        assert computing == sorted(computing, key=lambda entry: entry[0])


def test_runs_without_bytes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    file = folder / "events.alice.jsonl"
    plain = [json.loads(line) for line in file.read_text().splitlines()]
    for event in plain:
        del event["sent_bytes"]
    file.write_text("".join(json.dumps(event) + "\n" for event in plain))
    counted = {(e["pid"], e["name"]) for e in chrome_trace(read_run(folder))["traceEvents"] if e["ph"] == "C"}
    assert (0, "sent bytes") not in counted and (1, "sent bytes") in counted
