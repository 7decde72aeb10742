"""A store by the real command line: trained from it as from a dealer's process, once, and never again."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mpcpipe.cli.check import check
from mpcpipe.cli.deal import deal
from mpcpipe.dealt.ticket import look
from mpcpipe.errors import JobError, StoreError, UsageError
from mpcpipe.job.load import load
from mpcpipe.launch.around import Around
from mpcpipe.launch.dealing import deal as deal_run
from mpcpipe.launch.machine import PartyOptions
from mpcpipe.launch.stored import stored_of
from mpcpipe.runtime.events import Event
from tests import tiny
from tests.running import Run, Watched

WORDS = ("--protocol", "additive2", "--insecure-keys", "3")
PIPELINED = ("--set", "pipeline.stages=[0, 2]", "--set", "pipeline.schedule=1f1b", "--set", "pipeline.microbatches=2")


def dealt(job: Path, out: Path, *words: str) -> dict[str, object]:
    said = CliRunner().invoke(
        deal,
        [str(job), "--out", str(out), *WORDS, *words, "--json", "-"],
        standalone_mode=False,
        catch_exceptions=False,
    )
    found: dict[str, object] = json.loads(said.stdout)
    return found


def said(job: Path, *words: str) -> dict[str, Any]:
    """What `mpcpipe check` says."""
    done = CliRunner().invoke(check, [str(job), *words, "--json", "-"], standalone_mode=False, catch_exceptions=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def started(job: Path, *words: str | Path) -> Run:
    return Run(job.parent, "train", job, *WORDS, *words)


def ended(run: Run) -> dict[str, object]:
    try:
        run.ok()
    finally:
        run.close()
    (folder,) = (run.folder / "runs").iterdir()
    result: dict[str, object] = json.loads((folder / "result.json").read_text())
    return result


def test_a_store_gives_the_bits_that_a_dealer_gives_and_the_bytes(tmp_path: Path) -> None:
    """Also with several workers, evaluations and losses on the way; and two processes are all there are."""
    words = (*PIPELINED, "--steps", "4", "--set", "reveal.loss_every=2")
    job, other = tiny.columns(tmp_path / "job"), tiny.columns(tmp_path / "other")
    made = dealt(job, tmp_path / "store", *words)
    assert made["steps"] == 4 and made["dealer"] == "carol"
    beforehand = said(job, *WORDS[:2], *PIPELINED, "--set", "train.steps=4", "--set", "reveal.loss_every=2")
    assert made["dealt_bytes"] == beforehand["dealt_bytes"] > 4 * beforehand["dealt_bytes_per_step"]
    for folder in (tmp_path / "store", *(tmp_path / "store").iterdir()):
        assert folder.stat().st_mode & 0o777 == 0o700
    runs = [
        started(job, *words, "--store", tmp_path / "store", "--model-digest"),
        started(other, *words, "--model-digest"),
    ]
    stored, served = map(ended, runs)
    assert stored["model_sha256"] == served["model_sha256"]
    assert stored["losses"] == served["losses"] and stored["accuracy"] == served["accuracy"]
    assert stored["payload_bytes_per_step"] == served["payload_bytes_per_step"][:2]  # type: ignore[index]
    assert made["dealt_bytes_per_step"] == served["payload_bytes_per_step"][2]  # type: ignore[index]
    assert set(runs[0].logs()) == {"alice.log", "bob.log"}

    again = started(job, *words, "--store", tmp_path / "store")
    try:
        assert again.finish() == 25, again.story()
        assert "was used by another run" in again.err.splitlines()[-1], again.story()
    finally:
        again.close()


def test_who_is_killed_in_the_middle_has_used_the_store(tmp_path: Path) -> None:
    """And the others end, with its name; the second run is refused at both parties."""
    job, store = tiny.columns(tmp_path / "job"), tmp_path / "store"
    words = ("--steps", "40", "--set", "train.epochs=10", "--set", "reveal.loss_every=1")
    dealt(job, store, *words)
    run = started(job, *words, "--store", store)
    try:
        run.until(lambda line: line.startswith("step 1/"))
        parties = run.parties(2)
        watched = Watched(list(parties.values()))
        os.kill(parties[1], signal.SIGKILL)
        assert run.finish(30) == 12 and "bob" in run.err.splitlines()[-1], run.story()
        assert watched.gone()
    finally:
        run.close()
    for name in ("alice", "bob"):
        with pytest.raises(StoreError, match="was used by another run"):
            look(store / name)


def test_a_store_that_does_not_fit_is_refused_and_stays_unused(tmp_path: Path) -> None:
    job, store = tiny.columns(tmp_path / "job"), tmp_path / "store"
    dealt(job, store, *PIPELINED, "--steps", "1", "--set", 'evaluate.how="none"')
    agreed = look(store / "bob").job

    def looked_at(
        party: int, folder: Path = store, of: Mapping[str, str] = agreed, workers: int = 2, resume: str | None = None
    ) -> Any:
        described = load(job, [f'protocol.store="{folder}"', 'protocol.name="additive2"'])
        options = PartyOptions(job=str(job), party=party, resume=resume)
        return stored_of(described, options, of, workers, Around())

    for party in (0, 1):
        assert looked_at(party).agreement == {"protocol.store": look(store / "bob").store}
    longer = {**agreed, "train.steps": "2"}
    shutil.copytree(store / "alice", tmp_path / "mixed" / "bob")
    shutil.copytree(store / "bob", tmp_path / "cut" / "bob")
    with (tmp_path / "cut" / "bob" / "1.dealt").open("ab") as file:
        file.truncate(100)
    for error, said, wrong in (
        (StoreError, "another job: there train.steps was 1, here it is 2. Deal", lambda: looked_at(0, of=longer)),
        (StoreError, "is alice's, and this is bob", lambda: looked_at(1, tmp_path / "mixed")),
        (StoreError, "1.dealt is damaged: it has 100 bytes", lambda: looked_at(1, tmp_path / "cut")),
        (StoreError, "is for 2 workers, and this run has 3", lambda: looked_at(1, workers=3)),
        (StoreError, "there is no dealer's store", lambda: looked_at(0, tmp_path / "nowhere")),
        (UsageError, "carol is the dealer", lambda: looked_at(2)),
        (UsageError, "--resume does not go with", lambda: looked_at(0, resume="runs/x")),
        (StoreError, "there is something already", lambda: dealt(job, store)),
        (JobError, "has no dealer", lambda: load(job, [f'protocol.store="{store}"'])),
    ):
        with pytest.raises(error, match=said):
            wrong()
    assert looked_at(0) and looked_at(1), "looking uses nothing"


def test_dealing_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    job, out = tiny.columns(tmp_path / "job"), tmp_path / "deep" / "store"
    with pytest.raises(RuntimeError, match="in the middle"):
        deal_run(load(job, ['protocol.name="additive2"']), out, fail_at_the_second_step)
    assert not list(out.parent.iterdir())


def fail_at_the_second_step(event: Event) -> None:
    if event["event"] == "step" and event["step"] == 2:
        raise RuntimeError("in the middle")
