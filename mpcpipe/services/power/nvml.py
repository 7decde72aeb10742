"""NVIDIA GPUs through NVML, by nvidia-ml-py (which imports as pynvml). Loaded at the first use; GPUs by UUID.

NVML has no way to read a lock of clocks, so what another program has locked before cannot be brought back: `restore`
gives clocks to the driver. Application clocks are not used: NVIDIA has deprecated them.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any, TypeVar

from mpcpipe.errors import PowerError
from mpcpipe.services.power.device import (
    KNOBS,
    Cannot,
    Capabilities,
    Codes,
    DeviceError,
    Original,
    PowerDevice,
    Reason,
    Sample,
    no_choice,
    refusal,
    unless_lost,
)

T = TypeVar("T")

FIELD_POWER_INSTANT = 186
"""`NVML_FI_DEV_POWER_INSTANT`: of the moment; `nvmlDeviceGetPowerUsage` is a mean over a second on newer cards."""

CODES: Codes = {
    1: (Reason.FAULT, "NVML was not initialized"),
    2: (Reason.ARGUMENT, "the driver takes no such value"),
    3: (Reason.UNSUPPORTED, "this GPU does not support it"),
    4: (
        Reason.PERMISSION,
        "only the administrator may do it: run as root, in a container with --cap-add SYS_ADMIN, or let Zeus's daemon "
        'do it (device = "zeusd")',
    ),
    6: (Reason.MISSING, "there is no such thing"),
    7: (Reason.FAULT, "a buffer was too small"),
    8: (Reason.FAULT, "a power cable of the GPU is not plugged in"),
    9: (Reason.MISSING, "the NVIDIA driver is not loaded"),
    10: (Reason.BUSY, "the driver did not answer in time"),
    11: (Reason.FAULT, "the kernel has a problem with the GPU's interrupts"),
    12: (Reason.MISSING, "the library libnvidia-ml.so.1 is not there: there is no NVIDIA driver on this machine"),
    13: (Reason.UNSUPPORTED, "this driver does not have the function; a newer one does"),
    14: (Reason.FAULT, "the GPU's infoROM is damaged"),
    15: (Reason.LOST, "the GPU has fallen off the bus or is not accessible any more"),
    16: (Reason.LOST, "the GPU must be reset before it can be used again"),
    17: (Reason.PERMISSION, "the operating system or container forbids it"),
    18: (Reason.MISSING, "the driver's library and its kernel module are of different versions; restart the machine"),
    19: (Reason.BUSY, "something else is using the GPU in a way that forbids it"),
    20: (Reason.FAULT, "there is too little memory"),
    21: (Reason.UNSUPPORTED, "there are no data for it"),
    22: (Reason.UNSUPPORTED, "it cannot be had on a virtual GPU with ECC"),
    23: (Reason.FAULT, "the driver is out of a resource"),
    24: (Reason.ARGUMENT, "this GPU cannot have that clock"),
    25: (Reason.UNSUPPORTED, "nvidia-ml-py and the driver are of different versions"),
    26: (Reason.UNSUPPORTED, "NVIDIA has taken the function away"),
    27: (Reason.BUSY, "the GPU is not ready"),
    28: (Reason.LOST, "the GPU is not there any more"),
    29: (Reason.BUSY, "the GPU is in a state that forbids it"),
    999: (Reason.FAULT, "the driver reports an unknown error"),
}
"""NVML's."""

EVENTS = {
    0x4: "its power limit",
    0x8: "a hardware slowdown",
    0x10: "its sync boost group",
    0x20: "heat, by the driver",
    0x40: "heat, by the hardware",
    0x80: "the power supply's brake",
}
"""Why a clock is lower than asked. Idle (1), application clocks (2) and the display (256) are none of our business."""


def load() -> Any:
    """NVML, initialized. Errors: PowerError: the package, the library or the driver is missing."""
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError as error:
        raise PowerError(
            "no NVIDIA GPU can be reached: the package nvidia-ml-py is missing; pip install 'mpcpipe[nvidia]'"
        ) from error
    if not hasattr(pynvml, "_nvmlGetFunctionPointer"):
        raise PowerError(
            "another package hides nvidia-ml-py: its pynvml is not NVIDIA's. "
            "pip uninstall pynvml nvidia-ml-py3, then pip install --force-reinstall nvidia-ml-py"
        )
    call(pynvml, "no NVIDIA GPU can be reached", pynvml.nvmlInit)
    return pynvml


