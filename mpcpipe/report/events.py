"""A run folder, read: the result, every party's events, the job, and the plan if there was one.

runs/20260131-101500-digits-1f2e/
    result.json             what `mpcpipe train --json` writes
    events.PARTY.jsonl      a line for each action of each worker
    job.toml                the job, without its owners' own affairs
    plan.json               only where a plan was made
    power.PARTY.jsonl       only where the power service ran
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from mpcpipe.errors import MpcpipeError, UsageError
from mpcpipe.job.load import load
from mpcpipe.job.schema import Job
from mpcpipe.report.pieces import IDLE, WAITING, Piece, Row
from mpcpipe.report.power import PartyPower, read_power

_EVENTS = re.compile(r"events\.(.+)\.jsonl")
_NEEDED = {
    "step_s": float,
    "steps_s": list,
    "losses": list,
    "sent_bytes_per_step": list,
    "rounds_per_step": float,
    "compute_s": list,
    "wait_s": list,
    "idle_s": list,
    "peak_rss_bytes": list,
    "reveals": list,
    "protocol": str,
}


@dataclass(frozen=True)
class Event:
    """One action, or several updates side by side, of one worker. Times in seconds after the party began to train.

    wait_s: for other parties, of which `waits` are the noticeable ones; idle_s, at its beginning: for other workers.
    sent_bytes: payload, to all parties; None in runs that did not write it down.
    """

    step: int
    worker: str
    action: str
    begin_s: float
    end_s: float
    wait_s: float
    idle_s: float
    waits: tuple[tuple[float, float], ...] = ()
    sent_bytes: int | None = None

    @property
    def kind(self) -> str:
        """F, B, I, W or U."""
        return next(letter for letter in self.action if letter.isalpha())

    @property
    def compute_s(self) -> float:
        """What is left of its time."""
        return max(0.0, self.end_s - self.begin_s - self.wait_s - self.idle_s)

    def pieces(self) -> tuple[Piece, ...]:
        """Idle, then computing and waiting in turn."""
        out = []
        at = min(self.end_s, self.begin_s + self.idle_s)
        if at > self.begin_s:
            out.append(Piece(self.begin_s, at, IDLE))
        for begin_s, end_s in self.waits:
            if begin_s > at:
                out.append(Piece(at, begin_s, self.kind))
            out.append(Piece(max(at, begin_s), end_s, WAITING))
            at = end_s
        if self.end_s > at:
            out.append(Piece(at, self.end_s, self.kind))
        return tuple(out)


@dataclass(frozen=True)
class PartyEvents:
    """One party's events, in the order of its file. origin_s: when its clock was 0, on the clock of the first party."""

    party: str
    events: tuple[Event, ...]
    origin_s: float = 0.0

    @cached_property
    def workers(self) -> tuple[str, ...]:
        """Names of the workers, in order."""
        return tuple(sorted({event.worker for event in self.events}, key=worker_key))

    @cached_property
    def by_step(self) -> dict[int, list[Event]]:
        """The events of every step, in order of the steps."""
        found: dict[int, list[Event]] = {}
        for event in sorted(self.events, key=lambda event: event.step):
            found.setdefault(event.step, []).append(event)
        return found

    def of(self, step: int) -> Sequence[Event]:
        """The events of one step."""
        return self.by_step.get(step, ())

    def rows(self, step: int) -> tuple[Row, ...]:
        """A row a worker, with what it did in this step, on the clock of the first party."""
        found: dict[str, list[Piece]] = {worker: [] for worker in self.workers}
        for event in self.of(step):
            found[event.worker] += (
                Piece(p.begin_s + self.origin_s, p.end_s + self.origin_s, p.sign) for p in event.pieces()
            )
        return tuple(Row(worker, tuple(pieces)) for worker, pieces in found.items())


@dataclass(frozen=True)
class Run:
    """A finished run. plan_text: plan.json. power: of the parties that had the power service. notes: what is missing or
    damaged, a sentence each."""

    folder: Path
    result: dict[str, Any]
    parties: tuple[PartyEvents, ...]
    job: Job | None = None
    plan_text: str | None = None
    notes: tuple[str, ...] = ()
    power: tuple[PartyPower, ...] = ()

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that have events of their own; steps that ran into each other are under the last one's number."""
        return tuple(sorted({step for party in self.parties for step in party.by_step}))

    @property
    def names(self) -> tuple[str, ...]:
        """The parties' names, in the job's order where that is known."""
        return tuple(party.party for party in self.parties)

    def span_of(self, step: int) -> tuple[float, float]:
        """When the step began at the first worker, and ended at the last one, of all parties."""
        own = [(event, party.origin_s) for party in self.parties for event in party.of(step)]
        begin_s = min((event.begin_s + origin_s for event, origin_s in own), default=0.0)
        return begin_s, max((event.end_s + origin_s for event, origin_s in own), default=0.0)


