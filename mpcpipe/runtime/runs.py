"""What every run has, whoever started it: a folder of its own, and one result from all parties' reports."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from mpcpipe.errors import CheckpointError, UsageError
from mpcpipe.job.schema import Job

CHECKPOINTS = "checkpoints"
"""In a run folder: a folder a party, or a link to where they are."""


def new_folder(job: Job) -> Path:
    """A new folder for a run of `job`, for its user only. UsageError if it cannot be made."""
    name = f"{datetime.now().strftime('%Y%m%d-%H%M%S')}-{job.name}-{secrets.token_hex(2)}"
    folder = Path(job.run.output) / name
    try:
        folder.mkdir(parents=True, mode=0o700)
    except OSError as error:
        raise UsageError(f"run.output: {folder} cannot be made: {error.strerror}") from error
    return folder


def checkpoint_folder(job: Job, run_folder: Path, resume: str | None) -> Path:
    """Where the checkpoints of a run are, all parties' of this machine: made, or linked into the run folder.

    A run that resumes goes on in the folder of the run before it.
    """
    link = run_folder / CHECKPOINTS
    if resume is not None:
        target = resumable(resume)
    elif job.checkpoint.dir is not None:
        target = Path(job.checkpoint.dir).resolve() / run_folder.name
    else:
        link.mkdir(mode=0o700, exist_ok=True)
        return link
    try:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        link.symlink_to(target, target_is_directory=True)
    except FileExistsError:  # made by another party of this machine
        pass
    except OSError as error:
        raise CheckpointError(
            f"checkpoints cannot be kept in {target}: {error.strerror}; see checkpoint.dir"
        ) from error
    return target


def resumable(run_folder: str) -> Path:
    """The folder of a run's checkpoints. CheckpointError if it has none."""
    folder = Path(run_folder)
    if not folder.is_dir():
        raise CheckpointError(f"--resume {run_folder}: there is no such run folder; say the one that the run printed")
    if not (folder / CHECKPOINTS).is_dir():
        raise CheckpointError(
            f"--resume {run_folder}: it has no checkpoints; a job writes them only with checkpoint.every above 0"
        )
    return (folder / CHECKPOINTS).resolve()


def merged(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first party's report, with what only another one knows: the accuracy of a model that was revealed to it."""
    result = dict(reports[0])
    result["origin_unix_s"] = [report["origin_unix_s"] for report in reports]
    known = [report for report in reports if report["accuracy"] is not None]
    if known:
        result["accuracy"], result["right"] = known[0]["accuracy"], known[0]["right"]
    return result