def call(pynvml: Any, what: str, function: Callable[..., T], *arguments: Any) -> T:
    """A call of NVML; its error as a `DeviceError` that begins with `what`."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        unknown = "the driver reports an error that is not known"
        raise refusal(what, "NVML", int(error.value), CODES, unknown) from error


class Nvidia(PowerDevice):
    """One GPU. `pynvml`: from `load`. `handle`: of the GPU."""

    def __init__(self, pynvml: Any, handle: Any) -> None:
        self._n, self._handle = pynvml, handle
        self.uuid = str(call(pynvml, "the UUID of a GPU", pynvml.nvmlDeviceGetUUID, handle))
        self.spec = f"nvidia:{self.uuid}"
        self.name = str(self._try(pynvml.nvmlDeviceGetName) or "an NVIDIA GPU")
        self._cannot: list[Cannot] = []
        self._counts = True
        self._instant = True
        self._can: Capabilities | None = None

    def _call(self, what: str, function: Callable[..., T], *arguments: Any) -> T:
        return call(self._n, f"{self.name}: {what}", function, self._handle, *arguments)

    def _try(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """None for what the device does not tell. A lost GPU is raised."""
        return unless_lost(lambda: call(self._n, self.spec, function, self._handle, *arguments))

    def _ask(self, what: str, words: str, function: Callable[..., T], *arguments: Any) -> T | None:
        """Like `_try`, with a sentence among what cannot be done."""
        try:
            return self._call(words, function, *arguments)
        except DeviceError as error:
            if error.reason is Reason.LOST:
                raise
            self._cannot.append(Cannot(what, str(error)))
            return None

    def capabilities(self) -> Capabilities:
        """Reads only. Whether the user may write is seen at the first write, for only the driver knows."""
        if self._can is None:
            self._can = self._probe()
        return self._can

    def _probe(self) -> Capabilities:
        n = self._n
        self._cannot = []
        knobs = self._shared()
        memory = self._ask(
            "memory", "its memory clocks cannot be listed, so they are not set", n.nvmlDeviceGetSupportedMemoryClocks
        )
        sm: set[int] = set()
        for clock in memory or ():
            sm |= set(self._try(n.nvmlDeviceGetSupportedGraphicsClocks, clock) or ())
        choices = {"sm": sm, "memory": set(memory or ())}
        self._cannot += [
            found
            for knob, clocks in choices.items()
            if self._why(knob) is None and (found := no_choice(self.name, knob, clocks)) is not None
        ]
        limits = self._ask("limit", "its power limits cannot be read", n.nvmlDeviceGetPowerManagementLimitConstraints)
        default = self._try(n.nvmlDeviceGetPowerManagementDefaultLimit)
        counts = self._ask(
            "energy",
            "it does not count joules, so its energy is summed up from samples of its power",
            n.nvmlDeviceGetTotalEnergyConsumption,
        )
        self._counts = counts is not None
        self._ask("power", "its power cannot be read", n.nvmlDeviceGetPowerUsage)
        if knobs:
            knobs -= {knob for knob, clocks in choices.items() if len(clocks) < 2}
            knobs -= {"limit"} if limits is None else set()
        return Capabilities(
            self.uuid,
            self.name,
            tuple(sorted(sm)),
            tuple(sorted(memory or ())),
            None if limits is None else (limits[0] / 1000, limits[1] / 1000),
            None if default is None else default / 1000,
            frozenset(knobs),
            self._counts,
            cannot=tuple(self._cannot),
        )

    def _why(self, what: str) -> str | None:
        return next((entry.why for entry in self._cannot if entry.what == what), None)

    def _shared(self) -> set[str]:
        """The knobs that may be tried: none where others have a part of the GPU."""
        mig = self._try(self._n.nvmlDeviceGetMigMode)
        if mig is not None and mig[0] == 1:
            self._cannot.append(
                Cannot(
                    "control",
                    f"{self.name} is divided by MIG: clocks and limits are the whole GPU's, and other instances have "
                    "work there, so nothing is set. It is only observed",
                )
            )
            return set()
        # NVML_GPU_VIRTUALIZATION_MODE: 0 none, 1 passed through, 2 a virtual GPU, 3 and 4 the host of some
        if (self._try(self._n.nvmlDeviceGetVirtualizationMode) or 0) >= 2:
            self._cannot.append(
                Cannot(
                    "control",
                    f"{self.name} is a virtual GPU, or the host of some: its clocks are not this machine's alone, so "
                    "nothing is set. It is only observed",
                )
            )
            return set()
        return set(KNOBS)

    def read(self) -> Sample:
        """A dozen microseconds to a few milliseconds, by the driver."""
        n = self._n
        at_s = time.perf_counter()
        instant_w = self._instant_w()
        power_mw = self._try(n.nvmlDeviceGetPowerUsage) if instant_w is None else None
        energy_mj = self._try(n.nvmlDeviceGetTotalEnergyConsumption) if self._counts else None
        limit_mw = self._try(n.nvmlDeviceGetPowerManagementLimit)
        return Sample(
            at_s,
            instant_w if instant_w is not None else None if power_mw is None else power_mw / 1000,
            None if energy_mj is None else energy_mj / 1000,
            self._try(n.nvmlDeviceGetClockInfo, n.NVML_CLOCK_SM),
            self._try(n.nvmlDeviceGetClockInfo, n.NVML_CLOCK_MEM),
            self._temperature(),
            None if limit_mw is None else limit_mw / 1000,
            0.0 if instant_w is not None else None,
            self._events(),
        )

    def _instant_w(self) -> float | None:
        if not self._instant:
            return None
        values = self._try(self._n.nvmlDeviceGetFieldValues, [FIELD_POWER_INSTANT])
        if values is None or values[0].nvmlReturn != 0:
            self._instant = False
            return None
        return float(values[0].value.uiVal) / 1000

    def _temperature(self) -> float | None:
        n = self._n
        if hasattr(n, "nvmlDeviceGetTemperatureV"):
            found = self._try(n.nvmlDeviceGetTemperatureV, n.NVML_TEMPERATURE_GPU)
            if found is not None:
                return float(found)
        old = self._try(n.nvmlDeviceGetTemperature, n.NVML_TEMPERATURE_GPU)
        return None if old is None else float(old)

    def _events(self) -> tuple[str, ...]:
        n = self._n
        bits: int | None = None
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            if bits is None and hasattr(n, name):
                bits = self._try(getattr(n, name))
        return tuple(words for bit, words in EVENTS.items() if (bits or 0) & bit)

    def original(self) -> Original:
        """The limit; a lock cannot be read."""
        limit_mw = self._try(self._n.nvmlDeviceGetPowerManagementLimit)
        return Original(None if limit_mw is None else limit_mw / 1000)

    def set_knob(self, knob: str, value: float | None) -> None:
        """Locks are from `value` to `value`: the clock that was chosen, also when the GPU waits."""
        n, words = self._n, f"{KNOBS[knob]} cannot be set"
        if knob == "limit":
            if value is None:
                value = self._call(words, n.nvmlDeviceGetPowerManagementDefaultLimit) / 1000
            self._call(words, n.nvmlDeviceSetPowerManagementLimit, round(value * 1000))
        elif value is None:
            self._call(words, n.nvmlDeviceResetGpuLockedClocks if knob == "sm" else n.nvmlDeviceResetMemoryLockedClocks)
        else:
            function = n.nvmlDeviceSetGpuLockedClocks if knob == "sm" else n.nvmlDeviceSetMemoryLockedClocks
            self._call(f"{words} to {value:g} MHz", function, round(value), round(value))

    def close(self) -> None:
        """One reference less to the library."""
        try:
            self._n.nvmlShutdown()
        except self._n.NVMLError:
            return  # it was not there any more


def all_nvidia() -> list[PowerDevice]:
    """All GPUs that NVML shows. Errors: PowerError: there is no driver."""
    n = load()
    count = call(n, "the number of NVIDIA GPUs", n.nvmlDeviceGetCount)
    found: list[PowerDevice] = []
    for index in range(count):
        try:
            found.append(Nvidia(n, call(n, f"GPU {index}", n.nvmlDeviceGetHandleByIndex, index)))
        except DeviceError as error:
            if error.reason is not Reason.LOST:  # the others are still there
                raise
    return found


def open_nvidia(uuid: str) -> PowerDevice:
    """The GPU with this UUID; without one the only GPU there is. Errors: PowerError that names those there are."""
    n = load()
    if uuid:
        return Nvidia(n, call(n, f"there is no NVIDIA GPU {uuid!r}", n.nvmlDeviceGetHandleByUUID, uuid.encode()))
    found = all_nvidia()
    if len(found) != 1:
        names = ", ".join(f"{device.spec} ({device.capabilities().name})" for device in found) or "none"
        raise PowerError(f'device "nvidia" stands for the only NVIDIA GPU, but there are {len(found)}: {names}')
    return found[0]
