"""AMD GPUs through AMD SMI (the package amdsmi over the system's libamd_smi). Tried on recorded behaviour only.

Locks are ranges of the clock from and to the same value. There is no reset of one domain: the performance level AUTO
gives all clocks back to the driver. A limit is looked at afterwards, for the library may accept what it ignores.
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

CODES: Codes = {
    1: (Reason.ARGUMENT, "the driver takes no such value"),
    2: (Reason.UNSUPPORTED, "this GPU does not support it"),
    3: (Reason.UNSUPPORTED, "this version of AMD SMI does not have it"),
    8: (Reason.FAULT, "a driver file could not be read"),
    10: (Reason.PERMISSION, "only the administrator may do it: run as root or let the administrator set it"),
    30: (Reason.BUSY, "the GPU is busy"),
    31: (Reason.MISSING, "there is no such GPU"),
    32: (Reason.FAULT, "AMD SMI was not initialized"),
    34: (Reason.MISSING, "the amdgpu driver is not loaded"),
}
"""AMD SMI's."""


def load() -> Any:
    """AMD SMI, initialized. Errors: PowerError: the package, its library or the driver is missing."""
    try:
        amdsmi = importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError) as error:  # KeyError: it looks for its library along ROCM_PATH
        raise PowerError(
            "no AMD GPU can be reached: the package amdsmi or its library libamd_smi is missing; "
            "pip install 'mpcpipe[amd]' in the version of the installed ROCm"
        ) from error
    _call(amdsmi, "no AMD GPU can be reached", amdsmi.amdsmi_init)
    return amdsmi


def _call(amdsmi: Any, what: str, function: Callable[..., T], *arguments: Any) -> T:
    try:
        return function(*arguments)
    except amdsmi.AmdSmiException as error:
        code = int(error.get_error_code()) if hasattr(error, "get_error_code") else -1
        raise refusal(what, "AMD SMI", code, CODES, f"AMD SMI says: {error}") from error


