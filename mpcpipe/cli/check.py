"""`mpcpipe check`: is the job right, and what will each party learn?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from mpcpipe.cli import console
from mpcpipe.cli.options import all_overrides, party_number, with_job, with_json
from mpcpipe.job.load import load
from mpcpipe.job.schema import Job


@click.command(epilog="Example:  mpcpipe check examples/digits.toml --party alice")
@with_job
@with_json
@click.option("--party", metavar="I", help="Also read this party's own data files (number or name), and check them.")
@click.option("--model-digest", is_flag=True, help="With what `train --model-digest` opens on top.")
def check(
    job: str,
    overrides: tuple[str, ...],
    protocol: str | None,
    json_file: str | None,
    party: str | None,
    model_digest: bool,
) -> None:
    """Is the job file JOB right, and what will each party learn?

    Reads the job and the model, and no data unless --party says whose. Lists every value that the run will make known.
    """
    described = load(job, all_overrides(overrides, protocol))
    number = None if party is None else party_number(described, party)
    result = _result(described, model_digest)
    if number is not None:
        from mpcpipe.runtime.described import own_data

        result["own_data"] = own_data(described, number)
    if json_file != "-":
        _show(described, result, None if number is None else described.parties.names[number])
    console.write_json(json_file, result)


def _result(job: Job, model_digest: bool) -> dict[str, Any]:
    """What `--json` writes: flat keys; `openings` as `reveals` in the JSON of `train`."""
    from mpcpipe.protocol.registry import known_protocol
    from mpcpipe.runtime.described import describe, in_words

    found = describe(job, model_digest)
    p = job.protocol
    dealer = known_protocol(p.name).dealer
    result: dict[str, Any] = {
        "job": job.name,
        "protocol": p.name,
        "promise": known_protocol(p.name).promise,
        "ring_bits": p.ring_bits,
        "fraction_bits": p.fraction_bits,
        "limit": p.limit,
        "parties": list(job.parties.names),
        "owners": [asdict(owned) for owned in found.owned],
        "layers": [asdict(layer) | {"output_shape": list(layer.output_shape)} for layer in found.layers],
        "parameters": sum(layer.parameters for layer in found.layers),
        "epochs": job.train.epochs,
        "steps": found.steps,
        "steps_per_epoch": found.steps_per_epoch,
        "batch_size": job.train.batch_size,
        "train_rows": found.train_rows,
        "test_rows": found.test_rows,
        "openings": [{"why": o.why, "to": o.to, "shape": list(o.shape)} for o in found.openings],
        "openings_in_words": in_words(found.openings, job.parties.names, found.test_rows),
        "checkpoints_in_words": list(found.kept),
    }
    if dealer is not None:
        from mpcpipe.cli.dealt import as_json

        result |= as_json(job)
    return result


def _show(job: Job, result: dict[str, Any], own: str | None) -> None:
    console.lines(
        [
            ("job", f"{result['job']}: it is right"),
            ("protocol", f"{result['protocol']}: {result['promise']}"),
            (
                "numbers",
                f"ring 2^{result['ring_bits']}, {result['fraction_bits']} fraction bits, "
                f"values below {result['limit']:g}",
            ),
            ("parties", ", ".join(result["parties"])),
            (
                "training",
                f"{result['steps']} steps of {result['batch_size']} rows "
                f"({result['steps_per_epoch']} an epoch), {job.train.optimizer}, {job.train.loss}",
            ),
        ]
    )
    console.blank()
    console.table(
        "Who has which data",
        ["party", "has", "train rows", "test rows", "from"],
        [[o["party"], o["what"], str(o["train_rows"]), str(o["test_rows"]), o["source"]] for o in result["owners"]],
    )
    for line in result.get("own_data", []):
        console.lines([(f"{own}'s own", line)])
    console.blank()
    rows = [
        [layer["name"], layer["kind"], " x ".join(map(str, layer["output_shape"])), f"{layer['parameters']:,}"]
        for layer in result["layers"]
    ]
    console.table(f"The model, {result['parameters']:,} secret values", ["layer", "kind", "result", "values"], rows)
    console.blank()
    if "dealer" in result:
        from mpcpipe.cli.dealt import show

        show(result)
    console.bullets("What becomes known", [*result["openings_in_words"], "nothing else is opened"])
    if result["checkpoints_in_words"]:
        console.bullets("What goes to disk, to go on from", result["checkpoints_in_words"])
    console.note(
        "Public from the start: the job but for files and places, numbers of rows and their order, the initial weights."
    )
    if result["protocol"] == "plaintext":
        console.warning("plaintext protects nothing: every party sees all data and the model, whatever this list says")
