"""The power service in real training runs, all parties as processes: the same bits, clocks back, and nothing stops."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpcpipe.services.power.journal import journals
from tests import tiny
from tests.power.standin.nvml import UUID, StandIn
from tests.power.test_guard import watchdog_done
from tests.running import ROOT, Run

SAME = ("--insecure-keys", "1", "--model-digest", "--set", "evaluate.how=none")
CUT = ("--set", "pipeline.stages=[0,1]", "--set", "pipeline.microbatches=2", "--set", "pipeline.schedule=1f1b")


def power(policy: str, device: str, **more: object) -> list[str]:
    """Overrides for [services.power]."""
    keys = {"policy": policy, "device": device, **more}
    return [word for key, value in keys.items() for word in ("--set", f"services.power.{key}={value}")]


def result(run: Run) -> dict[str, Any]:
    (folder,) = (run.folder / "runs").iterdir()
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def until(run: Run, met: Callable[[], bool]) -> None:
    """Wait for something that another process does."""
    ends_at_s = time.monotonic() + 60
    while not met():
        assert run.process.poll() is None and time.monotonic() < ends_at_s, run.story()
        os.sched_yield()


def test_the_same_bits_with_and_without_it(tmp_path: Path) -> None:
    """Also where the parties tell each other a number; and its own cost, joules and clocks are written down."""
    epochs = ("--set", "train.epochs=8")
    off = Run(tmp_path / "off", "train", tiny.columns(tmp_path / "off"), *SAME, *CUT, *epochs)
    words = [*power("perseus", "simulated:a100-40gb", cap_w=200, exchange_every=5), *SAME, *CUT, *epochs]
    on = Run(tmp_path / "on", "train", tiny.columns(tmp_path / "on"), *words)
    try:
        off.ok()
        on.ok()
    finally:
        off.close()
        on.close()
    assert result(on)["model_sha256"] == result(off)["model_sha256"]
    assert "services" not in result(off)
    report = result(on)["services"]["power"]
    assert report["simulated"] and report["policy"] == "perseus" and report["controlled"]
    assert report["joules_known_of_steps"] == [32, 32] and report["joules_per_step"] > 0
    (folder,) = (on.folder / "runs").iterdir()
    for name in ("alice", "bob", "carol"):
        lines = [json.loads(line) for line in (folder / f"power.{name}.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines if "step" in line] == list(range(1, 33))
        assert any(line.get("sm_clock_mhz") for line in lines)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example package, installed by pip into a folder of its own."""
    source, target = tmp_path_factory.mktemp("plugin") / "source", tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "examples" / "service_plugin", source)
    words = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(target)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *words, str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def test_an_installed_service_and_policy_are_found_and_the_gpu_is_given_back(
    plugin: Path, nvml: StandIn, tmp_path: Path
) -> None:
    """One party owns the GPU and follows the policy, the others observe; all three have the other service."""
    words = [*power("half-speed", f"nvidia:{UUID}"), "--set", 'services.use=["heartbeat"]']
    words += ["--set", "services.options.heartbeat={every=7}", "--set", "train.epochs=15"]
    job = tiny.columns(tmp_path / "run")
    run = Run(tmp_path / "run", "train", job, *words, path=[plugin], **nvml.variables)
    try:
        until(run, lambda: nvml.gpu.sm_lock == 1050)
        run.ok()
    finally:
        run.close()
    assert nvml.gpu.sm_lock == 0 and nvml.gpu.sm_writes == 1
    assert list(journals(tmp_path / "state" / "mpcpipe" / "power")) == []
    assert "step 7: " in run.err and "s a step so far" in run.err
    assert "controlled by another process already" in run.err
    assert result(run)["services"]["heartbeat"]["steps"] == 60
    assert result(run)["services"]["power"]["energy_from"]


ENDLESS = ("--set", "train.epochs=1000000", "--set", "reveal.loss_every=1", "--set", "evaluate.how=none")


def test_a_party_that_is_killed_leaves_the_gpu_as_it_was(nvml: StandIn, tmp_path: Path) -> None:
    words = [*power("static-max", f"nvidia:{UUID}", cap_w=250), *ENDLESS]
    run = Run(tmp_path / "run", "train", tiny.columns(tmp_path / "run"), *words, **nvml.variables)
    folder = tmp_path / "state" / "mpcpipe" / "power"
    try:
        until(run, lambda: nvml.gpu.sm_lock > 0 and nvml.gpu.limit_mw == 250_000)
        (journal,) = journals(folder)
        entry = journal.read()
        assert entry is not None and entry.pid in run.parties().values()
        os.kill(entry.pid, signal.SIGKILL)
        assert run.finish() == 12, run.story()
        watchdog_done(folder)
    finally:
        run.close()
    assert (nvml.gpu.sm_lock, nvml.gpu.limit_mw) == (0, 350_000)
    assert list(journals(folder)) == []


