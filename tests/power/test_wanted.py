"""Another cap while a run goes on: the file, the service that follows it, and the command that waits for its answer."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mpcpipe.errors import PowerError
from mpcpipe.plan.schedule import build
from mpcpipe.services.base import RunFacts
from mpcpipe.services.power.cards import CARDS
from mpcpipe.services.power.service import PowerService
from mpcpipe.services.power.simulated import Simulated
from mpcpipe.services.power.wanted import Wanted, Watched, cap_of, file_of, want
from tests import tiny
from tests.running import Run

CARD = CARDS["a100-40gb"]


@pytest.mark.parametrize(("text", "cap_w"), [("150", 150.0), (" 150.5W\n", 150.5), ("off", None), ("OFF\n", None)])
def test_watts(text: str, cap_w: float | None) -> None:
    assert cap_of(text) == cap_w


@pytest.mark.parametrize("text", ["", "W", "-3", "0", "nan", "inf", "a lot", "150 W extra"])
def test_what_is_no_cap(text: str) -> None:
    with pytest.raises(PowerError, match="watts above 0, such as 150, or off"):
        cap_of(text)


def test_each_new_file_is_seen_once(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "alice")
    assert watched.new() is None
    for cap_w in (150.0, None, 150.0):
        asked = want(tmp_path, "alice", cap_w)
        assert watched.new() == asked == Wanted(cap_w, file_of(tmp_path, "alice").stat().st_mtime_ns)
        assert watched.new() is None
    assert [file.name for file in tmp_path.iterdir()] == ["power.alice.cap"]
    assert Watched(tmp_path, "alice").new() == asked, "a run that goes on later keeps the last one"
    file_of(tmp_path, "alice").write_text("much")
    with pytest.raises(PowerError, match=r"power.alice.cap: a cap of 'much': .*the cap stays as it was"):
        watched.new()
    assert watched.new() is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("150\n")
    file_of(tmp_path, "alice").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PowerError, match="is not a file of this user's"):
        Watched(tmp_path, "alice").new()


class Beside:
    """The service of a run in a time of its own, whose GPU computes all the time."""

    def __init__(self, folder: Path, cap_w: float = 0.0) -> None:
        self.now_s, self.folder = 0.0, folder
        self.said: list[str] = []
        self.device = Simulated(CARD, now=lambda: self.now_s)
        options = {"policy": "perseus", "device": "", "cap_w": cap_w, "deadline_s": 0}
        self.service = PowerService(options, self.said.append, self.device, lambda: self.now_s)
        self.service.begin(RunFacts(0, "alice", 1, 30, build("sequential", (1,), 1), 0.0, folder))
        self.device.work(1.0)

    def run(self, seconds: float, cap_w: float) -> float:
        """The longest time above the cap."""
        longest_s = above_s = 0.0
        for number in range(round(100 * seconds)):
            if number % 10 == 0:
                self.service.tick()
            self.now_s += 0.01
            self.device.advance()
            above_s = above_s + 0.01 if self.device.power_w > cap_w else 0.0
            longest_s = max(longest_s, above_s)
        return longest_s

    def answers(self) -> list[dict[str, Any]]:
        lines = (self.folder / "power.alice.jsonl").read_text().splitlines()
        return [plain for plain in map(json.loads, lines) if "asked" in plain]


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], Beside]]:
    monkeypatch.setattr("threading.Thread.start", lambda self: None)  # the test is the thread
    monkeypatch.setattr("threading.Thread.join", lambda self, timeout=None: None)
    made: list[Beside] = []

    def make(cap_w: float) -> Beside:
        made.append(Beside(tmp_path, cap_w))
        return made[-1]

    yield make
    for one in made:
        one.service.close()


@pytest.mark.parametrize("first_w", [0.0, 230.0])
def test_the_service_follows_within_a_second(beside: Callable[[float], Beside], first_w: float) -> None:
    found = beside(first_w)
    found.run(5.0, 1e9)
    for cap_w in (130.0, 180.0, 120.0):
        asked = want(found.folder, "alice", cap_w)
        assert found.run(10.0, cap_w) < 1.0
        assert found.device.power_w > 0.8 * cap_w
        assert found.answers()[-1]["asked"] == asked.asked and found.answers()[-1]["cap_w"] == cap_w
    want(found.folder, "alice", None)
    found.run(10.0, 1e9)
    assert found.device.sm_clock_mhz == CARD.sustained_mhz and found.device.limit_w == CARD.tdp_w
    assert found.said[-1] == "power cap: none from now on"


def test_a_cap_that_no_clock_keeps_is_refused_and_the_old_one_stays(beside: Callable[[float], Beside]) -> None:
    found = beside(150.0)
    found.run(5.0, 1e9)
    want(found.folder, "alice", 10.0)
    assert found.run(5.0, 150.0) < 1.0
    assert "the cap = 10 is below what A100" in found.answers()[-1]["cap_refused"]
    assert found.said[-1] == found.answers()[-1]["cap_refused"]
    assert found.device.power_w > 0.8 * 150


def test_the_command_changes_the_cap_of_a_run_that_goes_on(tmp_path: Path) -> None:
    """All parties of this machine answer; a cap that cannot be kept is an error that says so; training goes on."""
    words = ["--set", "services.power.policy=perseus", "--set", "services.power.device=simulated:a100-40gb"]
    words += ["--set", "train.epochs=1000000", "--set", "evaluate.how=none"]
    run = Run(tmp_path, "train", tiny.columns(tmp_path), *words)
    try:
        ends_at_s = time.monotonic() + 60
        while len(list(tmp_path.glob("runs/*/power.*.jsonl"))) < 3:
            assert run.process.poll() is None and time.monotonic() < ends_at_s, run.story()
            os.sched_yield()
        done = Run(tmp_path, "power", "cap", "150W", "--json", "-").ok()
        assert json.loads(done.out)["parties"] == {
            name: f"{name}: 150 W from now on" for name in ("alice", "bob", "carol")
        }
        (folder,) = (tmp_path / "runs").iterdir()
        low = Run(tmp_path, "power", "cap", "10", str(folder), "--party", "bob")
        assert low.finish() == 24 and "bob: the cap = 10 is below what A100" in low.err, low.story()
        wrong = Run(tmp_path, "power", "cap", "10", str(folder), "--party", "dave")
        assert wrong.finish() == 2 and "there is alice, bob, carol" in wrong.err, wrong.story()
        assert run.process.poll() is None
        for other in (done, low, wrong):
            other.close()
    finally:
        run.close()


def test_a_number_below_0_is_a_wrong_cap_and_no_option(tmp_path: Path) -> None:
    found = Run(tmp_path, "power", "cap", "-5")
    assert found.finish() == 24 and "a cap of '-5': watts above 0, such as 150, or off" in found.err, found.story()
    found.close()


def test_a_run_that_has_ended_or_has_no_service_says_so(tmp_path: Path) -> None:
    for make, said in (
        (lambda: None, "no power service runs here"),
        (lambda: (tmp_path / "result.json").write_text("{}"), "this run has ended"),
    ):
        make()
        found = Run(tmp_path, "power", "cap", "150", str(tmp_path))
        assert found.finish() == 24 and said in found.err, found.story()
        found.close()
