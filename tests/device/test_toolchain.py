"""Compilers: found or named, and what they say of kernels, read right."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpcpipe.device.resources import Resources, demangle, from_json, most_threads, parse, resident_blocks, to_json
from mpcpipe.device.toolchain import find, require_arch, require_device
from mpcpipe.errors import KernelError

PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN3mpg9depthwiseImLi3ELi1ELb0EEEvNS_9DepthwiseIT_EE' for 'sm_90'
ptxas info    : Function properties for _ZN3mpg9depthwiseImLi3ELi1ELb0EEEvNS_9DepthwiseIT_EE
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers
ptxas info    : Compiling entry function '_ZN3mpg7productIfNS_4TileILi8ELi8ELi1ELi8ELi2ELi8EEEEEvNS_7ProductIT_EE' for
    80 bytes stack frame, 440 bytes spill stores, 60 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
"""
CLANG = """\
depthwise.h:84:29: remark: Function Name: _ZN3mpg9sum_partsIjEEvNS_5PartsIT_EE [-Rpass-analysis=kernel-resource-usage]
depthwise.h:84:29: remark:     SGPRs: 9 [-Rpass-analysis=kernel-resource-usage]
depthwise.h:84:29: remark:     VGPRs: 36 [-Rpass-analysis=kernel-resource-usage]
depthwise.h:84:29: remark:     ScratchSize [bytes/lane]: 48 [-Rpass-analysis=kernel-resource-usage]
depthwise.h:84:29: remark:     Occupancy [waves/SIMD]: 7 [-Rpass-analysis=kernel-resource-usage]
depthwise.h:84:29: remark:     SGPRs Spill: 0 [-Rpass-analysis=kernel-resource-usage]
depthwise.h:84:29: remark:     VGPRs Spill: 2 [-Rpass-analysis=kernel-resource-usage]
depthwise.h:84:29: remark:     LDS Size [bytes/block]: 0 [-Rpass-analysis=kernel-resource-usage]
"""


class TestReports:
    def test_nvcc(self) -> None:
        first, second = parse(PTXAS, "cuda", "sm_90")
        assert first == Resources("depthwise", "u64", (3, 1, 0), "sm_90", 40, 0, 0)
        assert second == Resources("product", "f32", (8, 8, 1, 8, 2, 8), "sm_90", 255, 500, 80)
        assert (first.name, second.name) == ("depthwise<u64; 3, 1, 0>", "product<f32; 8, 8, 1, 8, 2, 8>")
        assert (first.blocks, first.waves, first.occupancy) == (6, 48, 0.75)

    def test_hipcc(self) -> None:
        (only,) = parse(CLANG, "hip", "gfx906")
        assert only == Resources("sum_parts", "u32", (), "gfx906", 36, 8, 48)
        assert (only.blocks, only.waves) == (7, 28)
        assert from_json(to_json([only])) == (only,)

    def test_others_report_nothing(self) -> None:
        assert parse(PTXAS, "emulated", "wave64") == []
        assert parse("nvcc warning : something\n", "cuda", "sm_90") == []
        assert demangle("main") == ("main", "", ())

    def test_waves_of_gcn(self) -> None:
        """As in AMD's tables for gfx9: registers to waves a SIMD."""
        for registers, waves in ((24, 10), (28, 9), (32, 8), (40, 6), (48, 5), (64, 4), (84, 3), (128, 2), (129, 1)):
            assert resident_blocks("gfx906", registers) == waves

    def test_blocks_of_nvidia(self) -> None:
        """As in NVIDIA's occupancy calculator, for 256 threads."""
        for registers, blocks in ((32, 8), (40, 6), (64, 4), (80, 3), (128, 2), (255, 1)):
            assert resident_blocks("sm_90", registers) == blocks
        assert (most_threads("sm_80"), most_threads("sm_89"), resident_blocks("sm_75", 32)) == (2048, 1536, 4)


class TestFind:
    def test_names_what_to_install(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        for name in ("CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "ROCM_HOME"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(KernelError, match=r"nvcc, which is not on the PATH.*nvidia-cuda-toolkit"):
            find("cuda")
        with pytest.raises(KernelError, match=r"hipcc, which is not on the PATH.*libamdhip64-dev"):
            find("hip")
        with pytest.raises(KernelError, match=r"g\+\+"):
            find("emulated")

    def test_looks_where_the_toolkit_says(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        compiler = tmp_path / "bin" / "hipcc"
        compiler.parent.mkdir()
        compiler.write_text("#!/bin/sh\n")
        compiler.chmod(0o755)
        monkeypatch.setenv("PATH", "")
        monkeypatch.setenv("ROCM_PATH", str(tmp_path))
        assert find("hip").compiler == str(compiler)

    def test_unknown_devices_and_architectures(self) -> None:
        with pytest.raises(KernelError, match="did you mean 'cuda'"):
            require_device("cudda")
        with pytest.raises(KernelError, match="devices: cuda, hip, cpu, emulated"):
            require_device("quantum")
        with pytest.raises(KernelError, match=r"'gfx90z' is no architecture of hip: did you mean 'gfx90"):
            require_arch("hip", "gfx90z")
        with pytest.raises(KernelError, match=r"'hopper' is no architecture of cuda: known are sm_70, .*sm_90"):
            require_arch("cuda", "hopper")
        for device, arch in (("cuda", "sm_103"), ("hip", "gfx1100"), ("hip", "gfx90a"), ("emulated", "wave32")):
            require_arch(device, arch)
