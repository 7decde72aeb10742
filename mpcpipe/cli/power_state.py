"""`mpcpipe power status` and `power restore`: the GPUs of this machine, and what an ended run has left on them."""

from __future__ import annotations

from typing import Any

import click

from mpcpipe.cli import console
from mpcpipe.cli.options import with_json
from mpcpipe.errors import PowerError


@click.command(epilog="Example:  mpcpipe power status     changes nothing")
@click.option("--device", metavar="NAME", help="Only this one, such as nvidia:GPU-5f3a... or zeusd:0.")
@with_json
def status(device: str | None, json_file: str | None) -> None:
    """What each GPU does, what can be set on it, what cannot and why, and who controls it. Changes nothing."""
    from mpcpipe.services.power.vendors import found_devices, open_device

    devices, notes = found_devices() if device is None else ([open_device(device)], [])
    left = _left()
    shown = []
    for found in devices:
        try:
            shown.append(_status(found, left))
        except PowerError as error:
            notes.append(str(error))
        finally:
            found.close()
    if json_file != "-":
        for one in shown:
            _show(one)
        for note in notes:
            console.note(note)
        for entry in left:
            if not entry["owner_lives"]:
                console.warning(_left_behind(entry))
    console.write_json(json_file, {"devices": shown, "journals": left, "notes": notes})


@click.command(epilog="Example:  mpcpipe power restore     after a run that was killed with its watchdog")
@click.option("--force", is_flag=True, help="Also where the process that set the clocks still runs.")
@with_json
def restore(force: bool, json_file: str | None) -> None:
    """Put every GPU back as its journal says it was. Does nothing to GPUs without one."""
    from mpcpipe.services.power.guard import restore_entry
    from mpcpipe.services.power.journal import Lock, journals, state_folder

    done, kept = [], []
    folder = state_folder()
    for journal in journals(folder):
        try:
            entry = journal.read()
            if entry is None:
                continue
            if entry.owner_lives and not force:
                kept.append(
                    f"{entry.name} is controlled by process {entry.pid}, which runs; --force restores it anyway"
                )
                continue
            lock = Lock(entry.uuid, folder)
            if not entry.owner_lives:
                lock.acquire()
            try:
                restore_entry(journal, entry)
            finally:
                lock.release()
            done.append(f"{entry.name} ({entry.uuid}): {', '.join(entry.touched) or 'nothing'} as before")
        except PowerError as error:
            kept.append(str(error))
    if json_file != "-":
        for line in done or (["no GPU was left changed"] if not kept else []):
            console.text(line)
        for line in kept:
            console.warning(line)
    console.write_json(json_file, {"restored": done, "kept": kept})
    if kept:
        raise PowerError(f"{len(kept)} of {len(done) + len(kept)} GPUs were not restored")


def _left() -> list[dict[str, Any]]:
    from mpcpipe.services.power.journal import journals, state_folder

    found: list[dict[str, Any]] = []
    for journal in journals(state_folder()):
        try:
            entry = journal.read()
        except PowerError as error:
            found.append({"file": str(journal.path), "error": str(error), "owner_lives": False})
            continue
        if entry is not None:
            found.append(
                {
                    "file": str(journal.path),
                    "uuid": entry.uuid,
                    "name": entry.name,
                    "pid": entry.pid,
                    "owner_lives": entry.owner_lives,
                    "touched": list(entry.touched),
                    "original": entry.original.to_dict(),
                }
            )
    return found


def _left_behind(entry: dict[str, Any]) -> str:
    if "error" in entry:
        return str(entry["error"])
    what = ", ".join(entry["touched"]) or "nothing"
    return (
        f"{entry['name']}: process {entry['pid']} has ended and left it changed ({what}); run `mpcpipe power restore`"
    )


def _status(device: Any, left: list[dict[str, Any]]) -> dict[str, Any]:
    can = device.capabilities()
    sample = device.read()
    owner = next((entry["pid"] for entry in left if entry.get("uuid") == can.uuid and entry["owner_lives"]), None)
    return {
        "device": device.spec,
        "name": can.name,
        "simulated": can.simulated,
        "power_w": sample.power_w,
        "energy_j": sample.energy_j,
        "sm_clock_mhz": sample.sm_clock_mhz,
        "memory_clock_mhz": sample.memory_clock_mhz,
        "temperature_c": sample.temperature_c,
        "limit_w": sample.limit_w,
        "limited_by": list(sample.limited_by),
        "sm_clocks_mhz": list(can.sm_clocks_mhz),
        "memory_clocks_mhz": list(can.memory_clocks_mhz),
        "limits_w": None if can.limit_w is None else list(can.limit_w),
        "may_be_set": sorted(can.knobs),
        "cannot": [entry.why for entry in can.cannot],
        "owner_pid": owner,
    }


def _show(one: dict[str, Any]) -> None:
    def value(number: float | None, unit: str) -> str:
        return "not known" if number is None else f"{number:g} {unit}"

    clocks, memory = one["sm_clocks_mhz"], one["memory_clocks_mhz"]
    rows = [
        ("GPU", f"{one['name']}  {one['device']}{'  (SIMULATED)' if one['simulated'] else ''}"),
        ("power", f"{value(one['power_w'], 'W')} of {value(one['limit_w'], 'W')}"),
        ("clocks", f"{value(one['sm_clock_mhz'], 'MHz')}, memory {value(one['memory_clock_mhz'], 'MHz')}"),
        ("temperature", value(one["temperature_c"], "C")),
        ("limited by", ", ".join(one["limited_by"]) or "nothing"),
        ("may be locked to", f"{clocks[0]} to {clocks[-1]} MHz in {len(clocks)} steps" if clocks else "not known"),
        ("  memory", ", ".join(map(str, memory)) + " MHz" if memory else "not known"),
        ("can be set", ", ".join(one["may_be_set"]) or "nothing"),
        ("controlled by", f"process {one['owner_pid']}" if one["owner_pid"] else "nobody here"),
    ]
    console.lines(rows)
    for sentence in one["cannot"]:
        console.note(sentence)
    console.blank()
