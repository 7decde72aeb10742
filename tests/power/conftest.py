"""What the tests of the power service share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.power.standin.nvml import StandIn, build


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for libnvidia-ml.so.1, built once."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The stand-in in this process and, by `variables`, in others; with a state folder of its own."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    standin = StandIn(nvml_library, tmp_path / "gpus")
    monkeypatch.setenv("NVML_STANDIN", str(standin.file))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    standin.load()
    yield standin
