"""Builds the stand-in for libnvidia-ml.so.1 and sets its simulated GPUs; see nvml.c, which has the same structures."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
from pathlib import Path

import pytest

UUID = "GPU-00000000-1111-2222-3333-444444444444"


class Gpu(ctypes.Structure):
    _fields_ = (
        ("uuid", ctypes.c_char * 64),
        ("name", ctypes.c_char * 64),
        *((name, ctypes.c_int32) for name in ("present", "mig", "virtualization", "persistence")),
        *((name, ctypes.c_int32) for name in ("sm_lock", "memory_lock")),
        *((name, ctypes.c_int32) for name in ("limit_mw", "default_limit_mw", "low_limit_mw", "high_limit_mw")),
        *((name, ctypes.c_int32) for name in ("free_sm_mhz", "free_memory_mhz", "temperature_c", "instant_power")),
        ("memory_count", ctypes.c_int32),
        ("memory_mhz", ctypes.c_int32 * 8),
        *((name, ctypes.c_int32) for name in ("sm_low", "sm_high", "sm_step")),
        *((name, ctypes.c_int32) for name in ("sm_writes", "memory_writes", "limit_writes", "writes")),
        ("events", ctypes.c_uint64),
        ("energy_uj", ctypes.c_int64),
        ("energy_at_ns", ctypes.c_int64),
    )


class Fault(ctypes.Structure):
    _fields_ = (("function", ctypes.c_char * 64), ("code", ctypes.c_int32), ("skip", ctypes.c_int32))


class State(ctypes.Structure):
    _fields_ = (("gpus", ctypes.c_int32), ("faults", ctypes.c_int32), ("gpu", Gpu * 4), ("fault", Fault * 32))


def build(folder: Path) -> Path:
    """The library, in a folder of its own for LD_LIBRARY_PATH. Skips where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler to build the stand-in for NVML with")
    library = folder / "libnvidia-ml.so.1"
    words = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([*words, str(Path(__file__).parent / "nvml.c"), "-o", str(library)], check=True)
    return library


class StandIn:
    """The library and its GPUs: two of them, like an RTX 3080 Ti and a card with one memory clock."""

    def __init__(self, library: Path, file: Path) -> None:
        self.library, self.file = library, file
        file.write_bytes(bytes(ctypes.sizeof(State)))
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), ctypes.sizeof(State))
        self.state = State.from_buffer(self._map)
        self.state.gpus = 2
        for number, gpu in enumerate(self.state.gpu[:2]):
            gpu.uuid = (UUID if number == 0 else UUID.replace("0000", "0001", 1)).encode()
            gpu.name, gpu.present, gpu.instant_power = b"Stand-in GPU", 1, 1
            gpu.limit_mw = gpu.default_limit_mw = gpu.high_limit_mw = 350_000
            gpu.low_limit_mw, gpu.free_sm_mhz, gpu.free_memory_mhz, gpu.temperature_c = 100_000, 1950, 9501, 50
            gpu.sm_low, gpu.sm_high, gpu.sm_step = 210, 2100, 15
            clocks = (9501, 5001, 810, 405) if number == 0 else (1215,)
            gpu.memory_count = len(clocks)
            gpu.memory_mhz[: len(clocks)] = clocks

    @property
    def gpu(self) -> Gpu:
        """The first one."""
        return self.state.gpu[0]

    @property
    def variables(self) -> dict[str, str]:
        """For the environment of a process that is to see it."""
        return {"NVML_STANDIN": str(self.file), "LD_LIBRARY_PATH": str(self.library.parent)}

    def fail(self, function: str, code: int, skip: int = 0) -> None:
        """Let a function return an error from now on, or after `skip` calls that go well; 0: no more."""
        for fault in self.state.fault[: self.state.faults]:
            if fault.function == function.encode():
                fault.code, fault.skip = code, skip
                return
        fault = self.state.fault[self.state.faults]
        fault.function, fault.code, fault.skip = function.encode(), code, skip
        self.state.faults += 1

    def load(self) -> None:
        """Into this process: the loader finds a library by its name once it is there."""
        os.environ["NVML_STANDIN"] = str(self.file)
        ctypes.CDLL(str(self.library), mode=ctypes.RTLD_GLOBAL)
