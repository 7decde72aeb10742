"""A run that resumes has keys that no run before had, and no label of a session is drawn twice."""

from __future__ import annotations

import shutil
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mpcpipe.job.load import load
from mpcpipe.job.schema import Job
from mpcpipe.launch import party
from mpcpipe.launch.machine import PartyOptions
from mpcpipe.random.tape import PrgTape
from tests import tiny

SETTINGS = ("checkpoint.every=2", "evaluate.every=1", "train.steps=6", "pipeline.microbatches=2", "run.threads=1")


def test_fresh_keys_and_no_label_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job_file = tiny.columns(tmp_path)
    tapes: list[PrgTape] = []

    def audited(keys: Any, **more: Any) -> PrgTape:
        tapes.append(PrgTape(keys, audit=True, **more))  # a label that comes twice ends the run
        return tapes[-1]

    def one_at_a_time(job: Job) -> Any:
        with alone:  # torch's generator draws the initial weights, and threads share it
            return build_chain(job)

    alone, build_chain = threading.Lock(), party.build_chain
    monkeypatch.setattr(party, "PrgTape", audited)
    monkeypatch.setattr(party, "build_chain", one_at_a_time)

    def session(run: Path, steps: int, resume: Path | None) -> list[PrgTape]:
        tapes.clear()
        run.mkdir()
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        addresses = tuple(("127.0.0.1", listener.getsockname()[1]) for listener in listeners)
        overrides = (*SETTINGS, f"train.steps={steps}")
        job = load(job_file, overrides)
        options = [
            PartyOptions(
                job=str(job_file),
                party=number,
                addresses=addresses,
                listener_fd=listener.detach(),
                run_folder=str(run),
                local_parties=3,
                resume=None if resume is None else str(resume),
            )
            for number, listener in enumerate(listeners)
        ]
        with ThreadPoolExecutor(3) as pool:
            work = partial(party.run_party, job, emit=lambda event: None)
            reports = list(pool.map(work, options))
        assert [report["checkpoints"]["resumed_from"] for report in reports] == [None if resume is None else 4] * 3
        return list(tapes)

    first = session(tmp_path / "first", 4, None)
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    second = session(tmp_path / "second", 6, tmp_path / "first")
    third = session(tmp_path / "third", 6, tmp_path / "copy")
    keys = [set(tape._keys.values()) for tape in (*first, *second, *third)]
    assert len(set.union(*keys)) == 3 * 6, "three of one party and three of two, in each of three sessions"
    labels = [tape._seen for tape in (*first, *second)]
    assert all(any(label.startswith("refresh 4/") for _, label in seen or ()) for seen in labels)
    assert all(not any(label.startswith(("1/", "4/")) for _, label in tape._seen or ()) for tape in second)
