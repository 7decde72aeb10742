"""The device compilers take the kernels, and what they need stays within bounds. Here the largest file only, since it
takes seconds; compile_gpu.sh does all of it, for all architectures.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mpcpipe.device.build import sources
from mpcpipe.device.resources import Resources, parse
from mpcpipe.device.toolchain import find
from mpcpipe.errors import KernelError
from tests.device.floors import faults


@pytest.mark.parametrize(("device", "arch"), [("hip", "gfx906"), ("cuda", "sm_90")])
def test_depthwise_modulo_2_64(device: str, arch: str, tmp_path: Path) -> None:
    try:
        toolchain = find(device)
    except KernelError as missing:
        pytest.skip(str(missing))
    command = toolchain.compile(sources() / "gpu" / "depthwise.cpp", tmp_path / "a.o", arch, ("MPG_U64",))
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, env=toolchain.environment)
    assert done.returncode == 0, done.stderr[-4000:]
    kernels = parse(done.stderr + done.stdout, device, arch)
    # 3 filters, 2 strides, 2 directions; the weight gradient; the sum of parts
    assert len(kernels) == 12 + 6 + 1
    assert faults(kernels) == []


def test_faults_are_found() -> None:
    right = Resources("depthwise", "u64", (3, 1, 0), "gfx906", 37, 0, 0)
    assert faults([right]) == []
    assert "spilled" in faults([Resources("depthwise", "u64", (3, 1, 0), "gfx906", 37, 8, 8)])[0]
    assert "leave room for 3 blocks" in faults([Resources("depthwise", "u64", (3, 1, 0), "gfx906", 84, 0, 0)])[0]
