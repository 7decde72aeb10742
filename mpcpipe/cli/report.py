"""`mpcpipe report`: what happened in a run, as a page, a trace for Perfetto, and lines for the terminal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mpcpipe.cli import console
from mpcpipe.cli.options import with_json
from mpcpipe.errors import MpcpipeError, PlanError, UsageError

if TYPE_CHECKING:
    from mpcpipe.job.schema import Job
    from mpcpipe.protocol.base import Opening
    from mpcpipe.report.events import Run
    from mpcpipe.report.layers import LayerCost
    from mpcpipe.report.page import Facts


@click.command(epilog="Example:  mpcpipe report     for the newest run in runs/; then open its report.html")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="The page; else RUN/report.html.")
@click.option(
    "--trace",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="All steps for ui.perfetto.dev or chrome://tracing.",
)
@click.option(
    "--plan",
    "plan_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The prediction of `mpcpipe plan -o FILE`, shown above what was measured; else RUN/plan.json, if there.",
)
@with_json
def report(
    run: Path | None, output: Path | None, trace: Path | None, plan_file: Path | None, json_file: str | None
) -> None:
    """What happened in the run whose folder is RUN (the newest in runs/): one HTML page, with nothing to fetch.

    The loss, the timeline of every worker, bytes and rounds of every layer, what was opened.
    """
    from mpcpipe.report.events import newest, read_run
    from mpcpipe.report.page import page
    from mpcpipe.report.trace import chrome_trace

    found = read_run(run if run is not None else newest(Path("runs")))
    facts = _facts(found, plan_file)
    file = output or found.folder / "report.html"
    _write(file, page(found, facts))
    if trace is not None:
        _write(trace, json.dumps(chrome_trace(found), separators=(",", ":")))
    if json_file != "-":
        _show(found, facts, file, trace)
    console.write_json(json_file, _summary(found, facts, file))


def show_timeline(folder: Path, party: str | None = None) -> None:
    """The last step's timeline on the terminal."""
    from mpcpipe.report.events import read_run
    from mpcpipe.report.textual import step_timeline

    console.blank()
    console.text(step_timeline(read_run(folder), party=party, width=_width()))


def _width() -> int:
    return min(160, shutil.get_terminal_size((120, 24)).columns)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from error


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"--plan {file}: cannot be read: {error}") from error


def _facts(run: Run, plan_file: Path | None) -> Facts:
    """What the page shows besides the folder's contents. What cannot be worked out here is left out, with a note."""
    from mpcpipe.plan.plan import Plan
    from mpcpipe.protocol.registry import known_protocol
    from mpcpipe.report.page import Facts
    from mpcpipe.runtime.planning import job_digest

    text, where = (run.plan_text, "plan.json") if plan_file is None else (_read(plan_file), f"--plan {plan_file}")
    try:
        plan = None if text is None else Plan.from_json(text)
        if plan is not None and run.job is not None:
            plan.check_job(job_digest(run.job))
    except PlanError as error:
        raise PlanError(f"{where}: {error}") from error
    try:
        promise: str | None = known_protocol(run.result["protocol"]).promise
    except MpcpipeError:
        promise = None  # a protocol of a package that is not installed here
    layers, expected, notes = None, None, []
    if run.job is not None:
        try:
            layers = _layers(run.job, run.result)
            expected = _expected(run.job, run.result)
        except MpcpipeError as error:
            notes.append(f"the model cannot be built here, so its layers' costs are not known: {error}")
    return Facts(promise, plan, layers, expected, tuple(notes))


def _layers(job: Job, result: dict[str, Any]) -> tuple[LayerCost, ...]:
    from mpcpipe.job.model import build_chain
    from mpcpipe.plan.cost import chain_costs
    from mpcpipe.plan.stages import split
    from mpcpipe.report.layers import layer_costs
    from mpcpipe.runtime.described import layer_rows
    from mpcpipe.runtime.planning import setting_of

    _, chain = build_chain(job)
    setting = setting_of(job)
    return layer_costs(
        lambda rows: chain_costs(chain, setting, rows),
        split(job.train.batch_size, int(result.get("microbatches", 1))),
        [row.kind for row in layer_rows(chain)],
        result.get("stages") or [0],
    )


def _expected(job: Job, result: dict[str, Any]) -> tuple[Opening, ...]:
    from mpcpipe.runtime.described import describe

    return describe(job, model_digest="model_sha256" in result).openings


def _summary(run: Run, facts: Facts, file: Path) -> dict[str, Any]:
    """What `--json` writes: flat keys; times in seconds, sizes in bytes."""
    from dataclasses import asdict

    from mpcpipe.report.openings import grouped, openings_of
    from mpcpipe.report.page import names_of, same_openings

    names = names_of(run)
    opened = openings_of(run.result["reveals"])
    workers = [
        {
            "party": party.party,
            "worker": worker,
            "actions": sum(1 for e in party.events if e.worker == worker),
            "compute_s": sum(e.compute_s for e in party.events if e.worker == worker),
            "wait_s": sum(e.wait_s for e in party.events if e.worker == worker),
            "idle_s": sum(e.idle_s for e in party.events if e.worker == worker),
        }
        for party in run.parties
        for worker in party.workers
    ]
    return {
        "run": str(run.folder),
        "page": str(file),
        "parties": list(names),
        "steps": len(run.result["steps_s"]),
        "step_s": run.result["step_s"],
        "predicted_step_s": facts.plan.predicted_step_s if facts.plan else None,
        "accuracy": run.result.get("accuracy"),
        "clear_accuracy": run.result.get("clear_accuracy"),
        "workers": workers,
        "layers": None if facts.layers is None else [asdict(layer) for layer in facts.layers],
        "opened": [asdict(group) for group in grouped(opened, names)],
        "opened_as_checked": None if facts.expected is None else same_openings(opened, facts.expected),
        "notes": [*run.notes, *facts.notes],
    }


def _show(run: Run, facts: Facts, file: Path, trace: Path | None) -> None:
    from mpcpipe.report.figures import nbytes, seconds
    from mpcpipe.report.openings import grouped, openings_of
    from mpcpipe.report.page import arrangement, names_of, same_openings
    from mpcpipe.report.textual import step_timeline

    names, r = names_of(run), run.result
    opened = openings_of(r["reveals"])
    sent = ", ".join(f"{name} {nbytes(b)}" for name, b in zip(names, r["sent_bytes_per_step"], strict=True))
    predicted = f", {seconds(facts.plan.predicted_step_s)} predicted" if facts.plan else ""
    rows = [
        ("run", str(run.folder)),
        ("protocol", f"{r['protocol']}{f': {facts.promise}' if facts.promise else ''}"),
        ("work", arrangement(run)),
        ("a step", f"{seconds(r['step_s'])} (median of {len(r['steps_s'])}){predicted}"),
        ("sent a step", sent),
        ("opened", "; ".join(f"{group.what}, to {group.to}" for group in grouped(opened, names)) or "nothing"),
    ]
    console.lines([*rows, ("page", str(file)), *([("trace", str(trace))] if trace else [])])
    for note in (*run.notes, *facts.notes):
        console.note(note)
    if facts.expected is not None and not same_openings(opened, facts.expected):
        console.warning("these are not the openings that `mpcpipe check` lists for the job")
    console.blank()
    console.text(step_timeline(run, width=_width()))
