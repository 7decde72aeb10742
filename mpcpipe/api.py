"""Training from Python: `mpcpipe.train(job)` does what `mpcpipe train JOB` does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mpcpipe.checkpoint.folder import resumable
from mpcpipe.errors import JobError, UsageError
from mpcpipe.job.load import from_dict, load, to_dict
from mpcpipe.job.present import present_names
from mpcpipe.job.schema import Job
from mpcpipe.job.write import dumps, value
from mpcpipe.launch.machine import PartyOptions, run_local
from mpcpipe.launch.ranks import local_seating
from mpcpipe.launch.runs import merged, new_folder
from mpcpipe.runtime.events import Event


def train(
    job: Job | Path | str | Mapping[str, Any],
    *,
    on_event: Callable[[Event], None] | None = None,
    resume: Path | str | None = None,
    **tables: Mapping[str, Any],
) -> dict[str, Any]:
    """Run a job, every party as a process of this machine; returns what `mpcpipe train --json` writes.

    job: a job file, its tables as a dict, or a `Job`. tables: keys to change, by table, as in
    `train("examples/digits.toml", train={"epochs": 2})`. on_event: is given every event of every party
    (`mpcpipe.runtime.events`), for a progress bar say. resume: the folder of a run that was killed, to go on from its
    checkpoints. The result has two keys more: `run_folder`, where the job, the
    logs and the model are, and `clear_accuracy` where the job asks for the clear twin.
    Call it from the main thread: Ctrl-C stops all parties. Errors: those of `mpcpipe.errors`, as on the command line.
    """
    described = _described(job, tables)
    if described.parties.hosts:
        raise UsageError(
            "parties.hosts says that the parties are on machines of their own: start each with `mpcpipe train --party`"
        )
    if resume is not None:
        resumable(str(resume))
    described = _planned(described)
    folder = new_folder(described)
    file = folder / "job.toml"
    file.write_text(dumps(described), encoding="utf-8")
    options = PartyOptions(job=str(file), run_folder=str(folder), resume=None if resume is None else str(resume))
    reports = run_local(
        options, present_names(described), folder, on_event or (lambda event: None), local_seating(described)
    )
    result = merged(reports)
    result["run_folder"] = str(folder)
    if described.evaluate.clear_twin:
        from mpcpipe.runtime.clear import train_twin

        right, of = train_twin(described)
        result["clear_accuracy"] = right / of
    (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


def _planned(job: Job) -> Job:
    """The job with what it leaves to "auto" chosen for this machine."""
    if not job.pipeline.leaves_choice:
        return job
    from mpcpipe.runtime.planning import plan_here, planned

    return planned(job, plan_here(job))


def _described(job: Job | Path | str | Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> Job:
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise JobError(f"{name}: give a table, such as {name}={{...}}; single keys stand inside one")
    if isinstance(job, str | Path):
        changes = [f"{name}.{key}={value(inner)}" for name, table in tables.items() for key, inner in table.items()]
        return load(job, changes)
    if isinstance(job, Job):
        job = to_dict(job)
    given = {name: dict(table) for name, table in job.items()}
    for name, table in tables.items():
        given.setdefault(name, {}).update(table)
    return from_dict(given)
