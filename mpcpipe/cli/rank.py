"""`mpcpipe train` as one of the ranks that mpirun, torchrun or srun started."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import NoReturn

from mpcpipe.cli import console
from mpcpipe.cli.training import Drawn, banner, table
from mpcpipe.errors import MpcpipeError
from mpcpipe.job.public import public_text
from mpcpipe.job.schema import Job
from mpcpipe.launch.addresses import addresses_of
from mpcpipe.launch.environment import Launched
from mpcpipe.launch.identity import protection
from mpcpipe.launch.leave import leave
from mpcpipe.launch.machine import PartyOptions


def needs_nobody(found: Launched, job: Job, hosts: str | None) -> bool:
    """Whether a rank can be a party without meeting the others first: all addresses are known, and mpi4py is not
    here."""
    known = bool(hosts or job.parties.hosts) and found.world == len(job.parties.names)
    plain = job.link.kind == "tcp" and job.pipeline.workers == "threads" and not job.pipeline.leaves_choice
    return found.by == "mpirun" and known and plain and find_spec("mpi4py") is None


def as_rank(
    found: Launched, job: Job, changes: list[str], options: PartyOptions, hosts: str | None, json_file: str | None
) -> NoReturn:
    """Do this rank's part, and end the process.

    By its end and not by `return`: after a failure, threads may wait in MPI or torch for peers that are gone.
    """
    # Warnings of torch's C++ about names of machines are of no use to who reads the output.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from mpcpipe.launch.rank import Alike  # imports torch

    code = 0
    try:
        _run(found, job, changes, options, hosts, json_file)
    except Alike as alike:
        alike.say(console.error)
        code = alike.error.exit_code
    except MpcpipeError as error:
        console.error(error, f"rank {found.rank}")
        code = error.exit_code
    except BaseException:
        traceback.print_exc()
        code = 1
    leave(code)


def _run(
    found: Launched, job: Job, changes: list[str], options: PartyOptions, hosts: str | None, json_file: str | None
) -> None:
    from mpcpipe.launch.rank import join, stopped_by, work  # imports torch

    given = addresses_of(job, hosts) if hosts or job.parties.hosts else None
    with stopped_by(found):
        company = join(found, job, changes, os.environ, _plan)
        job, seat, folder = company.job, company.seat, company.folder
        leads = company.meeting.rank == 0
        if leads:
            (folder / "job.toml").write_text(public_text(job), encoding="utf-8")
            console.lines([(found.by, line) for line in company.seating.table()], stderr=True)
            banner(job, _link(job, company.hosts(given)), folder)
        # Rank 0 speaks for all, so what others see of the same events is not drawn.
        drawn = Drawn(job, 0 if leads else -1)
        try:
            options = replace(options, overrides=company.changes)
            report = work(company, options, drawn, given)
        finally:
            drawn.close()
    if not report:
        return
    name = job.parties.names[seat.party]
    report["insecure_keys"] = options.insecure_keys is not None
    console.write_json(str(folder / ("result.json" if leads else f"result.{name}.json")), report)
    if leads:
        table(job, report, folder)
        console.write_json(json_file, report)
    elif job.evaluate.how == "revealed" and report.get("accuracy") is not None:
        right, of = report["right"]
        console.note(f"{name}, who got the model: {right} of {of} of its test rows right ({report['accuracy']:.2%})")


def _link(job: Job, hosts: Sequence[str]) -> str:
    if job.link.kind == "tcp":
        return f"TCP, {protection(job, hosts)}"
    over = {"mpi": "MPI", "torch": "torch.distributed"}[job.link.kind]
    return f"{over}, NOT ENCRYPTED: for one machine, or a network that you trust"


def _plan(job: Job, beside: int) -> list[str]:
    from mpcpipe.plan.net import Net
    from mpcpipe.runtime.planning import overrides_of, plan_job

    console.note("planning the pipeline (measures this machine the first time)")
    plan = plan_job(job, Net(), beside)
    console.note(plan.why)
    return overrides_of(plan)
