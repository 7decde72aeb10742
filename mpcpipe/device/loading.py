"""Which kernels serve a tensor: by torch's own build. CUDA's or HIP's where they are built, else none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import lru_cache

import torch

from mpcpipe.device.build import Built, build, find_built
from mpcpipe.device.chooser import InTurn, Tuner
from mpcpipe.device.library import DeviceLibrary
from mpcpipe.device.machines import machine_like
from mpcpipe.device.operators import DeviceOperators
from mpcpipe.device.toolchain import KNOWN
from mpcpipe.errors import KernelError

_WARM, _TIMED = 2, 5


def backend() -> str:
    """What this torch computes on besides the CPU: "hip" (DCUs and AMD), "cuda", or "cpu" for neither."""
    if torch.version.hip is not None:
        return "hip"
    return "cuda" if torch.version.cuda is not None else "cpu"


def arch_of(device: torch.device) -> str:
    """The architecture's name, as compilers have it."""
    found = torch.cuda.get_device_properties(device)
    return str(found.gcnArchName).split(":")[0] if backend() == "hip" else f"sm_{found.major}{found.minor}"


def operators_for(device: torch.device) -> tuple[DeviceOperators | None, str]:
    """The kernels for tensors on `device`, or None and the reason. Raises KernelError for MPCPIPE_KERNELS=require."""
    if os.environ.get("MPCPIPE_KERNELS", "") == "off":
        return None, "switched off by MPCPIPE_KERNELS=off"
    if device.type != "cuda":
        return None, f"tensors on {device.type} are served by the CPU library and plain torch"
    index = torch.cuda.current_device() if device.index is None else device.index
    found, reason = _operators(index)
    if found is None and os.environ.get("MPCPIPE_KERNELS", "") == "require":
        raise KernelError(f"MPCPIPE_KERNELS=require, but {reason}")
    return found, reason


@lru_cache(maxsize=64)
def _operators(index: int) -> tuple[DeviceOperators | None, str]:
    device = torch.device("cuda", index)
    kind, arch = backend(), arch_of(device)
    found = find_built(kind, arch)
    if found is None:
        return (
            None,
            f"there are no kernels for {arch}; `mpcpipe kernels build --device {kind} --arch {arch}` makes them",
        )
    properties = torch.cuda.get_device_properties(device)
    machine = machine_like(arch, properties.multi_processor_count)
    name = f"{properties.name}-{found.path.parent.name}"
    library = DeviceLibrary(found.path, found.resources)
    return DeviceOperators(library, machine, Tuner(name, _timer(device))), ""


def emulated(arch: str = "wave64", tuner: Tuner | None = None, built: Built | None = None) -> DeviceOperators:
    """The kernels run by the CPU, thread by thread: for checks, never for work."""
    found = built or build("emulated", arch)
    like = machine_like("gfx906" if arch == "wave64" else "sm_90")
    return DeviceOperators(DeviceLibrary(found.path), like, tuner)


def _timer(device: torch.device) -> Callable[[Callable[[], None]], float]:
    def time_us(run: Callable[[], None]) -> float:
        best = float("inf")
        with torch.cuda.device(device):
            for _ in range(_WARM):
                run()
            for _ in range(_TIMED):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                start.record()
                run()
                end.record()
                end.synchronize()
                best = min(best, start.elapsed_time(end) * 1e3)
        return best

    return time_us


def to_check(device: str, arch: str | None) -> Iterator[tuple[str, DeviceOperators, torch.device]]:
    """(name, kernels that take every tile by turns, device) of what `mpcpipe kernels check --device` asks for.

    "auto" is every device here that kernels are built for. Raises KernelError where "cuda" or "hip" find none.
    """
    if device == "emulated":
        for wave in (arch,) if arch else KNOWN["emulated"]:
            yield f"emulated, {wave}", emulated(wave, InTurn()), torch.device("cpu")
        return
    if device != "auto" and device != backend():
        raise KernelError(f"this torch is built for {backend()}, not for {device}: there is nothing to check")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device != "auto" and count == 0:
        raise KernelError(
            f"there is no device for {device} here; `--device emulated` checks the same kernels on the CPU"
        )
    for index in range(count):
        where = torch.device("cuda", index)
        operators, reason = operators_for(where)
        if operators is not None:
            yield str(where), DeviceOperators(operators.library, operators.machine, InTurn()), where
        elif device != "auto":
            raise KernelError(f"{where}: {reason}")
