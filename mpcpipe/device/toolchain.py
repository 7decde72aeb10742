"""Compilers for device kernels: where they are, what they can build for, and how they are called."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from mpcpipe.errors import KernelError

DEVICES = ("cuda", "hip", "cpu", "emulated")
ELEMENTS = {"u64": "MPG_U64", "u32": "MPG_U32", "f32": "MPG_F32"}
# Architectures by name; others of the same form are passed on, and the compiler says whether it knows them.
KNOWN = {
    "cuda": ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"),
    "hip": ("gfx906", "gfx908", "gfx90a", "gfx942", "gfx926", "gfx928", "gfx936", "gfx938"),
    "emulated": ("wave64", "wave32"),
    "cpu": ("host",),
}
_FORM = {"cuda": r"sm_\d{2,3}[af]?", "hip": r"gfx[0-9a-f]{3,4}", "emulated": "wave(64|32)", "cpu": "host"}
_COMPILERS = {
    "cuda": ("nvcc",),
    "hip": ("hipcc",),
    "cpu": ("c++", "g++", "clang++"),
    "emulated": ("c++", "g++", "clang++"),
}
# Where toolkits say that they are, if their compilers are not on the PATH.
_HOMES = {"cuda": ("CUDA_HOME", "CUDA_PATH"), "hip": ("ROCM_PATH", "ROCM_HOME")}
_INSTALL = {
    "cuda": "install the CUDA toolkit (Debian: nvidia-cuda-toolkit), or put its bin folder on the PATH",
    "hip": "on a DCU `source` the env.sh of its toolkit (DTK), else install ROCm (Debian: hipcc and libamdhip64-dev)",
    "cpu": "install a C++17 compiler (Debian: g++)",
    "emulated": "install a C++17 compiler (Debian: g++)",
}


@dataclass(frozen=True)
class Toolchain:
    """A compiler for one device."""

    device: str
    compiler: str

    def compile(self, source: Path, target: Path, arch: str, defines: tuple[str, ...]) -> list[str]:
        """The command that makes an object of `source` and reports resources of kernels on its standard error."""
        common = ["-std=c++17", "-c", str(source), "-o", str(target), *(f"-D{define}" for define in defines)]
        if self.device == "cuda":
            code = arch.removeprefix("sm_")
            # Device code of the architecture, and its virtual code, from which the driver makes that of newer ones.
            gencode = ["-gencode", f"arch=compute_{code},code=[sm_{code},compute_{code}]"]
            quiet = ["-diag-suppress", "186"]  # a loop from 0 to 0 where a template leaves nothing to do
            host = ["-Xcompiler", "-fPIC,-fvisibility=hidden"]
            return [self.compiler, "-x", "cu", "-O3", *gencode, *quiet, *host, "-Xptxas", "-v", *common]
        shared = ["-fPIC", "-fvisibility=hidden"]
        if self.device == "hip":
            report = "-Rpass-analysis=kernel-resource-usage"
            return [self.compiler, "-x", "hip", f"--offload-arch={arch}", "-O3", *shared, report, *common]
        if self.device == "emulated":
            # Tests compile this: quick to build counts, not quick to run.
            return [self.compiler, "-O1", *shared, f"-DMPG_WAVE={arch.removeprefix('wave')}", *common]
        return [self.compiler, "-O3", "-fno-math-errno", *shared, *common]

    def link(self, objects: list[Path], target: Path, arch: str) -> list[str]:
        """The command that makes a shared library of objects."""
        extra = {"cuda": [f"-arch={arch}"], "hip": [f"--offload-arch={arch}"], "cpu": ["-pthread"]}.get(self.device, [])
        return [self.compiler, "-shared", *extra, "-o", str(target), *(str(each) for each in objects)]

    @property
    def environment(self) -> dict[str, str]:
        """What the compiler is to find in its environment."""
        return {**os.environ, **({"HIP_PLATFORM": "amd"} if self.device == "hip" else {}), "LC_ALL": "C"}

    def version(self) -> str:
        """What the compiler says of itself: part of a build's name, so that a new compiler builds anew."""
        return _version(self.compiler)


@lru_cache(maxsize=16)
def _version(compiler: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603  one of the names above
            [compiler, "--version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise KernelError(f"the compiler {compiler} does not answer: {failure}") from failure
    return (done.stdout + done.stderr).strip()


def require_device(device: str) -> None:
    """Raises KernelError unless kernels can be built for `device`."""
    if device not in DEVICES:
        near = difflib.get_close_matches(device, DEVICES, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"devices: {', '.join(DEVICES)}"
        raise KernelError(f"there are no kernels for {device!r}; {hint}")


def require_arch(device: str, arch: str) -> None:
    """Raises KernelError unless `arch` has the form of the device's architectures."""
    if re.fullmatch(_FORM[device], arch) is None:
        near = difflib.get_close_matches(arch, KNOWN[device], 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        known = ", ".join(KNOWN[device])
        raise KernelError(f"{arch!r} is no architecture of {device}: {hint}known are {known}")


def find(device: str) -> Toolchain:
    """The compiler for `device`. Raises KernelError that says what to install."""
    require_device(device)
    homes = [os.path.join(os.environ[name], "bin") for name in _HOMES.get(device, ()) if os.environ.get(name)]
    for name in _COMPILERS[device]:
        found = shutil.which(name) or (shutil.which(name, path=os.pathsep.join(homes)) if homes else None)
        if found:
            return Toolchain(device, found)
    raise KernelError(
        f"kernels for {device} need {_COMPILERS[device][0]}, which is not on the PATH: {_INSTALL[device]}"
    )
