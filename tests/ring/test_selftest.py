"""The library's own self-test (kernels/cpu/test/selftest.cpp), here and under an emulator for AArch64.

Every kernel beside plain loops, on random shapes, with each instruction set that the processor has. Tensors end where a
page ends that may not be touched. With MPCPIPE_SANITIZE=1 in the environment the library is compiled anew, with the
sanitizers for addresses and undefined behaviour, which takes a minute.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from mpcpipe.ring import native

KERNELS = Path(__file__).parents[2] / "kernels"
SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")


def built(compiler: str, folder: Path, *options: str, library: Path | None = None) -> Path:
    """The program, with the library as it was built or, where that would not do, with its sources."""
    program = folder / "selftest"
    sources = [library] if library is not None else sorted((KERNELS / "cpu").glob("*.cpp"))
    command = [compiler, "-std=c++17", "-O0", *options, f"-I{KERNELS}", str(KERNELS / "cpu/test/selftest.cpp")]
    subprocess.run([*command, *map(str, sources), "-pthread", "-o", str(program)], check=True)
    return program


def lines(*command: str | Path) -> dict[str, str]:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


def test_on_this_processor(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    library = native.load()
    if os.environ.get("MPCPIPE_SANITIZE") or library is None:
        program = built(compiler, tmp_path, *SANITIZERS)
    else:
        program = built(compiler, tmp_path, library=library.path)
    said = lines(program, "100")
    here = [isa for isa, result in said.items() if result != "not on this processor"]
    assert "portable" in here
    assert all(said[isa].endswith(" cases, 0 differ") and not said[isa].startswith("0 ") for isa in here), said
    if platform.machine() == "x86_64" and "avx512" not in here:
        assert said["avx512"] == "not on this processor"  # compiled, and not run: no emulator of Debian's has it


def test_neon_under_an_emulator(tmp_path: Path) -> None:
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        pytest.skip("it takes g++-aarch64-linux-gnu and qemu-user")
    said = lines(emulator, built(compiler, tmp_path, "-static"), "10")
    for isa in ("portable", "neon"):
        assert said[isa].endswith(" cases, 0 differ") and not said[isa].startswith("0 "), said
