"""Parties and launchers that die, hang or are stopped in the middle of training: everybody ends, soon, and says why."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tiny
from tests.running import Run, Watched, stop

NAMES = ("alice", "bob", "carol")
LIMIT_S = 8.0
ENDLESS = ("--set", "train.epochs=1000000", "--set", "reveal.loss_every=1", "--set", "evaluate.how=none")


def endless(folder: Path, *words: str) -> Run:
    """A training that does not end by itself."""
    return Run(folder, "train", tiny.columns(folder), *ENDLESS, *words)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Run]]:
    """Three endless trainings, side by side, each in the middle."""
    runs = [endless(tmp_path / name) for name in NAMES]
    try:
        for run in runs:
            run.until_training()
        yield runs
    finally:
        for run in runs:
            run.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_loss_of_any_party_ends_all_and_names_it(three: list[Run], number: signal.Signals) -> None:
    everybody = [run.parties() for run in three]
    watched = [Watched(list(parties.values())) for parties in everybody]
    began_s = time.monotonic()
    for lost, parties in enumerate(everybody):
        os.kill(parties[lost], number)
    for lost, run in enumerate(three):
        code = run.finish(30)
        assert code == 12, run.story()
        assert NAMES[lost] in run.err.splitlines()[-1], run.story()
        assert "Traceback" not in run.story()
    assert time.monotonic() - began_s < LIMIT_S
    assert all(processes.gone() for processes in watched)


FOUR = ("--protocol", "replicated4", "--set", 'parties.names=["alice","bob","carol","dave"]')
DEALT = ("--protocol", "additive2")


@pytest.mark.parametrize(
    ("words", "losses"),
    [(FOUR, ("bob", "dave")), (DEALT, ("bob", "carol"))],
    ids=["two of four, one in each half", "who is dealt to, and the dealer"],
)
def test_a_loss_among_four_and_of_a_dealer_is_named_too(
    tmp_path: Path, words: tuple[str, ...], losses: tuple[str, ...]
) -> None:
    runs = {name: endless(tmp_path / name, *words) for name in losses}
    names = ("alice", "bob", "carol", "dave")[: 4 if words == FOUR else 3]
    try:
        for run in runs.values():
            run.until_training()
        everybody = {name: run.parties(len(names)) for name, run in runs.items()}
        watched = [Watched(list(parties.values())) for parties in everybody.values()]
        began_s = time.monotonic()
        for lost, parties in everybody.items():
            os.kill(parties[names.index(lost)], signal.SIGKILL)
        for lost, run in runs.items():
            assert run.finish(30) == 12, run.story()
            assert lost in run.err.splitlines()[-1] and "Traceback" not in run.story(), run.story()
            for other in set(names) - {lost}:
                assert lost in run.logs()[f"{other}.log"].splitlines()[-1], run.story()
        assert time.monotonic() - began_s < LIMIT_S
        assert all(processes.gone() for processes in watched)
    finally:
        for run in runs.values():
            run.close()


def test_control_c_stops_everybody(three: list[Run]) -> None:
    polite, frozen, orphaned = three
    watched = [Watched(list(run.parties().values())) for run in three]

    polite.process.send_signal(signal.SIGINT)
    for pid in frozen.parties().values():
        stop(pid)  # they cannot answer the first Ctrl-C
    frozen.process.send_signal(signal.SIGINT)
    orphaned.process.kill()

    assert polite.finish(LIMIT_S) == 130, polite.story()
    assert "stopped by Ctrl-C" in polite.err and "Traceback" not in polite.story()
    assert frozen.process.poll() is None, "only a second Ctrl-C ends parties that do not answer"
    frozen.process.send_signal(signal.SIGINT)
    assert frozen.finish(LIMIT_S) == 130, frozen.story()
    assert orphaned.finish(LIMIT_S) == -signal.SIGKILL
    assert [processes.gone() for processes in watched] == [True, True, True]


def test_control_c_before_the_parties_have_met(tmp_path: Path) -> None:
    run = endless(tmp_path / "early")
    try:
        watched = Watched(list(run.parties().values()))
        run.process.send_signal(signal.SIGINT)
        assert run.finish(LIMIT_S) == 130, run.story()
        assert "Traceback" not in run.story()
        assert watched.gone()
    finally:
        run.close()


def test_a_terminated_launcher_ends_its_parties(tmp_path: Path) -> None:
    run = endless(tmp_path / "terminated")
    try:
        watched = Watched(list(run.parties().values()))
        run.process.terminate()
        assert run.finish(LIMIT_S) == 130, run.story()
        assert watched.gone()
    finally:
        run.close()
