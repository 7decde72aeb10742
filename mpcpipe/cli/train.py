"""`mpcpipe train`: run a job, all parties here or one party of several machines."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mpcpipe.checkpoint.folder import resumable
from mpcpipe.cli import console
from mpcpipe.cli.options import all_overrides, party_number, with_job, with_json
from mpcpipe.cli.rank import as_rank, needs_nobody
from mpcpipe.cli.training import Drawn, banner, table
from mpcpipe.errors import UsageError
from mpcpipe.job.load import load
from mpcpipe.job.present import present_names
from mpcpipe.job.public import public_text
from mpcpipe.job.schema import Job
from mpcpipe.launch.addresses import addresses_of
from mpcpipe.launch.environment import launched
from mpcpipe.launch.identity import protection
from mpcpipe.launch.machine import PartyOptions, run_local, run_one
from mpcpipe.launch.ranks import local_seating
from mpcpipe.launch.runs import merged, new_folder

if TYPE_CHECKING:
    from mpcpipe.plan.plan import Plan


@click.command(epilog="Example:  mpcpipe train examples/digits.toml --set train.epochs=2 --json result.json")
@with_job
@with_json
@click.option("--steps", type=click.IntRange(1), help="Stop after so many steps.")
@click.option("--party", metavar="I", help="Be only this party (number or name); the others are started elsewhere.")
@click.option("--hosts", metavar="H0,H1,...", help="Where each party listens: HOST or HOST:PORT, in the job's order.")
@click.option(
    "--insecure-plaintext", is_flag=True, help="Let shares travel unencrypted between machines (trusted networks)."
)
@click.option(
    "--model-digest", is_flag=True, help="Open the trained model to all parties and print its digest (to compare runs)."
)
@click.option(
    "--resume",
    metavar="RUN",
    help="Go on from the checkpoints in the run folder RUN (this party's own, on each machine).",
)
@click.option("--store", metavar="DIR", help="What the dealer dealt beforehand (`mpcpipe deal`): used once.")
@click.option("--timeline", is_flag=True, help="Draw at the end what every worker did in the last step.")
@click.option(
    "--insecure-keys",
    type=click.IntRange(0),
    metavar="SEED",
    help="PROTECTS NOTHING: masks from this number, so that two runs can be compared bit for bit.",
)
def train(
    job: str,
    overrides: tuple[str, ...],
    protocol: str | None,
    json_file: str | None,
    steps: int | None,
    party: str | None,
    hosts: str | None,
    insecure_plaintext: bool,
    model_digest: bool,
    resume: str | None,
    store: str | None,
    timeline: bool,
    insecure_keys: int | None,
) -> None:
    """Train the model that the job file JOB describes.

    Alone, it runs every party on this machine. With --party, this process is one party, and meets the others at --hosts
    or at the job's parties.hosts. Started by mpirun, torchrun or srun, it is what its rank says (docs/launch.md).
    """
    changes = list(all_overrides(overrides, protocol))
    if steps is not None:
        changes.append(f"train.steps={steps}")
    if store is not None:
        changes.append(f"protocol.store={json.dumps(str(Path(store).resolve()))}")
    if insecure_plaintext:
        changes.append("parties.insecure_plaintext=true")
    described = load(job, changes)
    console.check_json(json_file)
    if resume is not None:
        resumable(resume)
    found = None if party is not None else launched(os.environ)
    if insecure_keys is not None and (found is None or found.rank == 0):
        console.note("INSECURE: --insecure-keys makes all masks guessable; use it only on data that anybody may see")
    options = PartyOptions(
        job=job,
        overrides=tuple(changes),
        model_digest=model_digest,
        insecure_keys=insecure_keys,
        resume=resume,
    )
    if found is not None and needs_nobody(found, described, hosts):
        party = described.parties.names[found.rank]
    elif found is not None:
        as_rank(found, described, changes, options, hosts, json_file)
    here = party is None and hosts is None and not described.parties.hosts
    described, changes, plan = _with_plan(described, changes, here)
    folder = new_folder(described)
    if plan is not None:
        (folder / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    (folder / "job.toml").write_text(public_text(described), encoding="utf-8")
    options = replace(options, overrides=tuple(changes), run_folder=str(folder))
    result = _all_here(described, options, folder) if here else _one_party(described, options, party, hosts)
    result["insecure_keys"] = insecure_keys is not None
    console.write_json(str(folder / "result.json"), result)
    if timeline and json_file != "-":
        from mpcpipe.cli.report import show_timeline

        show_timeline(folder)
    console.write_json(json_file, result)


def _with_plan(job: Job, changes: list[str], here: bool) -> tuple[Job, list[str], Plan | None]:
    """The job with what it leaves to "auto" chosen, the overrides that say so to the parties, and the plan."""
    if not job.pipeline.leaves_choice:
        return job, changes, None
    from mpcpipe.runtime.planning import overrides_of, plan_here, planned, refuse_auto

    if not here:
        refuse_auto(job, job.parties.names)
    console.note("planning the pipeline (measures this machine the first time)")
    plan = plan_here(job)
    console.note(plan.why)
    return planned(job, plan), [*changes, *overrides_of(plan)], plan


def _all_here(job: Job, options: PartyOptions, folder: Path) -> dict[str, Any]:
    banner(job, f"TCP, {protection(job, [])}: all parties are on this machine", folder)
    drawn = Drawn(job)
    try:
        reports = run_local(options, present_names(job), folder, drawn, local_seating(job))
    finally:
        drawn.close()
    result = merged(reports)
    if job.evaluate.clear_twin:
        result["clear_accuracy"] = _twin(job)
    table(job, result, folder)
    return result


def _twin(job: Job) -> float:
    from mpcpipe.runtime.clear import train_twin

    console.note("training the same model in the clear, to compare (evaluate.clear_twin)")
    right, of = train_twin(job)
    return right / of


def _one_party(job: Job, options: PartyOptions, party: str | None, hosts: str | None) -> dict[str, Any]:
    if party is None:
        raise UsageError(f"say which party this process is: --party {' or --party '.join(job.parties.names)}")
    number, folder = party_number(job, party), Path(options.run_folder or ".")
    addresses = addresses_of(job, hosts)
    where = ", ".join(f"{name} {host}:{port}" for name, (host, port) in zip(present_names(job), addresses, strict=True))
    protected = protection(job, [host for host, _ in addresses])
    banner(job, f"TCP, {protected}; this is {job.parties.names[number]} of {where}", folder)
    options = replace(options, party=number, addresses=addresses)
    drawn = Drawn(job, number)
    try:
        seats = local_seating(job)
        if seats is not None:
            (result,) = run_one(options, job.parties.names, folder, drawn, seats)
        else:
            from mpcpipe.launch.party import run_party, stop_on_signals

            stop_on_signals()
            result = run_party(job, options, drawn)
    finally:
        drawn.close()
    table(job, result, folder)
    return result
