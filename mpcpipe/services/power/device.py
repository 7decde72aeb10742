"""A GPU as the power service sees it: what it can do, what it reads, what it takes, and how it becomes what it was.

One file a vendor implements `PowerDevice`. A device observes wherever it can; whatever it cannot do stands in its
`Capabilities`, one sentence for each thing, with the reason.
"""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from mpcpipe.errors import PowerError
from mpcpipe.services.power.setting import Setting

T = TypeVar("T")


class Reason(Enum):
    """Why a device refuses something."""

    PERMISSION = "permission"
    UNSUPPORTED = "unsupported"
    ARGUMENT = "argument"
    SHARED = "shared"
    MISSING = "missing"
    LOST = "lost"
    BUSY = "busy"
    FAULT = "fault"


class DeviceError(PowerError):
    """A device cannot do what was asked of it. `reason` tells whether there is any use in asking again."""

    def __init__(self, message: str, reason: Reason) -> None:
        super().__init__(message)
        self.reason = reason

    @property
    def lasting(self) -> bool:
        """It will be no different next time: such a knob is left alone from now on."""
        return self.reason not in (Reason.ARGUMENT, Reason.BUSY, Reason.FAULT)


Codes = Mapping[int, tuple[Reason, str]]
"""A vendor's codes: what they mean for us, and in words. Any other is a fault."""


def refusal(what: str, library: str, code: int, codes: Codes, unknown: str) -> DeviceError:
    """A vendor's error as ours; the sentence begins with `what`. unknown: what to say of a code that is not listed."""
    reason, why = codes.get(code, (Reason.FAULT, unknown))
    return DeviceError(f"{what}: {why} ({library} error {code})", reason)


def unless_lost(function: Callable[[], T]) -> T | None:
    """None for what a device does not tell. A lost GPU is raised."""
    try:
        return function()
    except DeviceError as error:
        if error.reason is Reason.LOST:
            raise
        return None


KNOBS = {
    "sm": "the clock of the multiprocessors",
    "memory": "the memory clock",
    "limit": "the power limit",
}
"""What can be set, by its short name."""


@dataclass(frozen=True)
class Cannot:
    """Something that cannot be done on this device, and the sentence that says why. what: a knob, or what is read."""

    what: str
    why: str


def no_choice(name: str, knob: str, clocks: Collection[int]) -> Cannot | None:
    """Why a clock of these cannot be chosen, if it cannot."""
    if len(clocks) > 1:
        return None
    why = "there is one, so there is nothing to set" if clocks else "they cannot be listed, so none is set"
    return Cannot(knob, f"{name}: {KNOBS[knob]}: {why}")


@dataclass(frozen=True)
class Capabilities:
    """What a device is and can do.

    sm_clocks_mhz, memory_clocks_mhz: that it can be locked to, rising; empty: unknown. limit_w: the lowest and highest
    power limit. knobs: those that can be set, as far as is known before trying. energy_counter: it counts joules
    itself. simulated: there is no such GPU. cannot: everything else, with reasons.
    """

    uuid: str
    name: str
    sm_clocks_mhz: tuple[int, ...] = ()
    memory_clocks_mhz: tuple[int, ...] = ()
    limit_w: tuple[float, float] | None = None
    default_limit_w: float | None = None
    knobs: frozenset[str] = frozenset()
    energy_counter: bool = False
    simulated: bool = False
    cannot: tuple[Cannot, ...] = ()

    def why_not(self, what: str) -> str | None:
        """The sentence about `what`, if it cannot be done."""
        return next((entry.why for entry in self.cannot if entry.what == what), None)


