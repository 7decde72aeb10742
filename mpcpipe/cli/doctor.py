"""`mpcpipe doctor`: is this machine fit for it?"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import click

import mpcpipe
from mpcpipe.cli import console
from mpcpipe.cli.options import with_json
from mpcpipe.errors import KernelError

PACKAGES = ("torch", "numpy", "cryptography", "safetensors")
EXTRAS = {
    "scikit-learn": "the digits example",
    "mpi4py": "parties as MPI ranks",
    "nvidia-ml-py": "power and clocks of NVIDIA GPUs",
    "amdsmi": "power and clocks of AMD GPUs and DCUs",
}
FEATURES = ("avx2", "avx512f", "aes", "vaes", "bmi2", "asimd", "sve")
"""What the kernels use, or could: names as in /proc/cpuinfo."""


@click.command()
@with_json
def doctor(json_file: str | None) -> None:
    """Is this machine fit for secure training? Ends with exit code 0 if a small secure computation comes out right."""
    found = _found()
    advice = _advice(found)
    if json_file != "-":
        console.lines(_lines(found))
        if advice:
            console.blank()
            console.bullets("To be had", advice)
    console.write_json(json_file, found | {"advice": advice})
    if not found["fit"]:
        raise KernelError(
            f"the self-test is off by {found['self_test_error_units']:g} units where 1 is allowed: something here "
            "computes wrongly. `mpcpipe kernels check` says whether it is the native library"
        )


def _found() -> dict[str, Any]:
    import torch

    from mpcpipe.protocol.registry import PROTOCOLS
    from mpcpipe.ring import native
    from mpcpipe.selfcheck.protocols import generator_bytes_per_s, secure_self_test

    library = native.status()
    error, seconds = secure_self_test()
    return {
        "mpcpipe": mpcpipe.__version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu("model name") or platform.processor() or platform.machine(),
        "cpu_features": [name for name in FEATURES if name in (_cpu("flags") or _cpu("Features")).split()],
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "torch_threads": torch.get_num_threads(),
        "gpus": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "compiler": shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++"),
        "native_path": library["path"],
        "native_isa": library["isa"],
        "native_aes": library["aes"],
        "native_reason": library["reason"],
        "masks_bytes_per_s": round(generator_bytes_per_s()),
        "protocols": {name: PROTOCOLS[name].promise for name in PROTOCOLS},
        "extras": {name: _version(name) for name in EXTRAS},
        "self_test_error_units": error,
        "self_test_s": seconds,
        "fit": error <= 1.0,
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu(key: str) -> str:
    """One line of /proc/cpuinfo, or nothing where there is no such file or line."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(key)), "")


def _lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    library = (
        f"{found['native_path']} ({found['native_isa']})" if found["native_path"] else "none: slower, same results"
    )
    extras = [f"{name} {version}" for name, version in found["extras"].items() if version]
    return [
        ("mpcpipe", f"{found['mpcpipe']}, Python {found['python']}"),
        ("packages", ", ".join(f"{name} {found[name]}" for name in PACKAGES)),
        ("extras", ", ".join(extras) or "none"),
        ("machine", f"{found['cores']} cores, {found['memory_bytes'] / 1e9:.1f} GB, {found['cpu']}"),
        ("instructions", ", ".join(found["cpu_features"]) or "none that the kernels use"),
        ("torch", f"{found['torch_threads']} threads, {found['gpus']} GPUs"),
        ("native library", library),
        ("masks", f"{found['masks_bytes_per_s'] / 1e9:.2f} GB a second and core"),
        *(("protocol", f"{name}: {promise}") for name, promise in found["protocols"].items()),
        (
            "self-test",
            f"{'right' if found['fit'] else 'WRONG'}: a secure product and ReLU by three parties "
            f"in {found['self_test_s'] * 1e3:.0f} ms",
        ),
    ]


def _advice(found: dict[str, Any]) -> list[str]:
    """What is missing, what it is for, and how to get it."""
    advice = []
    if found["native_path"] is None:
        if os.environ.get("MPCPIPE_KERNELS") == "off":
            how = "unset MPCPIPE_KERNELS"
        elif found["compiler"]:
            how = "install mpcpipe again"
        else:
            how = "install a C++ compiler (on Debian: apt install g++), then mpcpipe again"
        advice.append(f"the native library, for several times the speed: {found['native_reason']}; {how}")
    elif not found["native_aes"]:
        advice.append(
            "this processor has no AES instructions: masks are drawn more slowly, by the cryptography package"
        )
    advice += [
        f"{name}, for {EXTRAS[name]}: pip install {name}"
        for name, version in found["extras"].items()
        if version is None
    ]
    return advice