def newest(root: Path) -> Path:
    """The newest finished run folder in `root`."""
    if not root.is_dir():
        raise UsageError(f"there is no folder {root} here; say which run to report: mpcpipe report FOLDER")
    found = [path for path in root.iterdir() if (path / "result.json").is_file()]
    if not found:
        raise UsageError(f"{root} has no finished run; train first (mpcpipe train JOB), or say which: report FOLDER")
    return max(found, key=lambda path: ((path / "result.json").stat().st_mtime, path.name))


def read_run(folder: Path) -> Run:
    """Everything in a run folder. UsageError: it is no run folder, the run has not finished, or a file is damaged."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; a run's folder has result.json in it, such as those in runs/")
    files = {found[1]: path for path in folder.iterdir() if (found := _EVENTS.fullmatch(path.name))}
    result_file = folder / "result.json"
    if not result_file.is_file():
        if files or any(folder.glob("*.log")):
            raise UsageError(f"{folder}: the run has not finished, or failed (its *.log say which): no result.json")
        raise UsageError(f"{folder} is not a run's folder: it has no result.json; `train` makes them in runs/")
    result = _result(result_file)
    notes = [] if files else ["no events: the folder has no events.PARTY.jsonl, so there are no timelines"]
    job = _job(folder, notes)
    parties = []
    for number, name in enumerate(_ordered(list(files), job)):
        events, cut = read_events(files[name])
        if cut:
            notes.append(f"the last line of {files[name].name} is cut off, and left out")
        parties.append(PartyEvents(name, events, _origin(result, number)))
    power = read_power(folder, [party.party for party in parties])
    return Run(folder, result, tuple(parties), job, _text(folder / "plan.json"), tuple(notes), power)


def read_events(file: Path) -> tuple[tuple[Event, ...], bool]:
    """Events of one party, and whether the last line is cut off. Another damaged line is a UsageError."""
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
    whole, rest = lines[:-1], lines[-1]
    events, cut = [], bool(rest)
    for number, line in enumerate(whole, 1):
        try:
            events.append(_event(json.loads(line)))
        except (ValueError, KeyError, TypeError, StopIteration) as error:
            if number == len(whole) and not rest:
                cut = True  # the disk was full, or the power went
                break
            raise UsageError(f"{file}, line {number}: {line[:60]!r} is no event of a run: {error}") from error
    return tuple(events), cut


def worker_key(name: str) -> tuple[list[int], int]:
    """Sorts `0.0`, `0+2.1`, `10.0` by stage, then slot."""
    stages, _, slot = name.partition(".")
    return [int(stage) for stage in stages.split("+")], int(slot or 0)


def _event(plain: dict[str, Any]) -> Event:
    begin_s, end_s, wait_s, idle_s = (float(plain[key]) for key in ("begin_s", "end_s", "wait_s", "idle_s"))
    waits = tuple((float(begin_s), float(end_s)) for begin_s, end_s in plain["waits"])
    sent = plain.get("sent_bytes")
    sent_bytes = None if sent is None else int(sent)
    worker, action = str(plain["worker"]), str(plain["action"])
    event = Event(int(plain["step"]), worker, action, begin_s, end_s, wait_s, idle_s, waits, sent_bytes)
    if not math.isfinite(end_s - begin_s + wait_s + idle_s) or end_s < begin_s:
        raise ValueError(f"it ends at {end_s} s and begins at {begin_s} s")
    if any(after[0] < before[1] for before, after in pairwise(waits)):
        raise ValueError("its waits are out of order")
    worker_key(event.worker)
    if event.kind not in "FBIWU":
        raise ValueError(f"{event.action!r} is no action")
    return event


def _result(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{file} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{file} is not the result of a run: it must be an object")
    for key, kind in _NEEDED.items():
        value = found.get(key)
        if not isinstance(value, (int, float) if kind is float else kind):
            raise UsageError(f"{file} is not the result of a run: {key!r} is {value!r}")
    return found


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error


def _job(folder: Path, notes: list[str]) -> Job | None:
    """The job; None, and a note, where it is not there or of another version."""
    try:
        return load(folder / "job.toml")
    except MpcpipeError as error:
        notes.append(f"the job is not known, nor what its layers cost: {error}")
        return None


def _ordered(names: list[str], job: Job | None) -> list[str]:
    """In the job's order, where that is known."""
    order = job.parties.names if job is not None else ()
    return sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name))


def _origin(result: dict[str, Any], number: int) -> float:
    """When a party began, after the first one did; 0 where only one party's events are here."""
    origins = result.get("origin_unix_s")
    if isinstance(origins, list) and number < len(origins):
        return float(origins[number]) - float(origins[0])
    return 0.0
