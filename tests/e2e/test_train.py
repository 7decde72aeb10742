"""Training by the real command line, all parties as processes: it gives what torch makes of the same batches."""

from __future__ import annotations

import json
import socket
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors import safe_open
from safetensors.torch import load_file

from mpcpipe.cli.check import check
from mpcpipe.job.load import load
from mpcpipe.job.model import build_module
from mpcpipe.runtime.described import describe
from tests import tiny
from tests.running import Run, free_ports

JSON_KEYS = {
    "step_s", "steps_s", "losses", "accuracy", "sent_bytes_per_step", "rounds_per_step", "compute_s", "wait_s",
    "idle_s", "peak_rss_bytes", "reveals", "protocol", "schedule", "stages", "slots", "microbatches", "kernels",
    "link", "versions",
}  # fmt: skip

# Notes every file that a process opens, with the process's command line.
AUDIT = """\
import os, sys

def hook(event, args):
    if event == "open" and isinstance(args[0], (str, bytes, os.PathLike)) and os.fsdecode(args[0]).endswith(".npz"):
        with open(os.environ["OPENED"], "a") as log:
            with open("/proc/self/cmdline", "rb") as words:
                print(os.path.basename(os.path.dirname(os.fsdecode(args[0]))), words.read(), file=log)

sys.addaudithook(hook)
"""


@dataclass(frozen=True)
class Trained:
    """A finished run: its job and how it was changed, its result, and where everything is."""

    job: Path
    overrides: tuple[str, ...]
    result: dict[str, Any]
    run: Run

    @property
    def folder(self) -> Path:
        (only,) = (self.job.parent / "runs").iterdir()
        return only

    def expected(self, model_digest: bool = False) -> list[dict[str, Any]]:
        """The openings that `mpcpipe check` lists for the same job."""
        changes = [word for change in self.overrides for word in ("--set", change)]
        digest = ["--model-digest"] if model_digest else []
        shown = CliRunner().invoke(check, [str(self.job), *changes, *digest, "--json", "-"], catch_exceptions=False)
        listed: list[dict[str, Any]] = json.loads(shown.stdout)["openings"]
        return listed


def train(job: Path, *overrides: str, flags: tuple[str, ...] = (), **how: Any) -> Trained:
    words = [word for change in overrides for word in ("--set", change)]
    run = Run(job.parent, "train", job, *words, *flags, "--json", "result.json", **how)
    try:
        run.ok()
    finally:
        run.close()
    return Trained(job, overrides, json.loads((job.parent / "result.json").read_text()), run)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """All runs of this file, a few at a time."""
    root = tmp_path_factory.mktemp("e2e")
    (root / "audit").mkdir()
    (root / "audit" / "sitecustomize.py").write_text(AUDIT)
    full = ("model.reveal_to=alice", "reveal.loss_every=3", "evaluate.every=1")
    with ThreadPoolExecutor(3) as pool:
        started = {
            "columns": pool.submit(
                train,
                tiny.columns(root / "columns"),
                *full,
                flags=("--model-digest",),
                path=[root / "audit"],
                OPENED=str(root / "opened"),
            ),
            "again": pool.submit(
                train, tiny.columns(root / "again"), *full, flags=("--model-digest",), MPCPIPE_KERNELS="off"
            ),
            "once": pool.submit(
                train, tiny.columns(root / "once"), *full, "data.sharing=once", "pipeline.microbatches=2"
            ),
            "shares": pool.submit(
                train, tiny.hospitals(root / "shares"), "train.steps=6", "model.args.norm=true", flags=("--steps", "5")
            ),
            "normed": pool.submit(
                train, tiny.columns(root / "normed"), "model.reveal_to=bob", "model.args.norm=true", "train.epochs=1",
                "train.learning_rate=0.1", "evaluate.how=none",
            ),
            "plaintext": pool.submit(
                train, tiny.columns(root / "plaintext"), "model.reveal_to=alice", flags=("--protocol", "plaintext")
            ),
        }  # fmt: skip
        done = {name: future.result() for name, future in started.items()}
    yield done | {"opened": (root / "opened").read_text()}


def close(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], tolerance: float) -> None:
    assert set(ours) == set(theirs)
    for name, value in ours.items():
        worst = float((value.double() - theirs[name].double()).abs().max())
        assert worst <= tolerance, f"{name} differs by {worst}"


