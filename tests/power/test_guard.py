"""Nothing is written before it can be undone, and everything comes back: whoever ends in whatever way."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpcpipe.errors import PowerError
from mpcpipe.services.power.device import Original, Reason, Sample
from mpcpipe.services.power.guard import MOST_REASSERTIONS, Guard, restore_entry
from mpcpipe.services.power.journal import Entry, Journal, journals, new_entry, state_folder
from mpcpipe.services.power.nvml import CODES, open_nvidia
from mpcpipe.services.power.setting import Setting
from mpcpipe.services.power.simulated import open_simulated
from tests.power.standin.nvml import UUID, StandIn
from tests.running import ROOT

CHOSEN = Setting(sm_clock_mhz=1200, memory_clock_mhz=5001, power_limit_w=200.0)


@contextmanager
def owner(nvml: StandIn, how: str) -> Iterator[subprocess.Popen[str]]:
    """A process that owns the GPU; ended at the latest when the test is over."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.power.standin.owner", how],
        env=os.environ | nvml.variables | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def watchdog_done(folder: Path) -> None:
    """Wait until nobody holds the GPU's lock any more: the watchdog is the last who does."""
    with (folder / f"{UUID}.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def locked(nvml: StandIn) -> tuple[int, int, int]:
    return nvml.gpu.sm_lock, nvml.gpu.memory_lock, nvml.gpu.limit_mw


FREE, SET = (0, 0, 350_000), (1200, 5001, 200_000)


def test_a_guard_puts_everything_back(nvml: StandIn) -> None:
    said: list[str] = []
    with Guard(open_nvidia(UUID), said.append) as guard:
        assert guard.apply(CHOSEN)
        assert locked(nvml) == SET
        file = state_folder() / f"{UUID}.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        written = json.loads(file.read_text())
        assert written["original"]["limit_w"] == 350.0
        assert sorted(written["touched"]) == ["limit", "memory", "sm"]
    assert locked(nvml) == FREE
    assert list(journals(state_folder())) == []
    assert said == []


def test_the_journal_is_there_before_the_first_write(nvml: StandIn) -> None:
    """The first write fails; by then the journal says what was about to be written, and the original."""
    nvml.fail("nvmlDeviceSetMemoryLockedClocks", 999)
    with Guard(open_nvidia(UUID), lambda _: None) as guard:
        guard.apply(Setting(memory_clock_mhz=5001))
        assert nvml.gpu.writes == 0
        entry = Journal(UUID, state_folder()).read()
        assert entry is not None and entry.touched == ("memory",) and entry.owner_lives


def test_no_journal_no_write(nvml: StandIn, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said: list[str] = []
    with Guard(open_nvidia(UUID), said.append, folder=tmp_path / "file") as guard:
        assert not guard.apply(CHOSEN)
    assert nvml.gpu.writes == 0 and said


@pytest.mark.parametrize(("how", "code"), [("forgets", 0), ("raises", 1)])
def test_the_end_of_the_process_restores(nvml: StandIn, how: str, code: int) -> None:
    with owner(nvml, how) as process:
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, out + err
    assert nvml.gpu.sm_writes == 1
    assert locked(nvml) == FREE


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_the_watchdog_restores_after_a_signal(nvml: StandIn, number: int) -> None:
    with owner(nvml, "waits") as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert locked(nvml) == SET
        process.send_signal(number)
        assert process.wait(60) == -number
        watchdog_done(state_folder())
        assert "ended without putting Stand-in GPU back as it was; done" in process.communicate()[1]
    assert locked(nvml) == FREE
    assert list(journals(state_folder())) == []


def test_a_signal_to_the_whole_group_leaves_the_watchdog(nvml: StandIn) -> None:
    """Ctrl-C goes to all of a terminal's group; the watchdog is in a session of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.power.standin.owner", "waits"],
        env=os.environ | nvml.variables | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGKILL)
    watchdog_done(state_folder())
    assert locked(nvml) == FREE


def test_without_a_watchdog_the_next_owner_restores(nvml: StandIn) -> None:
    with owner(nvml, "watchdog killed") as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    assert locked(nvml) == SET
    said: list[str] = []
    with Guard(open_nvidia(UUID), said.append) as guard:
        assert locked(nvml) == FREE
        assert guard.controls
    assert len(said) == 1 and "ended without restoring it; done now" in said[0]


def test_a_watchdog_that_was_killed_is_replaced(nvml: StandIn) -> None:
    said: list[str] = []
    with Guard(open_nvidia(UUID), said.append) as guard:
        guard.apply(Setting(sm_clock_mhz=1200))
        first = guard._watchdog
        assert first is not None
        first.kill()
        first.wait()
        guard.apply(Setting(sm_clock_mhz=1300 // 15 * 15))
        assert guard._watchdog is not None and guard._watchdog.poll() is None
    assert any("there is a new one" in sentence for sentence in said)
    assert locked(nvml) == FREE


def test_one_gpu_has_one_owner(nvml: StandIn) -> None:
    said: list[str] = []
    with Guard(open_nvidia(UUID), said.append) as first, Guard(open_nvidia(UUID), said.append) as second:
        assert first.controls and not second.controls
        assert not second.apply(CHOSEN)
        assert nvml.gpu.writes == 0
        assert second.read() is not None
    assert len(said) == 1
    assert f"controlled by another process already (process {os.getpid()})" in said[0]
    with owner(nvml, "waits") as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        with Guard(open_nvidia(UUID), said.append) as third:
            assert not third.controls
            assert f"process {process.pid}" in said[-1]
        assert locked(nvml) == SET


def test_mig_is_observed_only(nvml: StandIn) -> None:
    nvml.gpu.mig = 1
    said: list[str] = []
    with Guard(open_nvidia(UUID), said.append) as guard:
        assert not guard.apply(CHOSEN)
        assert guard.read() is not None
    assert nvml.gpu.writes == 0
    assert len(said) == 1 and "divided by MIG" in said[0]
    assert not (state_folder() / f"{UUID}.lock").exists()


def test_no_permission_is_told_once_and_observed(nvml: StandIn) -> None:
    for function in ("SetGpuLockedClocks", "SetMemoryLockedClocks", "SetPowerManagementLimit"):
        nvml.fail(f"nvmlDevice{function}", 4)
    said: list[str] = []
    with Guard(open_nvidia(UUID), said.append) as guard:
        for _ in range(3):
            assert not guard.apply(CHOSEN)
        sample = guard.read()
    assert sample is not None and sample.power_w == 350.0
    assert any("only the administrator may do it" in sentence and "zeusd" in sentence for sentence in said)
    assert len(said) == len(set(said))
    assert said[-1] == "Stand-in GPU: nothing of it can be set; it is only observed"


@pytest.mark.parametrize("code", sorted(CODES))
@pytest.mark.parametrize("function", ["SetGpuLockedClocks", "SetMemoryLockedClocks", "SetPowerManagementLimit"])
def test_every_error_of_a_write_is_a_sentence_and_the_rest_goes_on(nvml: StandIn, function: str, code: int) -> None:
    nvml.fail(f"nvmlDevice{function}", code)
    said: list[str] = []
    knob = {"SetGpuLockedClocks": 0, "SetMemoryLockedClocks": 1, "SetPowerManagementLimit": 2}[function]
    with Guard(open_nvidia(UUID), said.append) as guard:
        guard.apply(CHOSEN)
        lost = CODES[code][0] is Reason.LOST
        assert guard.lost == lost
        now = locked(nvml)
        assert now[knob] == FREE[knob]
        if not lost:
            assert [now[i] for i in range(3) if i != knob] == [SET[i] for i in range(3) if i != knob]
    assert any(f"NVML error {code}" in sentence and CODES[code][1] in sentence for sentence in said)


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_error_of_a_reading_is_none_or_a_loss(nvml: StandIn, code: int) -> None:
    device = open_nvidia(UUID)
    for function in ("GetPowerUsage", "GetFieldValues", "GetTotalEnergyConsumption", "GetClockInfo"):
        nvml.fail(f"nvmlDevice{function}", code)
    said: list[str] = []
    with Guard(device, said.append) if CODES[code][0] is not Reason.LOST else pytest.raises(PowerError) as guard:
        if CODES[code][0] is Reason.LOST:
            device.capabilities()
        sample = guard.read()
        assert sample is not None
        assert (sample.power_w, sample.energy_j, sample.sm_clock_mhz) == (None, None, None)
        assert sample.temperature_c == 50.0
        assert not guard.can.energy_counter
        assert f"NVML error {code}" in (guard.can.why_not("energy") or "")


def test_an_error_that_passes_is_tried_again(nvml: StandIn) -> None:
    nvml.fail("nvmlDeviceSetGpuLockedClocks", 10)
    with Guard(open_nvidia(UUID), lambda _: None) as guard:
        assert not guard.apply(Setting(sm_clock_mhz=1200))
        nvml.fail("nvmlDeviceSetGpuLockedClocks", 0)
        assert guard.apply(Setting(sm_clock_mhz=1200))
        assert nvml.gpu.sm_lock == 1200


def test_a_restore_that_fails_keeps_the_journal(nvml: StandIn) -> None:
    said: list[str] = []
    guard = Guard(open_nvidia(UUID), said.append)
    guard.apply(CHOSEN)
    nvml.fail("nvmlDeviceResetGpuLockedClocks", 999)
    guard.close()
    assert locked(nvml) == (1200, 0, 350_000), "the others are restored nevertheless"
    assert any("mpcpipe power restore" in sentence for sentence in said)
    (journal,) = journals(state_folder())
    nvml.fail("nvmlDeviceResetGpuLockedClocks", 0)
    entry = journal.read()
    assert entry is not None
    restore_entry(journal, entry)
    assert locked(nvml) == FREE
    assert list(journals(state_folder())) == []


def test_only_what_was_touched_is_restored(nvml: StandIn) -> None:
    nvml.gpu.memory_lock = 810  # somebody else's
    with Guard(open_nvidia(UUID), lambda _: None) as guard:
        guard.apply(Setting(sm_clock_mhz=1200))
    assert nvml.gpu.memory_lock == 810
    assert nvml.gpu.sm_lock == 0


class Clock:
    """A time that passes when the test says."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_lock_that_drifts_is_noticed_and_set_again(nvml: StandIn) -> None:
    clock, said = Clock(), list[str]()
    with Guard(open_nvidia(UUID), said.append, now=clock) as guard:
        guard.apply(Setting(sm_clock_mhz=1200))
        nvml.gpu.sm_lock = 0  # nvidia-smi -rgc, or a driver loaded anew
        guard.read()
        assert guard.drifts == 0, "right after a write a clock may still be changing"
        clock.now_s += 1.0
        guard.read()
        assert guard.drifts == 0, "one reading is no proof"
        guard.read()
        assert guard.drifts == 1 and nvml.gpu.sm_lock == 1200
        assert "was set to 1200 MHz and is 1950 MHz" in said[0]
        nvml.gpu.limit_mw = 350_000
        for _ in range(MOST_REASSERTIONS):
            nvml.gpu.sm_lock = 0
            clock.now_s += 1.0
            guard.read()
            guard.read()
        assert not guard.controls and "another program sets it" in said[-1]
    assert locked(nvml) == FREE


def test_a_lower_clock_is_no_drift(nvml: StandIn) -> None:
    clock = Clock()
    with Guard(open_nvidia(UUID), lambda _: None, now=clock) as guard:
        guard.apply(Setting(sm_clock_mhz=1200))
        nvml.gpu.sm_lock = 900  # hot, idle, or at its power limit
        clock.now_s += 1.0
        guard.read()
        guard.read()
        assert guard.drifts == 0


def test_a_gpu_that_vanishes_is_told_once(nvml: StandIn) -> None:
    said: list[str] = []
    with Guard(open_nvidia(UUID), said.append) as guard:
        guard.apply(CHOSEN)
        nvml.gpu.present = 0
        assert guard.read() is None and guard.read() is None
        assert guard.lost and not guard.apply(Setting(sm_clock_mhz=900))
    assert sum("fallen off the bus" in sentence and "training goes on" in sentence for sentence in said) == 1
    nvml.gpu.present = 1
    (journal,) = journals(state_folder())
    entry = journal.read()
    assert entry is not None
    restore_entry(journal, entry)
    assert locked(nvml) == FREE


def test_a_clock_that_the_gpu_does_not_have_changes_nothing(nvml: StandIn) -> None:
    with Guard(open_nvidia(UUID), lambda _: None) as guard:
        with pytest.raises(PowerError, match=r"no 1201 MHz for the clock of the multiprocessors; .* 1200 and 1215"):
            guard.apply(Setting(sm_clock_mhz=1201, power_limit_w=200.0))
        with pytest.raises(PowerError, match=r"takes power limits of 100 to 350 W, not 90 W"):
            guard.apply(Setting(power_limit_w=90.0))
        assert nvml.gpu.writes == 0


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.chmod(0o644), "not this user's alone"),
        (lambda path: path.write_text("{"), "is damaged"),
        (lambda path: path.write_text('{"format": 99}'), "its format is 99"),
    ],
)
def test_a_journal_that_is_not_trusted_is_not_carried_out(nvml: StandIn, spoil: object, words: str) -> None:
    folder = state_folder()
    journal = Journal(UUID, folder)
    journal.write(new_entry(UUID, f"nvidia:{UUID}", "Stand-in GPU", Original(100.0)))
    spoil(journal.path)  # type: ignore[operator]
    with pytest.raises(PowerError, match=words):
        journal.read()
    said: list[str] = []
    with Guard(open_nvidia(UUID), said.append) as guard:
        assert not guard.controls
    assert words in said[0]


def test_a_link_in_place_of_a_journal_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("{}")
    (tmp_path / "X.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PowerError, match="cannot be read"):
        Journal("X", tmp_path).read()


def test_an_entry_survives_the_disk(tmp_path: Path) -> None:
    entry = Entry("X", "amd:X", "a GPU", 1, 2, 3.5, Original(200.0, 900, None, (("perf", "auto"),)), ("sm",))
    journal = Journal("X", tmp_path)
    journal.write(entry)
    assert journal.read() == entry
    assert not entry.owner_lives


def test_a_simulated_gpu_needs_neither_journal_nor_watchdog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with Guard(open_simulated("a100-40gb"), print) as guard:
        assert guard.apply(Setting(sm_clock_mhz=900))
        assert isinstance(guard.read(), Sample)
    assert list(tmp_path.iterdir()) == []
