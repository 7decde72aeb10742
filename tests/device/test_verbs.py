"""`mpcpipe kernels` for devices, with the real commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from mpcpipe.cli.main import mpcpipe
from mpcpipe.device import compare
from mpcpipe.device.build import Built
from mpcpipe.device.loading import arch_of, backend, operators_for
from mpcpipe.errors import KernelError


def call(*arguments: str) -> Result:
    return CliRunner().invoke(mpcpipe, ["kernels", *arguments], catch_exceptions=False)


def as_json(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call(*arguments, "--json", "-").stdout)
    return found


def test_build_says_what_it_made(waves: dict[str, Built]) -> None:
    found = as_json("build", "--device", "emulated", "--arch", "wave64", "--arch", "wave32")
    assert [(each["arch"], each["path"], each["fresh"]) for each in found["built"]] == [
        (arch, str(waves[arch].path), False) for arch in ("wave64", "wave32")
    ]
    assert "built         before" in call("build", "--device", "emulated", "--arch", "wave64").stdout


def test_build_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="did you mean 'hip'"):
        call("build", "--device", "hipp")
    with pytest.raises(KernelError, match="'sm90' is no architecture of cuda: did you mean 'sm_90'"):
        call("build", "--device", "cuda", "--arch", "sm90")
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(KernelError, match="install the CUDA toolkit"):
        call("build", "--device", "cuda")


def test_status_lists_builds(waves: dict[str, Built], built_cache: Path) -> None:
    found = as_json("status")
    assert (found["backend"], found["cache"]) == (backend(), str(built_cache))
    assert {built.path.parent.name for built in waves.values()} <= set(found["built"])
    assert str(built_cache) in call("status").stdout


def test_check_runs_the_emulated(waves: dict[str, Built]) -> None:
    found = as_json("check", "--device", "emulated", "--arch", "wave32")
    (only,) = found["devices"]
    assert (only["wave"], only["different"], len(only["kernels"])) == (32, [], 18)
    assert only["cases"] >= 18 * 10


def test_check_reports_a_difference(waves: dict[str, Built], monkeypatch: pytest.MonkeyPatch) -> None:
    right = compare.expected
    monkeypatch.setattr(compare, "expected", lambda *given: tuple(each + 1 for each in right(*given)))
    monkeypatch.setattr(compare, "DEPTHWISE", compare.DEPTHWISE[:2])
    monkeypatch.setattr(compare, "POINTWISE", ())
    with pytest.raises(KernelError, match=r"differs from plain torch in 54 cases, first depthwise_u64: \(1, 1, 1, 1\)"):
        call("check", "--device", "emulated", "--arch", "wave64")


def test_check_refuses() -> None:
    with pytest.raises(KernelError, match="there are no kernels for 'tpuu'"):
        call("check", "--device", "tpuu")
    with pytest.raises(KernelError, match="with --device emulated"):
        call("check", "--arch", "wave64")
    other = "hip" if backend() != "hip" else "cuda"
    with pytest.raises(KernelError, match=f"this torch is built for {backend()}, not for {other}"):
        call("check", "--device", other)


def test_clean_empties_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MPCPIPE_CACHE", str(tmp_path / "cache"))
    assert as_json("clean")["removed"] == []
    (tmp_path / "cache" / "kernels").mkdir(parents=True, mode=0o700)
    (tmp_path / "cache").chmod(0o700)
    (tmp_path / "cache" / "kernels" / "cuda-old").mkdir()
    assert "cuda-old" in call("clean").stdout
    assert list((tmp_path / "cache" / "kernels").glob("cuda-*")) == []


class TestLoading:
    def test_the_cpu_has_none(self) -> None:
        assert operators_for(torch.device("cpu"))[0] is None

    def test_can_be_switched_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MPCPIPE_KERNELS", "off")
        assert operators_for(torch.device("cuda"))[1] == "switched off by MPCPIPE_KERNELS=off"

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no device")
    def test_equals_plain_torch_on_the_device(self) -> None:
        operators, reason = operators_for(torch.device("cuda"))
        if operators is None:
            pytest.skip(reason)
        assert arch_of(torch.device("cuda")) in str(operators.library.path)
        assert not [each for each in compare.compare(operators, torch.device("cuda")) if each.different]