def test_the_result_has_every_key(runs: dict[str, Any]) -> None:
    result = runs["columns"].result
    assert set(result) >= JSON_KEYS
    assert len(result["steps_s"]) == 8 and len(result["losses"]) == 2
    assert len(result["sent_bytes_per_step"]) == len(result["peak_rss_bytes"]) == len(result["compute_s"]) == 3
    assert all(sent > 0 for sent in result["sent_bytes_per_step"]) and result["rounds_per_step"] > 10
    assert 0.5 < result["accuracy"] <= 1.0, "it has learned nothing"


def test_the_model_loads_into_the_torch_module_and_is_what_torch_would_have_trained(runs: dict[str, Any]) -> None:
    trained = runs["columns"]
    state = load_file(trained.folder / "model.safetensors")
    build_module(load(trained.job)).load_state_dict(state, strict=True)
    close(state, tiny.trained_in_the_clear(trained.job, 8), 2e-3)


def test_running_statistics_are_trained_too(runs: dict[str, Any]) -> None:
    trained = runs["normed"]
    state = load_file(trained.folder / "model.safetensors")
    build_module(load(trained.job, trained.overrides)).load_state_dict(state, strict=True)
    assert int(state["1.num_batches_tracked"]) == 4
    job = trained.job.parent / "clear.toml"
    job.write_text(trained.job.read_text().replace("learning_rate = 0.25", "learning_rate = 0.1"))
    close(state, tiny.trained_in_the_clear(job, 4, {"norm": "true"}), 1e-2)


def test_a_second_run_has_other_masks_and_nearly_the_same_model(runs: dict[str, Any]) -> None:
    first, second = runs["columns"], runs["again"]
    assert first.result["model_sha256"] != second.result["model_sha256"], "rounding must differ with the masks"
    close(load_file(first.folder / "model.safetensors"), load_file(second.folder / "model.safetensors"), 2e-3)


def test_without_the_native_library_it_says_so_once(runs: dict[str, Any]) -> None:
    assert runs["again"].run.err.count("slower than it could be: switched off by MPCPIPE_KERNELS=off") == 1
    assert runs["again"].result["kernels"]["path"] is None
    if runs["columns"].result["kernels"]["path"]:
        assert "slower" not in runs["columns"].run.err


def test_sharing_all_rows_at_the_start_and_micro_batches_train_the_same_model(runs: dict[str, Any]) -> None:
    once, batch = runs["once"], runs["columns"]
    close(load_file(once.folder / "model.safetensors"), load_file(batch.folder / "model.safetensors"), 3e-3)
    assert once.result["microbatches"] == 2


@pytest.mark.parametrize("name", ["columns", "again", "once", "shares", "normed", "plaintext"])
def test_what_is_opened_is_what_check_lists(runs: dict[str, Any], name: str) -> None:
    trained = runs[name]
    overrides = (*trained.overrides, "train.steps=5") if name == "shares" else trained.overrides
    again = Trained(trained.job, overrides, trained.result, trained.run)
    assert trained.result["reveals"] == again.expected(model_digest="model_sha256" in trained.result)


def test_a_model_for_nobody_stays_in_shares_that_add_up(runs: dict[str, Any]) -> None:
    trained = runs["shares"]
    assert len(trained.result["steps_s"]) == 5, "--steps 5 stops in the second epoch"
    assert not (trained.folder / "model.safetensors").exists()
    shares, bits = [], {}
    for name in ("alice", "bob", "carol"):
        path = trained.folder / f"model.{name}.shares.safetensors"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        shares.append(load_file(path))
        with safe_open(path, "pt") as opened:
            bits = opened.metadata()
    values = {}
    for key in shares[0]:
        first, second, third = (share[key] for share in shares)
        assert torch.equal(first[1], second[0]) and torch.equal(second[1], third[0]) and torch.equal(third[1], first[0])
        values[key] = (first[0] + second[0] + third[0]).double() / 2.0 ** int(bits[key])
    twin = tiny.trained_in_the_clear(trained.job, 5, {"norm": "true"})
    close(values, {key: value for key, value in twin.items() if "tracked" not in key}, 3e-2)


def test_one_party_alone_has_noise(runs: dict[str, Any]) -> None:
    share = load_file(runs["shares"].folder / "model.bob.shares.safetensors")["0.weight"]
    assert (share.abs().double() > 2.0**55).double().mean() > 0.9, "uniform ring elements are nearly all huge"


def test_only_owners_open_their_files(runs: dict[str, Any]) -> None:
    opened: dict[str, set[str]] = {}
    for line in runs["opened"].splitlines():
        owner, _, words = line.partition(" ")
        number = words.partition('"party": ')[2][:1]
        opened.setdefault(owner, set()).add(number if "mpcpipe.launch.start" in words else "launcher")
    assert opened == {"alice": {"0"}, "bob": {"1"}}


