"""`mpcpipe train`: run a job, all parties here or one party of several machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mpcpipe.cli import console
from mpcpipe.cli.options import all_overrides, party_number, with_job, with_json
from mpcpipe.errors import UsageError
from mpcpipe.job.load import load
from mpcpipe.job.public import public_text
from mpcpipe.job.schema import Job
from mpcpipe.runtime.events import Event
from mpcpipe.runtime.identity import protection
from mpcpipe.runtime.launch import PartyOptions, run_local
from mpcpipe.runtime.ranks import local_seating
from mpcpipe.runtime.runs import merged, new_folder, resumable

if TYPE_CHECKING:
    from mpcpipe.plan.plan import Plan

FIRST_PORT = 17300
"""Party i listens on this port plus i where a host is given without one."""


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
    timeline: bool,
    insecure_keys: int | None,
) -> None:
    """Train the model that the job file JOB describes.

    Without --party, every party runs on this machine. With it, this process is one party, and meets the others at
    --hosts or at the job's parties.hosts.
    """
    changes = list(all_overrides(overrides, protocol))
    if steps is not None:
        changes.append(f"train.steps={steps}")
    if insecure_plaintext:
        changes.append("parties.insecure_plaintext=true")
    described = load(job, changes)
    console.check_json(json_file)
    if resume is not None:
        resumable(resume)
    here = party is None and hosts is None and not described.parties.hosts
    described, changes, plan = _with_plan(described, changes, here)
    folder = new_folder(described)
    if plan is not None:
        (folder / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    (folder / "job.toml").write_text(public_text(described), encoding="utf-8")
    if insecure_keys is not None:
        console.note("INSECURE: --insecure-keys makes all masks guessable; use it only on data that anybody may see")
    options = PartyOptions(
        job=job,
        overrides=tuple(changes),
        run_folder=str(folder),
        model_digest=model_digest,
        insecure_keys=insecure_keys,
        resume=resume,
    )
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
    from mpcpipe.plan.net import Net
    from mpcpipe.runtime.planning import overrides_of, plan_job, planned, refuse_auto

    if not here:
        refuse_auto(job, job.parties.names)
    console.note("planning the pipeline (measures this machine the first time)")
    plan = plan_job(job, Net(), len(job.parties.names))
    console.note(plan.why)
    return planned(job, plan), [*changes, *overrides_of(plan)], plan


def _banner(job: Job, link: str, folder: Path) -> None:
    from mpcpipe.protocol.registry import known_protocol

    p = job.protocol
    console.lines(
        [
            ("protocol", f"{p.name}: {known_protocol(p.name).promise}"),
            ("numbers", f"ring 2^{p.ring_bits}, {p.fraction_bits} fraction bits, values below {p.limit:g}"),
            ("links", link),
            ("openings", _openings(job)),
            ("run folder", str(folder)),
        ],
        stderr=True,
    )


def _openings(job: Job) -> str:
    to = f"the model to {job.model.reveal_to}" if job.model.reveal_to else "the model to nobody (kept as shares)"
    extra = ", the number of right answers to all" if job.evaluate.how == "secure" else ""
    losses = f", the loss every {job.reveal.loss_every} steps to all" if job.reveal.loss_every else ""
    return f"{to}{extra}{losses}"


def _all_here(job: Job, options: PartyOptions, folder: Path) -> dict[str, Any]:
    _banner(job, f"TCP, {protection(job)}: all parties are on this machine", folder)
    drawn = _Drawn(job)
    try:
        reports = run_local(options, job.parties.names, folder, drawn, local_seating(job))
    finally:
        drawn.close()
    result = merged(reports)
    if job.evaluate.clear_twin:
        result["clear_accuracy"] = _twin(job)
    _table(job, result, folder)
    return result


def _twin(job: Job) -> float:
    from mpcpipe.runtime.clear import train_twin

    console.note("training the same model in the clear, to compare (evaluate.clear_twin)")
    right, of = train_twin(job)
    return right / of


def _one_party(job: Job, options: PartyOptions, party: str | None, hosts: str | None) -> dict[str, Any]:
    from mpcpipe.runtime.party import run_party, stop_on_signals

    number = _party_number(job, party)
    addresses = _addresses(job, hosts)
    _banner(
        job,
        f"this is {job.parties.names[number]}; all parties: {', '.join(f'{h}:{p}' for h, p in addresses)}",
        Path(options.run_folder or "."),
    )
    stop_on_signals()
    drawn = _Drawn(job, number)
    try:
        result = run_party(job, PartyOptions(**options.__dict__ | {"party": number, "addresses": addresses}), drawn)
    finally:
        drawn.close()
    _table(job, result, Path(options.run_folder or "."))
    return result


def _party_number(job: Job, party: str | None) -> int:
    if party is None:
        raise UsageError(f"say which party this process is: --party {' or --party '.join(job.parties.names)}")
    return party_number(job, party)


def _addresses(job: Job, hosts: str | None) -> tuple[tuple[str, int], ...]:
    given = hosts.split(",") if hosts else list(job.parties.hosts)
    if len(given) != len(job.parties.names):
        where = "--hosts" if hosts else "parties.hosts"
        raise UsageError(f"{where} has {len(given)} addresses; the job has {len(job.parties.names)} parties")
    addresses = []
    for number, host in enumerate(given):
        name, colon, port = host.strip().rpartition(":")
        if not colon:
            addresses.append((host.strip(), FIRST_PORT + number))
        elif name and port.isdigit() and 0 < int(port) < 65536:
            addresses.append((name, int(port)))
        else:
            raise UsageError(f"{host!r} is not an address: write HOST or HOST:PORT")
    return tuple(addresses)


class _Drawn:
    """Events of one party, drawn; those of the others say nothing new."""

    def __init__(self, job: Job, party: int = 0) -> None:
        self.job, self.party = job, party
        self.shown: console.Training | None = None

    def __call__(self, event: Event) -> None:
        if event["party"] != self.party:
            return
        if event["event"] == "ready":
            if event["slow"]:
                console.note(f"slower than it could be: {event['slow']}. `mpcpipe doctor` says what to do")
            self.shown = console.Training(event["steps"]).__enter__()
        elif self.shown is None:
            return
        elif event["event"] == "step":
            self.shown.step(event["step"], event["epoch"], event["seconds"], event["loss"])
        elif event["event"] == "evaluated":
            self.shown.evaluated(event["step"], event["right"], event["of"])

    def close(self) -> None:
        """Take the bar away."""
        if self.shown is not None:
            self.shown.__exit__()


def _table(job: Job, result: dict[str, Any], folder: Path) -> None:
    steps = result["steps_s"]
    sent = result["sent_bytes_per_step"]
    rows = []
    if result.get("accuracy") is not None:
        right, of = result["right"]
        rows.append(("test accuracy", f"{result['accuracy']:.2%}  ({right} of {of}), trained without seeing the data"))
    if result.get("clear_accuracy") is not None:
        rows.append(("  in the clear", f"{result['clear_accuracy']:.2%}  same seed, same batches, plain PyTorch"))
    rows += [
        ("a step", f"{result['step_s']:.3f} s (median of {len(steps)}), {sum(steps):.1f} s in all"),
        ("  of which", f"{result['compute_s'][0]:.3f} s computing, {result['wait_s'][0]:.3f} s waiting for others"),
        ("sent a step", ", ".join(f"{name} {b / 1e6:.2f} MB" for name, b in zip(job.parties.names, sent, strict=True))),
        ("rounds a step", f"{result['rounds_per_step']:g}"),
        ("peak memory", ", ".join(f"{b / 1e6:.0f} MB" for b in result["peak_rss_bytes"])),
        ("opened", _opened(job, result["reveals"])),
    ]
    model = folder / "model.safetensors"
    if model.exists():
        rows.append(("model", f"{model}  (for {job.model.reveal_to} only)"))
    console.lines(rows)


def _opened(job: Job, reveals: list[dict[str, Any]]) -> str:
    """How many openings, and to whom."""
    to_all = sum(1 for reveal in reveals if reveal["to"] is None)
    by_party: dict[int, int] = {}
    for reveal in reveals:
        if reveal["to"] is not None:
            by_party[reveal["to"]] = by_party.get(reveal["to"], 0) + 1
    parts = [f"{count} tensors to {job.parties.names[party]}" for party, count in by_party.items()]
    parts += [f"{to_all} number{'s' if to_all > 1 else ''} to all"] if to_all else []
    return ", ".join(parts) or "nothing"
