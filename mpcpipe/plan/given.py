"""The schedule that a job gives: by name, or in a file. Without torch, which starting a job does not wait for."""

from __future__ import annotations

from pathlib import Path

from mpcpipe.errors import PlanError
from mpcpipe.job.schema import Job
from mpcpipe.plan.actions import Schedule, loads
from mpcpipe.plan.check import validate
from mpcpipe.plan.schedule import build


def given_schedule(job: Job) -> Schedule:
    """The schedule of one step that the job's [pipeline] asks for. Whether its layers exist is checked elsewhere."""
    p = job.pipeline
    if p.file is not None:
        return from_file(Path(p.file), len(p.stages), p.microbatches)
    slots = p.slots or (1,) * len(p.stages)
    if len(slots) != len(p.stages):
        raise PlanError(f"pipeline.slots has {len(slots)} numbers; pipeline.stages makes {len(p.stages)} stages")
    schedule = build(p.schedule, slots, p.microbatches)
    validate(schedule)
    return schedule


def from_file(path: Path, stages: int, microbatches: int) -> Schedule:
    """The schedule in a file, which must be for so many stages and micro-batches. Errors: PlanError."""
    schedule = read_schedule(path)
    if not (stages and microbatches):
        raise PlanError(
            f"pipeline.file: {path} is for {schedule.stages} stages and {schedule.microbatches} micro-batches, and "
            '"auto" leaves open which: say pipeline.stages and pipeline.microbatches'
        )
    if (schedule.stages, schedule.microbatches) != (stages, microbatches):
        raise PlanError(
            f"pipeline.file: {path} is for {schedule.stages} stages and {schedule.microbatches} micro-batches; "
            f"the job has {stages} and {microbatches}"
        )
    return schedule


def read_schedule(path: Path) -> Schedule:
    """The schedule in a file, which can be carried out. Errors: PlanError, which names the file."""
    try:
        schedule = loads(path.read_text(encoding="utf-8"))
        validate(schedule)
    except OSError as error:
        raise PlanError(f"pipeline.file: {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"pipeline.file: {path} is no text") from error
    except PlanError as error:
        raise PlanError(f"pipeline.file: {path}: {error}") from error
    return schedule