def test_plaintext_shouts(runs: dict[str, Any]) -> None:
    trained = runs["plaintext"]
    assert "NO PROTECTION" in trained.run.err
    assert trained.result["protocol"] == "plaintext"
    close(load_file(trained.folder / "model.safetensors"), tiny.trained_in_the_clear(trained.job, 8), 2e-3)


def test_no_value_of_the_data_is_in_any_log(runs: dict[str, Any]) -> None:
    features, _ = tiny.values()
    known = {f"{abs(value):.6f}" for value in features.ravel().tolist()} | {repr(v) for v in features.ravel().tolist()}
    for name in ("columns", "once", "shares"):
        trained = runs[name]
        said = trained.run.story() + json.dumps(trained.result)
        assert not [text for text in known if text in said]
        assert "Traceback" not in said


def test_describe_counts_what_the_run_did(runs: dict[str, Any]) -> None:
    trained = runs["columns"]
    found = describe(load(trained.job, trained.overrides))
    assert (found.steps, found.train_rows, found.test_rows) == (8, 64, 32)
    assert sum(layer.parameters for layer in found.layers) == 12 * 16 + 16 + 16 * 3 + 3


# Parties by hand, and what goes over the wire


class Recorder:
    """A relay in front of a party's port that writes down every byte in either direction."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.seen = bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near = self._listener.accept()[0]
            except OSError:
                return
            try:
                far = socket.create_connection(self.target)
            except OSError:
                near.close()  # the party is not there yet; who dialled tries again
                continue
            self._sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._relay, args=(source, sink), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self.seen += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        for sock in (self._listener, *self._sockets):
            sock.close()


def by_hand(job: Path, *flags: str) -> tuple[list[dict[str, Any]], bytes]:
    """Three parties started one by one, dialling through recorders; their results, and what was on the wire."""
    ports = free_ports(3)
    recorders = [Recorder(("127.0.0.1", port)) for port in ports]
    direct = [f"127.0.0.1:{port}" for port in ports]
    started = []
    try:
        for number, name in ((2, "2"), (0, "alice"), (1, "1")):
            hosts = [direct[i] if i == number else f"127.0.0.1:{r.port}" for i, r in enumerate(recorders)]
            arguments = ("train", job, "--party", name, "--hosts", ",".join(hosts), *flags)
            started.append((number, Run(job.parent, *arguments, "--json", f"{number}.json")))
        for _, run in started:
            run.ok()
    finally:
        for _, run in started:
            run.close()
        for recorder in recorders:
            recorder.close()
    results = [json.loads((job.parent / f"{number}.json").read_text()) for number in range(3)]
    return results, b"".join(bytes(recorder.seen) for recorder in recorders)


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[dict[str, Any]], bytes, Path]]:
    root = tmp_path_factory.mktemp("by-hand")
    flags = ("--set", "model.reveal_to=carol", "--set", "evaluate.how=revealed", "--steps", "2", "--model-digest")
    found = {}
    for name, extra in (("replicated3", ()), ("plaintext", ("--protocol", "plaintext"))):
        job = tiny.hospitals(root / name)
        found[name] = (*by_hand(job, *flags, *extra), job)
    return found


def test_parties_started_by_hand_agree(manual: dict[str, Any]) -> None:
    results, _, _ = manual["replicated3"]
    assert len({result["model_sha256"] for result in results}) == 1
    assert [result["party"] for result in results] == [0, 1, 2]
    assert results[0]["reveals"] == results[1]["reveals"] == results[2]["reveals"]


def test_the_model_s_party_tests_it_alone(manual: dict[str, Any]) -> None:
    results, _, job = manual["replicated3"]
    assert [result["accuracy"] is None for result in results] == [True, True, False]
    assert results[2]["right"][1] == 16, "on the test rows of its own"
    assert len(list(job.parent.glob("runs/*/model.safetensors"))) == 1


def test_no_row_is_on_the_wire(manual: dict[str, Any]) -> None:
    features, _ = tiny.values()
    rows = torch.from_numpy(features).double().mul(2.0**16).round().long()
    # Two neighbours each: a single small number may look like a field of a header.
    patterns = [pair.contiguous().numpy().tobytes() for pair in rows.reshape(-1, 2)]

    def hits(wire: bytes) -> int:
        return sum(pattern in wire for pattern in patterns)

    assert hits(manual["plaintext"][1]) > 10, "the search must find what is there"
    assert hits(manual["replicated3"][1]) == 0
