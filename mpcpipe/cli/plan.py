"""`mpcpipe plan`: who does what when, how long it will take, and why. Runs no training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mpcpipe.cli import console
from mpcpipe.cli.options import all_overrides, with_job, with_json
from mpcpipe.errors import UsageError
from mpcpipe.job.load import load

if TYPE_CHECKING:
    from mpcpipe.plan.plan import Plan


@click.command(epilog="Example:  mpcpipe plan job.toml --net rtt=80ms,rate=1Gbps --set pipeline.stages=auto")
@with_job
@with_json
@click.option("--net", default="none", help="lan, metro, wan, none, or rtt=..,rate=.. (default: none, as on loopback).")
@click.option("--device", metavar="NAME", help="A machine that is not here, such as h100: estimated, not measured.")
@click.option(
    "--apart", is_flag=True, help="Every party has a machine of its own. Default: all share this one's cores."
)
@click.option("--output", "-o", metavar="FILE", help="Write the plan, to be kept or shown in a report.")
def plan(
    job: str,
    overrides: tuple[str, ...],
    protocol: str | None,
    json_file: str | None,
    net: str,
    device: str | None,
    apart: bool,
    output: str | None,
) -> None:
    """The pipeline for JOB: its cuts, schedule, predicted step, what bounds it, and a picture.

    What the job leaves to "auto" is chosen; if it leaves nothing, what it says is costed.
    """
    from mpcpipe.job.present import present_names
    from mpcpipe.plan.machine import device as device_named
    from mpcpipe.plan.net import parse
    from mpcpipe.plan.plan import timeline
    from mpcpipe.runtime.planning import link_rate_that_pays, overrides_of, plan_job, planned

    described = load(job, all_overrides(overrides, protocol))
    machine = device_named(device) if device else None
    local = 1 if apart or device else len(present_names(described))
    network = parse(net)
    found = plan_job(described, network, local, machine)
    paced = link_rate_that_pays(described, network, found, local, machine)
    if output:
        try:
            Path(output).write_text(found.to_json())
        except OSError as error:
            raise UsageError(f"--output {output}: cannot be written: {error.strerror}") from error
    if json_file != "-":
        console.table(
            f"{described.name}: {_arrangement(found)}, on {found.net}",
            ("stage", "layers", "slots", "computing", "sent", "rounds"),
            [
                (
                    str(number),
                    f"{stage.layers[0]} to {stage.layers[-1]}" if len(stage.layers) > 1 else stage.layers[0],
                    str(stage.slots),
                    f"{stage.compute_s:.3f} s",
                    f"{stage.sent_bytes / 1e6:.2f} MB",
                    str(stage.rounds),
                )
                for number, stage in enumerate(found.stages)
            ],
        )
        console.text("\n" + timeline(found) + "\n")
        console.lines(
            [
                (
                    "predicted step",
                    f"{found.predicted_step_s:.3f} s, one after another {found.sequential_step_s:.3f} s",
                ),
                ("bound", f"{found.bound_s:.3f} s, for {found.limited_by}"),
                ("a step is", f"{_parts(found.compute_s, found.bytes_s, found.latency_s)}"),
                ("machine", f"{found.machine}, {found.cores:.2g} cores a party" + ("  (estimated)" if device else "")),
                ("why", found.why),
                ("in the job file", keys_of(overrides_of(found))),
                *_with_link_rate(paced, overrides_of(paced[1]) if paced else []),
            ]
        )
    from mpcpipe.cli.dealt import as_json, show

    dealt = as_json(planned(described, found))
    if dealt and json_file != "-":
        console.blank()
        show(dealt)
    shown = json.loads(found.to_json()) | {"stages_first": list(found.starts)} | dealt
    if paced:
        shown["with_link_rate"] = json.loads(paced[1].to_json()) | {"link_rate": paced[0]}
    console.write_json(json_file, shown)


def keys_of(overrides: list[str]) -> str:
    """What the job file is to say."""
    return "[pipeline] " + ", ".join(o.removeprefix("pipeline.") for o in overrides)


def _with_link_rate(paced: tuple[str, Plan] | None, overrides: list[str]) -> list[tuple[str, str]]:
    """What a party's own file should say where pacing pays; it is for each party to say, as its line is its own."""
    if paced is None:
        return []
    rate, plan = paced
    text = f'{plan.predicted_step_s:.3f} s with [link] rate="{rate}" (each party: a percent below its own line), '
    return [("shorter still", text + keys_of(overrides))]


def _arrangement(found: Plan) -> str:
    pieces = f" in {found.pieces} pieces each" if found.pieces > 1 else ""
    return f"{found.schedule.name}, {found.microbatches} micro-batch{'es' if found.microbatches > 1 else ''}{pieces}"


def _parts(compute_s: float, bytes_s: float, latency_s: float) -> str:
    return f"{compute_s:.3f} s computing, {bytes_s:.3f} s sending, {latency_s:.3f} s latency, one after another"
