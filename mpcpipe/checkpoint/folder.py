"""Where the checkpoints of a run are: in its folder, or where a link in it leads."""

from __future__ import annotations

from pathlib import Path

from mpcpipe.errors import CheckpointError
from mpcpipe.job.schema import Job

CHECKPOINTS = "checkpoints"
"""In a run folder: a folder a party, or a link to where they are."""


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
