"""Hygon DCUs through the command line program hy-smi. Its output is parsed as recorded; no DCU was there to try it.

A DCU has levels of its clock rather than free ones: `hy-smi --setsclk 6 -d 0` locks level 6 and makes the performance
level "manual"; `--setperflevel auto` gives it back. A call takes a good part of a second, so nothing is asked twice.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence

from mpcpipe.errors import PowerError
from mpcpipe.services.power.device import (
    KNOBS,
    Cannot,
    Capabilities,
    DeviceError,
    Original,
    PowerDevice,
    Reason,
    Sample,
    no_choice,
)

DEADLINE_S = 10.0
_PLACES = ("hy-smi", "/opt/hyhal/bin/hy-smi", "/opt/dtk/bin/hy-smi")
_LEVEL = re.compile(r"(\d+):\s*(\d+)\s*M[hH]z(\s*\*)?")
_WATTS = re.compile(r"(-?\d+(?:\.\d+)?)\s*[WC%]?")

Call = Callable[[Sequence[str]], str]


def overview(text: str) -> dict[int, dict[str, str]]:
    """`hy-smi` without arguments: a row a device, by number; columns by their heads ("AvgPwr", "Temp", "Perf")."""
    heads: list[str] = []
    rows: dict[int, dict[str, str]] = {}
    for line in text.splitlines():
        words = line.split()
        if words[:1] in (["DCU"], ["HCU"]):
            heads = words
        elif heads and words and words[0].isdigit() and len(words) >= len(heads) - 1:
            rows[int(words[0])] = dict(zip(heads[1:], words[1:], strict=False))
    return rows


def levels(text: str, kind: str, device: int) -> tuple[dict[int, int], int | None]:
    """`hy-smi --showclkfrq`: clocks in MHz by level of `kind` ("sclk", "mclk"), and the level in force."""
    found: dict[int, int] = {}
    current = None
    inside = False
    for line in text.splitlines():
        prefix, _, rest = line.partition(":")
        number = re.search(r"\[(\d+)\]", prefix)
        if number is None or int(number[1]) != device:
            continue
        if "Supported" in rest:
            inside = f"Supported {kind} " in rest
        elif inside and (level := _LEVEL.search(rest)):
            found[int(level[1])] = int(level[2])
            if level[3]:
                current = int(level[1])
    return found, current


def number_of(text: str | None) -> float | None:
    """`157.0W`, `40.0C`; None for "N/A" or what is not there."""
    match = _WATTS.fullmatch(text or "")
    return float(match[1]) if match else None


class Hygon(PowerDevice):
    """One DCU. `call` runs hy-smi with arguments and returns its output."""

    def __init__(self, number: int, call: Call) -> None:
        self.number, self._smi = number, call
        self.spec = f"hygon:{number}"
        self._can: Capabilities | None = None
        self._levels: dict[str, dict[int, int]] = {}

    def capabilities(self) -> Capabilities:
        """Its levels, and what the overview says."""
        if self._can is not None:
            return self._can
        text = self._smi(["--showclkfrq", "-d", str(self.number)])
        cannot, knobs = [], set()
        for knob, kind in (("sm", "sclk"), ("memory", "mclk")):
            found, _ = levels(text, kind, self.number)
            self._levels[knob] = found
            if (found_none := no_choice(f"DCU {self.number}", knob, found)) is None:
                knobs.add(knob)
            else:
                cannot.append(found_none)
        cannot += [
            Cannot("limit", f"DCU {self.number}: its power limit is left alone: hy-smi has no reset for it"),
            Cannot(
                "energy",
                f"DCU {self.number}: hy-smi counts no joules; its energy is summed up from samples of its power",
            ),
        ]
        row = self._row()
        cap_w = number_of(row.get("PwrCap"))
        self._can = Capabilities(
            f"DCU-{self.number}",
            f"DCU {self.number}",
            tuple(sorted(set(self._levels["sm"].values()))),
            tuple(sorted(set(self._levels["memory"].values()))),
            default_limit_w=cap_w,
            knobs=frozenset(knobs),
            cannot=tuple(cannot),
        )
        return self._can

    def _row(self) -> dict[str, str]:
        rows = overview(self._smi([]))
        if self.number not in rows:
            there = ", ".join(map(str, rows)) or "none"
            raise DeviceError(f"hy-smi shows no DCU {self.number}; there are: {there}", Reason.LOST)
        return rows[self.number]

    def read(self) -> Sample:
        """Two calls of hy-smi."""
        at_s = time.perf_counter()
        row = self._row()
        text = self._smi(["--showclkfrq", "-d", str(self.number)])
        clocks: dict[str, float | None] = {}
        for knob, kind in (("sm", "sclk"), ("memory", "mclk")):
            found, current = levels(text, kind, self.number)
            clocks[knob] = None if current is None else float(found[current])
        return Sample(
            at_s,
            number_of(row.get("AvgPwr")),
            None,
            clocks["sm"],
            clocks["memory"],
            number_of(row.get("Temp")),
            number_of(row.get("PwrCap")),
        )

    def original(self) -> Original:
        """The performance level, and the levels in force if it is manual."""
        row = self._row()
        text = self._smi(["--showclkfrq", "-d", str(self.number)])
        locked: dict[str, int | None] = {"sm": None, "memory": None}
        if row.get("Perf") == "manual":
            for knob, kind in (("sm", "sclk"), ("memory", "mclk")):
                found, current = levels(text, kind, self.number)
                locked[knob] = None if current is None else found[current]
        return Original(None, locked["sm"], locked["memory"], (("Perf", row.get("Perf", "auto")),))

    def set_knob(self, knob: str, value: float | None) -> None:
        """By level; looked at afterwards, for the program may end well though the driver did not take it."""
        self.capabilities()
        device = ["-d", str(self.number)]
        if knob == "limit":
            raise DeviceError(self.capabilities().why_not("limit") or "", Reason.UNSUPPORTED)
        if value is None:
            self._smi(["--setperflevel", "auto", *device])
            return
        kind = "sclk" if knob == "sm" else "mclk"
        wanted = next((level for level, clock in self._levels[knob].items() if clock == value), None)
        if wanted is None:
            raise DeviceError(
                f"DCU {self.number} has no level of {value:g} MHz for {KNOBS[knob]}; it has "
                f"{', '.join(map(str, sorted(self._levels[knob].values())))}",
                Reason.ARGUMENT,
            )
        self._smi([f"--set{kind}", str(wanted), *device])
        _, current = levels(self._smi(["--showclkfrq", *device]), kind, self.number)
        if current != wanted:
            raise DeviceError(
                f"DCU {self.number}: hy-smi --set{kind} {wanted} ended well, but level {current} is in force; it needs "
                "the administrator (root, or a container with --privileged)",
                Reason.PERMISSION,
            )


def _run(words: Sequence[str]) -> str:
    program = next((found for place in _PLACES if (found := shutil.which(place))), None)
    if program is None:
        raise PowerError("no Hygon DCU can be reached: there is no program hy-smi on this machine")
    try:
        done = subprocess.run(  # noqa: S603
            [program, *words], capture_output=True, text=True, timeout=DEADLINE_S, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"hy-smi {' '.join(words)} did not answer within {DEADLINE_S:g} s", Reason.BUSY) from error
    said = done.stdout + done.stderr
    if "ermission denied" in said or "not permitted" in said:
        raise DeviceError(
            f"hy-smi {' '.join(words)}: only the administrator may do it (root, or a container with --privileged)",
            Reason.PERMISSION,
        )
    if done.returncode:
        last = said.strip().rpartition("\n")[2]
        raise DeviceError(f"hy-smi {' '.join(words)} failed with exit code {done.returncode}: {last}", Reason.FAULT)
    return done.stdout


def all_hygon(call: Call = _run) -> list[PowerDevice]:
    """All DCUs that hy-smi shows."""
    return [Hygon(number, call) for number in overview(call([]))]


def open_hygon(which: str, call: Call = _run) -> PowerDevice:
    """The DCU with this number; without one the only one there is."""
    numbers = list(overview(call([])))
    if not which and len(numbers) == 1:
        which = str(numbers[0])
    if not which.isdigit() or int(which) not in numbers:
        there = ", ".join(map(str, numbers)) or "none"
        raise PowerError(f'there is no DCU "{which}"; write hygon:N with one of: {there}')
    return Hygon(int(which), call)
