"""What a job needs of its dealer, for `check` and `plan`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mpcpipe.cli import console
from mpcpipe.job.schema import Job


def as_json(job: Job) -> dict[str, Any]:
    """Flat keys; {} for a protocol without a dealer."""
    from mpcpipe.protocol.registry import known_protocol
    from mpcpipe.runtime.planning import dealings_of

    found = dealings_of(job)
    dealer = known_protocol(job.protocol.name).dealer
    if found is None or dealer is None:
        return {}
    return {
        "dealer": job.parties.names[dealer],
        "dealt_per_step": {kind: asdict(need) for kind, need in found.step.kinds.items()},
        "dealt_bytes_per_step": found.step.nbytes,
        "dealt_bytes_per_loss": found.loss.nbytes,
        "dealt_bytes_per_evaluation": found.evaluation.nbytes,
        "dealt_steps": found.steps,
        "dealt_losses": found.losses,
        "dealt_evaluations": found.evaluations,
        "dealt_bytes": found.all.nbytes,
        "stream_bytes_per_step": found.step.stream_bytes,
        "stream_bytes": found.all.stream_bytes,
    }


def show(result: dict[str, Any]) -> None:
    """The keys of `as_json`, as a table."""
    console.table(
        f"What {result['dealer']} deals in a step",
        ["kind", "uses", "values", "MB sent"],
        [
            [kind, f"{need['uses']:,}", f"{need['numel']:,}", f"{need['nbytes'] / 1e6:.3f}"]
            for kind, need in result["dealt_per_step"].items()
        ],
    )
    rows = [("a step", _mb(result["dealt_bytes_per_step"]), _mb(result["stream_bytes_per_step"]))]
    if result["dealt_losses"]:
        rows.append((f"a loss ({result['dealt_losses']} are opened)", _mb(result["dealt_bytes_per_loss"]), ""))
    if result["dealt_evaluations"]:
        times = result["dealt_evaluations"]
        rows.append((f"an evaluation (of {times})", _mb(result["dealt_bytes_per_evaluation"]), ""))
    rows.append(
        (f"the whole job ({result['dealt_steps']} steps)", _mb(result["dealt_bytes"]), _mb(result["stream_bytes"]))
    )
    console.table("Corrections and streams", ["for", "sent, or stored", "drawn from streams"], rows)
    console.note(f"{result['dealer']} sees no data; who colludes with it learns everything.")
    console.blank()


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.2f} MB"
