"""A cache for these tests, and the kernels built for the CPU once, one wave size after a build that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpcpipe.device import build
from mpcpipe.device.build import Built
from mpcpipe.device.chooser import InTurn
from mpcpipe.device.loading import emulated
from mpcpipe.device.operators import DeviceOperators

BUILD = "from mpcpipe.device.build import build; build('emulated', 'wave32', jobs=1)"


@pytest.fixture(scope="session")
def built_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The session's cache."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("MPCPIPE_CACHE", str(folder))
        yield folder / "kernels"


@pytest.fixture(scope="session")
def killed(built_cache: Path) -> list[Path]:
    """A build of wave32, killed in the middle of it: what it left."""
    process = subprocess.Popen([sys.executable, "-c", BUILD])
    deadline = time.monotonic() + 60
    while not list(built_cache.glob("building-*/*.o")):
        assert process.poll() is None and time.monotonic() < deadline
        os.sched_yield()
    os.kill(process.pid, signal.SIGKILL)  # its compilers live on for a while, as they do then
    assert process.wait() == -signal.SIGKILL
    return list(built_cache.glob("building-*"))


@pytest.fixture(scope="session")
def waves(built_cache: Path, killed: list[Path]) -> dict[str, Built]:
    """Both emulations, built."""
    return {arch: build.build("emulated", arch) for arch in ("wave32", "wave64")}


@pytest.fixture(params=["wave64", "wave32"])
def operators(request: pytest.FixtureRequest, waves: dict[str, Built]) -> DeviceOperators:
    """The emulated kernels, another tile every time."""
    return emulated(request.param, InTurn(), waves[request.param])
