"""`mpcpipe deal`: what a job needs of its dealer, dealt beforehand into folders."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from mpcpipe.cli import console
from mpcpipe.cli.options import all_overrides, with_job, with_json
from mpcpipe.errors import UsageError
from mpcpipe.job.load import load


@click.command(epilog="Example:  mpcpipe deal job.toml --out store; then  mpcpipe train job.toml --store store")
@with_job
@with_json
@click.option("--out", required=True, metavar="DIR", help="A new folder; in it one a party, to be handed to it alone.")
@click.option("--steps", type=click.IntRange(1), help="For a run that stops after so many steps.")
@click.option(
    "--insecure-keys",
    type=click.IntRange(0),
    metavar="SEED",
    help="PROTECTS NOTHING: for a run with the same option, to compare bit for bit.",
)
def deal(
    job: str,
    overrides: tuple[str, ...],
    protocol: str | None,
    json_file: str | None,
    out: str,
    steps: int | None,
    insecure_keys: int | None,
) -> None:
    """Deal a whole run of JOB beforehand: the offline phase, on disk. Run it where no party's data are.

    Each party uses its folder once, with `mpcpipe train --store`; then no dealer's process is needed. A run that fails
    has used it, too. The job must be the same, with the same --set, --protocol and --steps.
    """
    changes = list(all_overrides(overrides, protocol))
    if steps is not None:
        changes.append(f"train.steps={steps}")
    described = load(job, changes)
    console.check_json(json_file)
    if described.pipeline.leaves_choice:
        raise UsageError(
            'pipeline: a store is dealt for one pipeline; put the keys that `mpcpipe plan` prints in place of "auto"'
        )
    if insecure_keys is not None:
        console.note("INSECURE: --insecure-keys makes all masks guessable; use it only on data that anybody may see")
    from mpcpipe.launch.dealing import deal as deal_run

    began, cpu_s = time.perf_counter(), time.process_time()
    made = deal_run(described, Path(out), lambda event: None, insecure_keys)
    made |= {"wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu_s, "cores": os.cpu_count()}
    if json_file != "-":
        rows = [
            ("dealt", f"{made['steps']} steps in {made['wall_s']:.1f} s, {made['step_s']:.3f} s each"),
            ("corrections", f"{made['dealt_bytes_per_step'] / 1e6:.2f} MB a step"),
        ]
        rows += [
            (f"for {name}", f"{Path(out, name)}  ({nbytes / 1e6:.2f} MB of corrections, and its key)")
            for name, nbytes in made["stored_bytes"].items()
        ]
        console.lines(rows)
        console.note("Hand each folder to its party alone: who has two of them learns everything. Keep no copies.")
    console.write_json(json_file, made)
