"""`mpcpipe power cap`: another power cap for a run that goes on."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from mpcpipe.cli import console
from mpcpipe.cli.options import with_json
from mpcpipe.errors import PowerError, UsageError

ANSWER_S = 10.0
LOOK_S = 0.05


@click.command(
    context_settings={"ignore_unknown_options": True},  # -5 is a number that is wrong, not an option
    epilog="Example:  mpcpipe power cap 150     for the newest run in runs/ that goes on;  `off` takes the cap away",
)
@click.argument("watts")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--party", metavar="NAME", help="Only this party; else all whose power service writes into this folder.")
@with_json
def cap(watts: str, run: Path | None, party: str | None, json_file: str | None) -> None:
    """From now on the GPU of the run whose folder is RUN draws no more than WATTS.

    The run must have a power service (services.power.policy). It is told through a file in its folder, and answers.
    """
    from mpcpipe.services.power.wanted import cap_of, want

    console.check_json(json_file)
    cap_w = cap_of(watts)
    folder = run if run is not None else _newest(Path("runs"))
    parties = _parties(folder, party)
    sizes = {name: _log(folder, name).stat().st_size for name in parties}
    asked = {name: want(folder, name, cap_w).asked for name in parties}
    answers = _answers(folder, asked, sizes)
    said = {name: _sentence(name, cap_w, answers.get(name)) for name in parties}
    if json_file != "-":
        for name in parties:
            (console.text if "cap_w" in answers.get(name, {}) else console.warning)(said[name])
    console.write_json(json_file, {"run": str(folder), "cap_w": cap_w, "parties": said})
    failed = [name for name in parties if "cap_w" not in answers.get(name, {})]
    if failed:
        raise PowerError(f"the cap of {' and '.join(failed)} is not {watts.strip()}: see above")


def _sentence(party: str, cap_w: float | None, answer: dict[str, Any] | None) -> str:
    if answer is None:
        return (
            f"{party} has not answered within {ANSWER_S:g} s: its run has ended, or its power service has lost the "
            "GPU; if it goes on, the cap counts from then"
        )
    if "cap_w" not in answer:
        return f"{party}: {answer['cap_refused']}"
    return f"{party}: {'no cap' if cap_w is None else f'{cap_w:g} W'} from now on"


def _answers(folder: Path, asked: dict[str, int], sizes: dict[str, int]) -> dict[str, dict[str, Any]]:
    """Of each party the line with which its service answers; without those that say nothing."""
    found: dict[str, dict[str, Any]] = {}
    ends_at_s = time.monotonic() + ANSWER_S
    while len(found) < len(asked) and time.monotonic() < ends_at_s:
        for party in asked.keys() - found.keys():
            with _log(folder, party).open("rb") as file:
                file.seek(sizes[party])
                lines = file.read().split(b"\n")[:-1]
            for line in lines:
                plain = json.loads(line)
                if plain.get("asked") == asked[party]:
                    found[party] = plain
        if len(found) < len(asked):
            time.sleep(LOOK_S)
    return found


def _log(folder: Path, party: str) -> Path:
    return folder / f"power.{party}.jsonl"


def _parties(folder: Path, party: str | None) -> list[str]:
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; a run's folder is in runs/ of where it was started")
    if (folder / "result.json").is_file():
        raise PowerError(f"{folder}: this run has ended; a cap for the next one is services.power.cap_w in its job")
    known = sorted(file.name[len("power.") : -len(".jsonl")] for file in folder.glob("power.*.jsonl"))
    if not known:
        raise PowerError(
            f"{folder}: no power service runs here, so nobody would keep a cap; services.power.policy in the job "
            "starts one (static leaves the clocks to the driver where there is no cap)"
        )
    if party is not None and party not in known:
        raise UsageError(f"--party {party}: in {folder} there is {', '.join(known)}")
    return known if party is None else [party]


def _newest(root: Path) -> Path:
    found = [file.parent for file in root.glob("*/power.*.jsonl") if not (file.parent / "result.json").is_file()]
    if not found:
        raise UsageError(f"no run with a power service goes on in {root}; say which: mpcpipe power cap WATTS RUN")
    return max(found, key=lambda folder: folder.stat().st_mtime)
