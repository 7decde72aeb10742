"""All kernels for all architectures: minutes, so compile_gpu.sh runs it and the suite does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpcpipe.device import build
from mpcpipe.device.toolchain import find
from mpcpipe.errors import KernelError
from tests.device.floors import faults


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("device", "arch"), [("hip", "gfx906"), ("cuda", "sm_80"), ("cuda", "sm_90")])
def test_all_kernels(device: str, arch: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    try:
        find(device)
    except KernelError as missing:
        pytest.skip(str(missing))
    monkeypatch.setenv("MPCPIPE_CACHE", str(tmp_path / "cache"))
    built = build.build(device, arch)
    # depthwise: 3 elements, 3 filters, 2 strides, 3 directions; products: 8 tiles, 7 for 8-byte elements; sums
    assert len(built.resources) == 54 + 23 + 3
    assert faults(list(built.resources)) == []
