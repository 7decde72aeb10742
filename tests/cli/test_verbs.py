"""check, doctor, kernels and what all verbs share: in this process, with the real commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from mpcpipe.cli import doctor as doctor_module
from mpcpipe.cli.main import VERBS, mpcpipe
from mpcpipe.errors import JobError, KernelError, ModelError, UsageError
from mpcpipe.ring import native
from mpcpipe.runtime.described import in_words
from mpcpipe.selfcheck import protocols as selftest
from mpcpipe.selfcheck.kernels import compare
from tests import tiny


def call(*arguments: str | Path) -> Result:
    """One command; errors come through."""
    return CliRunner().invoke(mpcpipe, [str(argument) for argument in arguments], catch_exceptions=False)


def as_json(*arguments: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call(*arguments, "--json", "-").stdout)
    return found


def test_help_names_every_verb_and_imports_none() -> None:
    code = (
        "import sys; from mpcpipe.cli.main import mpcpipe; mpcpipe(['--help'], standalone_mode=False);"
        "assert not {'torch', 'mpcpipe.cli.train', 'mpcpipe.job.load'} & set(sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True).stdout
    assert all(f"  {verb} " in shown for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str) -> None:
    assert "Usage:" in call(verb, "--help").stdout


class TestCheck:
    def test_says_who_has_what_and_lists_the_layers(self, tmp_path: Path) -> None:
        found = as_json("check", tiny.columns(tmp_path), "--set", "model.args.norm=true")
        assert [(owned["party"], owned["what"]) for owned in found["owners"]] == [
            ("alice", "features"),
            ("bob", "labels"),
        ]
        layers = [(layer["kind"], layer["output_shape"], layer["parameters"]) for layer in found["layers"]]
        assert layers == [
            ("Linear", [16], 12 * 16 + 16),
            ("BatchNorm", [16], 4 * 16),
            ("ReLU", [16], 0),
            ("Linear", [3], 16 * 3 + 3),
        ]
        assert (found["steps"], found["steps_per_epoch"], found["train_rows"], found["test_rows"]) == (8, 4, 64, 32)
        assert found["promise"].startswith("3 parties, semi-honest")

    def test_shows_the_same_to_people(self, tmp_path: Path) -> None:
        shown = call("check", tiny.hospitals(tmp_path), "--set", "model.reveal_to=carol").stdout
        assert "features and labels" in shown and "nothing else is opened" in shown
        assert "the trained model (4 tensors, 259 numbers), to carol" in shown

    def test_needs_no_data(self, tmp_path: Path) -> None:
        job = tiny.columns(tmp_path)
        for file in tmp_path.glob("*/*.npz"):
            file.unlink()
        assert call("check", job).exit_code == 0

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ([], ["number of right answers"]),
            (["evaluate.how=none"], []),
            (["evaluate.every=1"], ["number of right answers"] * 2),
            (["reveal.loss_every=3", "evaluate.how=none"], ["loss of step 3", "loss of step 6"]),
            (["train.steps=4", "reveal.loss_every=4"], ["loss of step 4", "number of right answers"]),
            (["train.steps=5", "evaluate.every=1"], ["number of right answers"] * 2),
            (["model.reveal_to=bob", "evaluate.how=none"], [f"model {n}" for n in tiny.NAMES]),
        ],
    )
    def test_lists_every_opening_in_order(self, tmp_path: Path, changes: list[str], expected: list[str]) -> None:
        words = [word for change in changes for word in ("--set", change)]
        assert [opening["why"] for opening in as_json("check", tiny.columns(tmp_path), *words)["openings"]] == expected

    def test_a_digest_opens_the_model_to_all(self, tmp_path: Path) -> None:
        found = as_json("check", tiny.columns(tmp_path), "--model-digest")
        assert sum(opening["why"] == "model digest" and opening["to"] is None for opening in found["openings"]) == 4
        assert any("to all parties, for --model-digest" in words for words in found["openings_in_words"])

    def test_words_leave_nothing_out(self) -> None:
        from mpcpipe.protocol.base import Opening

        odd = [Opening("something new", 1, (2,)), Opening("number of right answers", None, ())]
        said = in_words(odd, ("alice", "bob"), 9)
        assert said == ["the number of right answers of 9 test rows, once, to all parties", "something new [2], to bob"]

    def test_a_party_checks_its_own_data_only(self, tmp_path: Path) -> None:
        job = tiny.columns(tmp_path)
        (tmp_path / "bob" / "labels.npz").unlink()
        found = as_json("check", job, "--party", "alice")["own_data"]
        largest = abs(tiny.values()[0]).max()
        assert found == [f"data.features: 96 rows of 12; the largest magnitude is {largest:.3g}, below 32768"]
        assert as_json("check", job, "--party", "2")["own_data"] == []

    def test_plaintext_shouts(self, tmp_path: Path) -> None:
        shown = call("check", tiny.columns(tmp_path), "--protocol", "plaintext")
        assert "NO PROTECTION" in shown.stdout and "protects nothing" in shown.stderr

    def test_errors_are_those_of_the_job(self, tmp_path: Path) -> None:
        job = tiny.columns(tmp_path)
        with pytest.raises(JobError, match=r"train\.batchsize"):
            call("check", job, "--set", "train.batchsize=3")
        with pytest.raises(UsageError, match="dave"):
            call("check", job, "--party", "dave")
        with pytest.raises(ModelError, match="GELU"):
            call("check", job, "--set", f"model.module={tmp_path}/net.py:unsupported")


def needs_library() -> native.NativeLibrary:
    library = native.load()
    if library is None:
        pytest.skip("there is no native library here")
    return library


class TestKernels:
    def test_status_says_what_is_used_or_why_not(self) -> None:
        found = as_json("kernels", "status")
        assert (found["path"] is None) == (found["reason"] is not None)
        assert call("kernels", "status").exit_code == 0

    def test_check_compares_every_kernel(self) -> None:
        needs_library()
        found = as_json("kernels", "check")
        assert found["different"] == [] and found["cases"] > 100
        assert {"matmul_u64", "conv2d_u32", "conv2d_input_grad_u64", "bit_planes_u64"} <= set(found["kernels"])
        assert "portable" in found["isas"]

    def test_a_wrong_bit_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        library = needs_library()
        right = native.NativeLibrary.unpack_bits

        def wrong(self: native.NativeLibrary, plane: torch.Tensor, n: int, dtype: torch.dtype) -> torch.Tensor:
            out = right(self, plane, n, dtype)
            out[n // 2] ^= n == 65
            return out

        monkeypatch.setattr(native.NativeLibrary, "unpack_bits", wrong)
        wrong_ones = {(found.kernel, found.different) for found in compare(library) if found.different}
        assert wrong_ones == {("unpack_bits_u64", ("65 elements",)), ("unpack_bits_u32", ("65 elements",))}
        with pytest.raises(KernelError, match=r"unpack_bits_u64.*65 elements.*MPCPIPE_KERNELS=off"):
            call("kernels", "check")

    def test_the_library_is_left_as_it_was(self) -> None:
        library = needs_library()
        before = library.isa
        compare(library)
        assert library.isa == before

    def test_without_a_library_there_is_nothing_to_check(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(native, "load", lambda: None)
        monkeypatch.setattr(native, "status", lambda: without("switched off by MPCPIPE_KERNELS=off"))
        with pytest.raises(KernelError, match="switched off"):
            call("kernels", "check")
        assert "several times slower" in call("kernels", "status").stdout


def without(reason: str) -> dict[str, str | bool | None]:
    return {"path": None, "isa": None, "aes": False, "reason": reason}


class TestDoctor:
    def test_this_machine_is_fit(self) -> None:
        found = as_json("doctor")
        assert found["fit"] and found["self_test_error_units"] <= 1.0
        assert set(found["protocols"]) >= {"replicated3", "plaintext"}
        assert found["torch"] == torch.__version__ and found["masks_bytes_per_s"] > 0
        assert all(isinstance(value, str | int | float | bool | list | dict | None) for value in found.values())
        assert "self-test" in call("doctor").stdout

    def test_a_missing_library_is_said_with_the_way_to_get_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(native, "status", lambda: without("it was not built"))
        monkeypatch.setattr(doctor_module.shutil, "which", lambda name: None)
        (advice,) = [line for line in as_json("doctor")["advice"] if "native library" in line]
        assert "it was not built" in advice and "install a C++ compiler" in advice

    @pytest.mark.parametrize(("error", "fit"), [(1.0, True), (1.5, False)])
    def test_a_wrong_result_is_no_fit(self, monkeypatch: pytest.MonkeyPatch, error: float, fit: bool) -> None:
        monkeypatch.setattr(selftest, "secure_self_test", lambda: (error, 0.1))
        monkeypatch.setattr(selftest, "generator_bytes_per_s", lambda: 1e9)
        if fit:
            assert "right" in call("doctor").stdout
            return
        with pytest.raises(KernelError, match=r"off by 1\.5 units"):
            call("doctor")

    def test_the_self_test_is_sharp(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from mpcpipe.ring import bilinear

        right = bilinear.MatMul.__call__

        def wrong(self: bilinear.MatMul, *arguments: Any, **named: Any) -> torch.Tensor:
            return right(self, *arguments, **named) + (1 << 20)

        monkeypatch.setattr(bilinear.MatMul, "__call__", wrong)
        assert selftest.secure_self_test()[0] > 1.0