def _number(value: Any) -> float | None:
    """What the library writes as "N/A" is not known."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


class Amd(PowerDevice):
    """One GPU by its handle."""

    def __init__(self, amdsmi: Any, handle: Any) -> None:
        self._a, self._handle = amdsmi, handle
        self.uuid = str(_call(amdsmi, "the UUID of a GPU", amdsmi.amdsmi_get_gpu_device_uuid, handle))
        self.spec = f"amd:{self.uuid}"
        asic = self._try(amdsmi.amdsmi_get_gpu_asic_info) or {}
        self.name = str(asic.get("market_name") or "an AMD GPU")
        self._can: Capabilities | None = None

    def _try(self, function: Callable[..., T], *arguments: Any) -> T | None:
        return unless_lost(lambda: _call(self._a, self.spec, function, self._handle, *arguments))

    def _kind(self, knob: str) -> Any:
        return self._a.AmdSmiClkType.GFX if knob == "sm" else self._a.AmdSmiClkType.MEM

    def capabilities(self) -> Capabilities:
        """Clocks as listed; a second die, which shows no power, is observed only."""
        if self._can is not None:
            return self._can
        a, cannot, knobs = self._a, [], set()
        clocks: dict[str, tuple[int, ...]] = {}
        for knob in ("sm", "memory"):
            found = self._try(a.amdsmi_get_clk_freq, self._kind(knob)) or {}
            listed = {round(hertz / 1e6) for hertz in found.get("frequency", ()) if hertz}
            clocks[knob] = tuple(sorted(listed))
            if (found_none := no_choice(self.name, knob, listed)) is None:
                knobs.add(knob)
            else:
                cannot.append(found_none)
        cap = self._try(a.amdsmi_get_power_cap_info, 0)
        limits = None if cap is None else (cap["min_power_cap"] / 1e6, cap["max_power_cap"] / 1e6)
        if limits is None or limits[1] <= 0:
            cannot.append(Cannot("limit", f"{self.name}: its power limits cannot be read, so none is set"))
            limits = None
        else:
            knobs.add("limit")
        counts = self._energy_j() is not None
        if not counts:
            cannot.append(Cannot("energy", f"{self.name}: it counts no joules; they are summed up from its power"))
        if self._power_w() is None:
            cannot.append(
                Cannot("control", f"{self.name} shows no power (as the second die of a card does): it is only observed")
            )
            knobs.clear()
        default_w = None if cap is None else float(cap.get("default_power_cap", cap["power_cap"])) / 1e6
        self._can = Capabilities(
            self.uuid,
            self.name,
            clocks["sm"],
            clocks["memory"],
            limits,
            default_w,
            frozenset(knobs),
            counts,
            cannot=tuple(cannot),
        )
        return self._can

    def _power_w(self) -> float | None:
        info = self._try(self._a.amdsmi_get_power_info) or {}
        names = ("current_socket_power", "socket_power", "average_socket_power")
        return next((found for name in names if (found := _number(info.get(name)))), None)

    def _energy_j(self) -> float | None:
        info = self._try(self._a.amdsmi_get_energy_count)
        if info is None:
            return None
        counted, unit_uj = _number(info.get("energy_accumulator")), _number(info.get("counter_resolution"))
        return counted * unit_uj / 1e6 if counted is not None and unit_uj is not None else None

    def _clock_mhz(self, knob: str) -> float | None:
        info = self._try(self._a.amdsmi_get_clock_info, self._kind(knob)) or {}
        return _number(info.get("clk", info.get("cur_clk")))

    def _limit_w(self) -> float | None:
        cap = self._try(self._a.amdsmi_get_power_cap_info, 0)
        return None if cap is None else float(cap["power_cap"]) / 1e6

    def read(self) -> Sample:
        """Power of the socket, averaged as the firmware does."""
        a = self._a
        at_s = time.perf_counter()
        power_w = self._power_w()
        hottest, now = a.AmdSmiTemperatureType.HOTSPOT, a.AmdSmiTemperatureMetric.CURRENT
        temperature = self._try(a.amdsmi_get_temp_metric, hottest, now)
        return Sample(
            at_s,
            power_w,
            self._energy_j(),
            self._clock_mhz("sm"),
            self._clock_mhz("memory"),
            _number(temperature),
            self._limit_w(),
        )

    def original(self) -> Original:
        """The limit and the performance level."""
        level = self._try(self._a.amdsmi_get_gpu_perf_level)
        return Original(self._limit_w(), extra=(("perf", str(level)),))

    def set_knob(self, knob: str, value: float | None) -> None:
        """A clock: a range of one value; its end: the level AUTO, for all clocks together."""
        a, words = self._a, f"{self.name}: {KNOBS[knob]} cannot be set"
        if knob == "limit":
            wanted = self.capabilities().default_limit_w if value is None else value
            if wanted is None:
                raise DeviceError(f"{words}: its own limit is not known", Reason.UNSUPPORTED)
            _call(a, words, a.amdsmi_set_power_cap, self._handle, 0, round(wanted * 1e6))
            in_force = self._limit_w()
            if in_force is not None and abs(in_force - wanted) > 1:
                why = f"AMD SMI took {wanted:g} W, but {in_force:g} W is in force"
                raise DeviceError(f"{words}: {why}", Reason.PERMISSION)
            return
        if value is None:
            _call(a, words, a.amdsmi_set_gpu_perf_level, self._handle, a.AmdSmiDevPerfLevel.AUTO)
            return
        clock = round(value)
        _call(a, words, a.amdsmi_set_gpu_clk_range, self._handle, clock, clock, self._kind(knob))

    def close(self) -> None:
        """Let go of the library."""
        try:
            self._a.amdsmi_shut_down()
        except self._a.AmdSmiException:
            return  # it was not there any more


def all_amd() -> list[PowerDevice]:
    """All GPUs that AMD SMI shows. Errors: PowerError: no package, no library, no driver."""
    a = load()
    return [Amd(a, handle) for handle in _call(a, "the list of AMD GPUs", a.amdsmi_get_processor_handles)]


def open_amd(uuid: str) -> PowerDevice:
    """The GPU with this UUID; without one the only one there is."""
    found = all_amd()
    chosen = [device for device in found if not uuid or device.spec == f"amd:{uuid}"]
    if len(chosen) != 1:
        names = ", ".join(device.spec for device in found) or "none"
        raise PowerError(f'device "amd{f":{uuid}" if uuid else ""}" is not one GPU; there are: {names}')
    return chosen[0]
