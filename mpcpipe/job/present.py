"""Who has a process in a run."""

from __future__ import annotations

from mpcpipe.job.schema import Job
from mpcpipe.protocol.registry import known_protocol


def present_names(job: Job) -> tuple[str, ...]:
    """The parties that have a process in a run of the job: all, or without the dealer if there is a store."""
    names = job.parties.names
    return names if job.protocol.store is None else names[: known_protocol(job.protocol.name).dealer]