def test_training_goes_on_when_the_gpu_vanishes(nvml: StandIn, tmp_path: Path) -> None:
    words = [*power("static-max", f"nvidia:{UUID}"), *SAME, "--set", "reveal.loss_every=1", "--set", "train.epochs=15"]
    run = Run(tmp_path / "run", "train", tiny.columns(tmp_path / "run"), *words, **nvml.variables)
    try:
        until(run, lambda: nvml.gpu.sm_lock > 0)
        nvml.gpu.present = 0
        run.ok()
    finally:
        run.close()
    assert "fallen off the bus" in run.err and "training goes on without the power service" in run.err
    assert len(result(run)["steps_s"]) == 60
    assert result(run)["services"]["power"]["lost"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (power("perseus", "simulated:a100-40"), "there is no card 'a100-40'"),
        (power("perseus", ""), "services.power.device is missing"),
        (power("perseuss", "simulated:h100"), "there is no policy 'perseuss'; did you mean 'perseus'?"),
        (power("perseus", "simulated:a100-40gb", cap_w=20), "is below what A100"),
        (power("greendls", "simulated:h100"), "'greendls' cannot work beside a training: it needs requests"),
        (power("oracle", "simulated:h100"), "Those that can: batch-dvfs, batch-dvfs-variant, dvfs, knee, morak"),
        (["--set", 'services.use=["nothing"]'], "services.use: there is no service 'nothing'"),
        (["--set", "services.options.heartbeat={}"], "which services.use does not name"),
        (["--set", 'services.use=["power"]'], "'power' has a table of its own, [services.power]"),
    ],
)
def test_what_is_wrong_is_told_before_the_parties_meet(words: list[str], said: str, tmp_path: Path) -> None:
    from mpcpipe.errors import PowerError
    from mpcpipe.job.load import load
    from mpcpipe.services.registry import services_of

    job = load(tiny.columns(tmp_path), words[1::2])
    with pytest.raises(PowerError) as caught:
        services_of(job, print)
    assert said in str(caught.value)


def test_a_wrong_service_ends_the_run_with_its_exit_code(tmp_path: Path) -> None:
    words = power("perseus", "simulated:a100-40gb", cap_w=20)
    run = Run(tmp_path, "train", tiny.columns(tmp_path), *words)
    try:
        assert run.finish() == 24, run.story()
    finally:
        run.close()
    assert "services.power.cap_w = 20 is below what A100" in run.err
    assert "no clock can keep that" in run.err and "Traceback" not in run.story()


def test_status_and_restore(nvml: StandIn, tmp_path: Path) -> None:
    """After an owner and its watchdog were killed: status says so, restore puts it right."""
    owner = [sys.executable, "-m", "tests.power.standin.owner", "watchdog killed"]
    environment = os.environ | nvml.variables | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        owner, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        kept = Run(tmp_path, "power", "restore", **nvml.variables)
        assert kept.finish() == 24 and "--force" in kept.err + kept.out, kept.story()
        process.kill()
    status = Run(tmp_path, "power", "status", "--json", "-", **nvml.variables).ok()
    told = json.loads(status.out)
    assert told["devices"][0]["sm_clock_mhz"] == 1200 and told["devices"][0]["owner_pid"] is None
    assert told["journals"][0]["touched"] == ["memory", "limit", "sm"]
    shown = Run(tmp_path, "power", "status", **nvml.variables).ok()
    assert "has ended and left it changed (memory, limit, sm); run `mpcpipe power restore`" in shown.err
    assert "Stand-in GPU" in shown.out and "there is nothing to set" in shown.err
    restored = Run(tmp_path, "power", "restore", **nvml.variables).ok()
    assert "memory, limit, sm as before" in restored.out
    assert (nvml.gpu.sm_lock, nvml.gpu.memory_lock, nvml.gpu.limit_mw) == (0, 0, 350_000)
    again = Run(tmp_path, "power", "restore", **nvml.variables).ok()
    assert "no GPU was left changed" in again.out
    for run in (kept, status, shown, restored, again):
        run.close()
