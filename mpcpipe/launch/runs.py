"""What every run has, whoever started it: a folder of its own, and one result from all parties' reports."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from mpcpipe.errors import UsageError
from mpcpipe.job.schema import Job


def new_folder(job: Job) -> Path:
    """A new folder for a run of `job`, for its user only. UsageError if it cannot be made."""
    name = f"{datetime.now().strftime('%Y%m%d-%H%M%S')}-{job.name}-{secrets.token_hex(2)}"
    folder = Path(job.run.output) / name
    try:
        folder.mkdir(parents=True, mode=0o700)
    except OSError as error:
        raise UsageError(f"run.output: {folder} cannot be made: {error.strerror}") from error
    return folder


def merged(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first party's report, with what only another one knows: the accuracy of a model that was revealed to it."""
    result = dict(reports[0])
    result["origin_unix_s"] = [report["origin_unix_s"] for report in reports]
    known = [report for report in reports if report["accuracy"] is not None]
    if known:
        result["accuracy"], result["right"] = known[0]["accuracy"], known[0]["right"]
    return result
