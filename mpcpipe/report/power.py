"""What the power service wrote down of each party: joules of steps, and its GPU's clocks and power over time.

power.PARTY.jsonl: first {"device", "simulated", "policy"}, then {"at_s", "power_w", "sm_clock_mhz", ...} a few times a
second, {"step", "steps", "joules", "how"} for every step, and {"cap_w", "from_s"} for every cap ("cap_refused" for one
that could not be). What was not known is null, and stays so.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpcpipe.errors import UsageError
from mpcpipe.report import figures


@dataclass(frozen=True)
class Reading:
    """at_s: after the party began to train."""

    at_s: float
    power_w: float | None
    sm_clock_mhz: float | None


@dataclass(frozen=True)
class PartyPower:
    """One party's GPU. joules: of each step, by its number; None: not known. how: "counter" or "sampled". caps: (since
    when, watts), the first is the job's; None: no cap."""

    party: str
    device: str
    simulated: bool
    policy: str
    readings: tuple[Reading, ...]
    joules: dict[int, float | None]
    how: tuple[str, ...]
    caps: tuple[tuple[float, float | None], ...] = ()

    @property
    def known_j(self) -> list[float]:
        """Joules of the steps where they are known."""
        return [joules for joules in self.joules.values() if joules is not None]

    @property
    def mean_j(self) -> float | None:
        """Of a step."""
        return statistics.fmean(self.known_j) if self.known_j else None

    @property
    def mean_w(self) -> float | None:
        """Of the readings."""
        known = [reading.power_w for reading in self.readings if reading.power_w is not None]
        return statistics.fmean(known) if known else None

    @property
    def clocks_mhz(self) -> tuple[float, float] | None:
        """The lowest and the highest."""
        known = [reading.sm_clock_mhz for reading in self.readings if reading.sm_clock_mhz is not None]
        return (min(known), max(known)) if known else None

    def cap_at(self, at_s: float) -> float | None:
        """The cap in force then; None: none."""
        return next((cap_w for since_s, cap_w in reversed(self.caps) if since_s <= at_s), None)

    @property
    def cap_words(self) -> tuple[str, ...]:
        """What it was, and each change: `230 W`, `130 W from 12.0 s`, `none from 40.0 s`."""
        changed = [cap for number, cap in enumerate(self.caps) if number == 0 or cap[1] != self.caps[number - 1][1]]
        return tuple(
            f"{'none' if cap_w is None else f'{cap_w:g} W'}{f' from {figures.seconds(since_s)}' if number else ''}"
            for number, (since_s, cap_w) in enumerate(changed)
        ) or ("none",)

    def caps_between(self, begin_s: float, end_s: float) -> tuple[str, ...]:
        """In force in this time, one after the other."""
        found = [self.cap_at(begin_s), *(cap_w for since_s, cap_w in self.caps if begin_s < since_s < end_s)]
        return tuple("none" if cap_w is None else f"{cap_w:g} W" for cap_w in found)

    @property
    def above(self) -> float | None:
        """The share of the readings under a cap that are above it; None: there are none."""
        under = [
            (reading.power_w, cap_w)
            for reading in self.readings
            if reading.power_w is not None and (cap_w := self.cap_at(reading.at_s)) is not None
        ]
        return sum(power_w > cap_w for power_w, cap_w in under) / len(under) if under else None

    def between(self, begin_s: float, end_s: float) -> list[Reading]:
        """Readings with a clock in this time, and the last one before it."""
        known = [reading for reading in self.readings if reading.sm_clock_mhz is not None]
        before = [reading for reading in known if reading.at_s <= begin_s][-1:]
        return before + [reading for reading in known if begin_s < reading.at_s <= end_s]


def read_power(folder: Path, parties: Sequence[str]) -> tuple[PartyPower, ...]:
    """Of the parties that had the service. A damaged line is a UsageError; a last one that is cut off is left out."""
    found = []
    for party in parties:
        file = folder / f"power.{party}.jsonl"
        if file.is_file():
            found.append(_read(file, party))
    return tuple(found)


def _read(file: Path, party: str) -> PartyPower:
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    head: dict[str, Any] = {}
    readings: list[Reading] = []
    joules: dict[int, float | None] = {}
    how: set[str] = set()
    caps: list[tuple[float, float | None]] = []
    for number, line in enumerate(lines, 1):
        try:
            plain = json.loads(line)
            if "device" in plain:
                head = plain
            elif "at_s" in plain:
                readings.append(
                    Reading(float(plain["at_s"]), _number(plain["power_w"]), _number(plain["sm_clock_mhz"]))
                )
            elif "cap_w" in plain:
                caps.append((float(plain["from_s"]), _number(plain["cap_w"])))
            elif "cap_refused" not in plain:
                for step in range(int(plain["step"]) - int(plain["steps"]) + 1, int(plain["step"]) + 1):
                    joules[step] = _number(plain["joules"])
                how |= {str(plain["how"])} if plain["how"] else set()
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break  # the disk was full, or the power went
            raise UsageError(f"{file}, line {number}: {line[:60]!r} is not of the power service: {error}") from error
    return PartyPower(
        party,
        str(head.get("device", "a GPU")),
        bool(head.get("simulated", False)),
        str(head.get("policy", "?")),
        tuple(readings),
        joules,
        tuple(sorted(how)),
        tuple(caps),
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