@dataclass(frozen=True)
class Sample:
    """One reading. Whatever the device does not tell is None, never 0.

    at_s: `time.perf_counter`. energy_j: of a counter that only grows, since the driver was loaded. power_average_s:
    what the power is a mean over; 0: instantaneous; None: unknown. limited_by: why the clocks are lower than asked.
    """

    at_s: float
    power_w: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    limit_w: float | None = None
    power_average_s: float | None = None
    limited_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Original:
    """What a device is put back to. sm_clock_mhz, memory_clock_mhz: None: the driver's own choice, which is also what
    a device gets whose earlier lock cannot be read. extra: what a vendor needs besides, as plain JSON values."""

    limit_w: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    extra: tuple[tuple[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "limit_w": self.limit_w,
            "sm_clock_mhz": self.sm_clock_mhz,
            "memory_clock_mhz": self.memory_clock_mhz,
            "extra": [list(pair) for pair in self.extra],
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Original:
        """The inverse. Errors: KeyError, TypeError, ValueError for what is none."""

        def number(name: str) -> float | None:
            return None if plain[name] is None else float(plain[name])

        sm, memory = number("sm_clock_mhz"), number("memory_clock_mhz")
        return cls(
            number("limit_w"),
            None if sm is None else int(sm),
            None if memory is None else int(memory),
            tuple((str(key), str(value)) for key, value in plain["extra"]),
        )


class PowerDevice(ABC):
    """One GPU. Methods may raise `DeviceError`; `read` does so only when the whole device is gone."""

    spec: str
    """How `mpcpipe.services.power.open.open_device` finds it again, such as "nvidia:GPU-5f3a..."."""
    outlives_process = True
    """Settings stay after this process has ended, so they need a journal and a watchdog."""

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What it can do; asked once and kept. Changes nothing."""

    @abstractmethod
    def read(self) -> Sample:
        """What it does now."""

    @abstractmethod
    def original(self) -> Original:
        """What `restore` is to bring back: read before the first write."""

    @abstractmethod
    def set_knob(self, knob: str, value: float | None) -> None:
        """Set one knob: a clock in MHz or a limit in W. None gives it back to the driver."""

    def apply(self, setting: Setting, before: Setting | None = None) -> None:
        """Set what differs from `before` (None: nothing is known). Batch and partition are not the device's business.

        A memory clock goes first: it decides which clocks of the multiprocessors there are.
        """
        for knob, value in values_of(setting).items():
            if before is None:
                if value is not None:
                    self.set_knob(knob, value)
            elif value != values_of(before)[knob]:
                self.set_knob(knob, value)

    def restore(self, original: Original, knobs: Sequence[str] = tuple(KNOBS)) -> None:
        """Put back the knobs that were touched. Tries all of them, and raises the first failure at the end."""
        values = {"sm": original.sm_clock_mhz, "memory": original.memory_clock_mhz, "limit": original.limit_w}
        failed: DeviceError | None = None
        for knob in knobs:
            try:
                self.set_knob(knob, values[knob])
            except DeviceError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def close(self) -> None:  # noqa: B027  most have nothing to let go of
        """Let go of the vendor's library."""


def values_of(setting: Setting) -> dict[str, float | None]:
    """The device's part of a setting, by knob, in the order in which it is set."""
    return {"memory": setting.memory_clock_mhz, "limit": setting.power_limit_w, "sm": setting.sm_clock_mhz}


def supported(setting: Setting, can: Capabilities) -> Setting:
    """The setting itself, if the device has these clocks and limits. Errors: `DeviceError` that names the nearest."""
    for value, clocks, what in (
        (setting.sm_clock_mhz, can.sm_clocks_mhz, KNOBS["sm"]),
        (setting.memory_clock_mhz, can.memory_clocks_mhz, KNOBS["memory"]),
    ):
        if value is not None and clocks and value not in clocks:
            raise DeviceError(
                f"{can.name} has no {value} MHz for {what}; the nearest are {_around(clocks, value)}", Reason.ARGUMENT
            )
    limit_w = setting.power_limit_w
    if limit_w is not None and can.limit_w is not None and not can.limit_w[0] <= limit_w <= can.limit_w[1]:
        raise DeviceError(
            f"{can.name} takes power limits of {can.limit_w[0]:g} to {can.limit_w[1]:g} W, not {limit_w:g} W",
            Reason.ARGUMENT,
        )
    return setting


def _around(clocks: Sequence[int], wanted: float) -> str:
    at = bisect.bisect(clocks, wanted)
    return " and ".join(f"{clock}" for clock in clocks[max(0, at - 1) : at + 1])
