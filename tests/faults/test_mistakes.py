"""What users get wrong: a sentence that says what and where, an exit code of its own, no traceback, no secret."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests import tiny
from tests.running import Run, free_hosts

CANARY = 777123.5
"""A value that is planted where it is wrong; no message may hold it."""


def finished(folder: Path, *arguments: str | Path, deadline_s: float = 90.0) -> Run:
    run = Run(folder, *arguments)
    try:
        run.finish(deadline_s)
    finally:
        run.close()
    return run


def changed(what: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], Path]:
    """The tiny job with other features or labels."""

    def prepare(folder: Path) -> Path:
        job = tiny.columns(folder)
        path = next(folder.glob(f"*/{what}.npz"))
        tiny.save(path, change(np.load(path)["arr_0"]))
        return job

    return prepare


def planted(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array = array.astype(np.float64)
        array[3, ...] = value
        return array

    return change


def without_file(folder: Path) -> Path:
    job = tiny.columns(folder)
    (folder / "bob" / "labels.npz").unlink()
    return job


def that_dies(folder: Path) -> Path:
    job = tiny.columns(folder)
    (folder / "source.py").write_text("import os\n\n\ndef die():\n    os._exit(3)\n")
    job.write_text(job.read_text().replace('"npz"\npath = "bob/labels.npz"', '"source.py:die"'))
    return job


def with_function(function: str) -> Callable[[Path], Path]:
    def prepare(folder: Path) -> Path:
        return tiny.columns(folder, tiny.HEAD.replace("net.py:build", function))

    return prepare


# name: the job, whose mistake it is (None: everybody's), exit code, words of the sentence
IN_PARTIES: dict[str, tuple[Callable[[Path], Path], str | None, int, tuple[str, ...]]] = {
    "label": (changed("labels", planted(CANARY)), "bob", 4, ("data.labels", "row 3", "0 to 2")),
    "nan": (changed("features", planted(np.nan)), "alice", 4, ("data.features", "row 3", "NaN")),
    "range": (changed("features", planted(CANARY)), "alice", 5, ("data.features", "row 3", "32768", "scale")),
    "shape": (changed("features", lambda array: array[:, :11]), "alice", 4, ("data.features", "11", "12")),
    "rows": (changed("labels", lambda array: array[:50]), "bob", 4, ("data.labels", "50 rows", "96")),
    "missing file": (without_file, "bob", 4, ("labels.npz", "no file")),
    "crash": (that_dies, None, 12, ("bob", "exit code 3", "bob.log")),
    "layer": (with_function("net.py:unsupported"), None, 6, ("GELU", "1", "ReLU")),
    "function": (with_function("net.py:biuld"), None, 3, ("model.module", "biuld")),
}


@pytest.fixture(scope="module")
def in_parties(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """All of these runs, a few at a time."""
    root = tmp_path_factory.mktemp("mistakes")
    with ThreadPoolExecutor(3) as pool:
        started = {
            name: pool.submit(lambda p, f: finished(f, "train", p(f)), prepare, root / name.replace(" ", "-"))
            for name, (prepare, *_) in IN_PARTIES.items()
        }
        return {name: future.result() for name, future in started.items()}


@pytest.mark.parametrize("name", IN_PARTIES)
def test_a_mistake_that_a_party_finds(in_parties: dict[str, Run], name: str) -> None:
    run = in_parties[name]
    _, who, code, words = IN_PARTIES[name]
    assert run.process.returncode == code, run.story()
    sentence = run.err.splitlines()[-1]
    assert all(word in sentence for word in words), run.story()
    assert "Traceback" not in run.story()
    assert str(CANARY)[:6] not in run.story()
    for log, text in run.logs().items():
        if who is not None and log != f"{who}.log":
            assert f"{who}: " in text, "the others must learn whose data it is"
            assert not [word for word in words if word in text], f"and no more than that\n{run.story()}"


BEFORE_PARTIES = {
    "no job": (("train", "nowhere.toml"), 3, ("nowhere.toml",)),
    "unknown key": (("train", "job.toml", "--set", "train.learning_rat=1"), 3, ("learning_rat", "learning_rate")),
    "wrong type": (("train", "job.toml", "--set", 'train.epochs="two"'), 3, ("train.epochs", "whole number")),
    "out of bounds": (("train", "job.toml", "--set", "train.momentum=1.5"), 3, ("train.momentum",)),
    "protocol": (("train", "job.toml", "--protocol", "replicated"), 3, ("replicated3", "plaintext")),
    "micro-batches": (("train", "job.toml", "--set", "pipeline.microbatches=17"), 7, ("microbatches", "16")),
    "party": (("train", "job.toml", "--party", "dave", "--hosts", "a,b,c"), 2, ("dave", "0 alice")),
    "hosts": (("train", "job.toml", "--party", "bob", "--hosts", "a,b"), 2, ("--hosts", "2", "3")),
    "port": (("train", "job.toml", "--party", "bob", "--hosts", "a,b:x,c"), 2, ("'b:x'", "HOST:PORT")),
    "in the clear": (
        ("train", "job.toml", "--party", "alice", "--hosts", "127.0.0.1:1999,192.0.2.1,192.0.2.2"),
        14,
        ("TCP, PLAINTEXT; this is alice", "with 192.0.2.1 would be in the clear", "mpcpipe keys new"),
    ),
    "json": (("train", "job.toml", "--json", "no/where.json"), 2, ("no/where.json",)),
    "verb": (("trian", "job.toml"), 2, ("trian", "train")),
    "flag": (("train", "job.toml", "--stepz", "3"), 2, ("--stepz", "--steps")),
    "toml": (("train", "broken.toml"), 3, ("broken.toml", "line 1")),
}


@pytest.fixture(scope="module")
def before_parties(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    root = tmp_path_factory.mktemp("early")
    folders = {name: root / str(number) for number, name in enumerate(BEFORE_PARTIES)}
    for folder in folders.values():
        tiny.columns(folder)
        (folder / "broken.toml").write_text("[job\n")
    with ThreadPoolExecutor(3) as pool:
        started = {name: pool.submit(finished, folders[name], *words) for name, (words, *_) in BEFORE_PARTIES.items()}
        return {name: future.result() for name, future in started.items()}


@pytest.mark.parametrize("name", BEFORE_PARTIES)
def test_a_mistake_that_is_found_at_once(before_parties: dict[str, Run], name: str) -> None:
    run = before_parties[name]
    _, code, words = BEFORE_PARTIES[name]
    assert run.process.returncode == code, run.story()
    assert all(word in run.err for word in words), run.story()
    assert "Traceback" not in run.story() and not run.out
    assert not run.logs()


# Parties by hand


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def test_a_port_in_use_and_a_party_that_does_not_come(tmp_path: Path, taken: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        mine = free.getsockname()[1]
    job = tiny.columns(tmp_path)
    nobody = f"127.0.0.1:{mine},127.0.0.1:1,127.0.0.1:2"
    with ThreadPoolExecutor(2) as pool:
        in_use = pool.submit(
            finished, tmp_path, "train", job, "--party", "0", "--hosts", f"127.0.0.1:{taken},127.0.0.1:1,127.0.0.1:2"
        )
        alone = pool.submit(
            finished, tmp_path, "train", job, "--party", "alice", "--hosts", nobody, "--set", "run.connect_s=1"
        )
    run = in_use.result()
    assert run.process.returncode == 15, run.story()
    assert str(taken) in run.err.splitlines()[-1] and "Traceback" not in run.story()
    run = alone.result()
    assert run.process.returncode == 11, run.story()
    last = run.err.splitlines()[-1]
    assert ("bob" in last or "carol" in last) and "1 s" in last and "Traceback" not in run.story()


def test_control_c_at_one_party_is_told_to_all(tmp_path: Path) -> None:
    endless = ("--set", "train.epochs=1000000", "--set", "reveal.loss_every=1")
    hosts, job = free_hosts(), tiny.columns(tmp_path)
    runs = [Run(tmp_path, "train", job, "--party", str(number), "--hosts", hosts, *endless) for number in range(3)]
    try:
        for run in runs:
            run.until_training()
        runs[1].process.send_signal(signal.SIGINT)
        for run in runs:
            assert run.finish(30) == 130, run.story()
            assert "stopped by the user" in run.err.splitlines()[-1] and "Traceback" not in run.story()
        assert all("bob: " in run.err.splitlines()[-1] for run in (runs[0], runs[2]))
    finally:
        for run in runs:
            run.close()


def test_parties_with_different_jobs_are_told_the_key(tmp_path: Path) -> None:
    hosts = free_hosts()
    job = tiny.columns(tmp_path)
    rates = ("0.25", "0.5", "0.25")
    with ThreadPoolExecutor(3) as pool:
        started = [
            pool.submit(
                *(finished, tmp_path, "train", job, "--party", str(number), "--hosts", hosts),
                *("--set", f"train.learning_rate={rate}"),
            )
            for number, rate in enumerate(rates)
        ]
    for future in started:
        run = future.result()
        assert run.process.returncode == 20, run.story()
        last = run.err.splitlines()[-1]
        assert "train.learning_rate" in last and "0.5" in last and "0.25" in last, run.story()
        assert "Traceback" not in run.story()
