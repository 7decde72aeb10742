"""What a training shows: its banner, its progress, and what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpcpipe.cli import console
from mpcpipe.job.schema import Job
from mpcpipe.runtime.events import Event


def banner(job: Job, link: str, folder: Path) -> None:
    from mpcpipe.protocol.registry import known_protocol

    p = job.protocol
    console.lines(
        [
            ("protocol", f"{p.name}: {known_protocol(p.name).promise}"),
            ("numbers", f"ring 2^{p.ring_bits}, {p.fraction_bits} fraction bits, values below {p.limit:g}"),
            ("links", link),
            ("openings", _openings(job)),
            *([("checkpoints", _checkpoints(job))] if job.checkpoint.every else []),
            ("run folder", str(folder)),
        ],
        stderr=True,
    )


def _checkpoints(job: Job) -> str:
    how = "in plain (mode 600)" if job.checkpoint.key_file is None else "encrypted"
    steps = "step" if job.checkpoint.every == 1 else f"{job.checkpoint.every} steps"
    return f"every {steps}, each party its own shares, {how}"


def _openings(job: Job) -> str:
    to = f"the model to {job.model.reveal_to}" if job.model.reveal_to else "the model to nobody (kept as shares)"
    extra = ", the number of right answers to all" if job.evaluate.how == "secure" else ""
    losses = f", the loss every {job.reveal.loss_every} steps to all" if job.reveal.loss_every else ""
    return f"{to}{extra}{losses}"


class Drawn:
    """Events of one party, drawn; those of the others say nothing new."""

    def __init__(self, job: Job, party: int = 0) -> None:
        self.job, self.party = job, party
        self._noted: dict[str, str] = {}
        self.shown: console.Training | None = None

    def __call__(self, event: Event) -> None:
        if event["event"] == "note":
            self._note(self.job.parties.names[event["party"]], event["text"])
        if event["party"] != self.party:
            return
        if event["event"] == "ready":
            if event["slow"]:
                console.note(f"slower than it could be: {event['slow']}. `mpcpipe doctor` says what to do")
            self.shown = console.Training(event["steps"]).__enter__()
        elif event["event"] == "resumed":
            console.note(f"goes on after step {event['step']}")
        elif self.shown is None:
            return
        elif event["event"] == "step":
            self.shown.step(event["step"], event["epoch"], event["seconds"], event["loss"])
        elif event["event"] == "evaluated":
            self.shown.evaluated(event["step"], event["right"], event["of"])

    def _note(self, party: str, text: str) -> None:
        """What several parties say alike is written out once: the others' lines name the first."""
        first = self._noted.setdefault(text, party)
        console.note(f"{party}: {text}" if first == party else f"{party}, like {first}: {_beginning(text)}")

    def close(self) -> None:
        """Take the bar away."""
        if self.shown is not None:
            self.shown.__exit__()


def _beginning(text: str, most: int = 60) -> str:
    """Whole words of it."""
    return text if len(text) <= most else f"{text[:most].rsplit(' ', 1)[0]} ..."


def table(job: Job, result: dict[str, Any], folder: Path) -> None:
    steps = result["steps_s"]
    sent = result["sent_bytes_per_step"]
    rows = []
    if result.get("accuracy") is not None:
        right, of = result["right"]
        rows.append(("test accuracy", f"{result['accuracy']:.2%}  ({right} of {of}), trained without seeing the data"))
    if result.get("clear_accuracy") is not None:
        rows.append(("  in the clear", f"{result['clear_accuracy']:.2%}  same seed, same batches, plain PyTorch"))
    sent_by = list(zip(job.parties.names, sent, strict=False))  # without a dealer that dealt beforehand
    rows += [
        ("a step", f"{result['step_s']:.3f} s (median of {len(steps)}), {sum(steps):.1f} s in all"),
        ("  of which", f"{result['compute_s'][0]:.3f} s computing, {result['wait_s'][0]:.3f} s waiting for others"),
        ("sent a step", ", ".join(f"{name} {b / 1e6:.2f} MB" for name, b in sent_by)),
        ("rounds a step", f"{result['rounds_per_step']:g}"),
        ("peak memory", ", ".join(f"{b / 1e6:.0f} MB" for b in result["peak_rss_bytes"])),
        ("opened", _opened(job, result["reveals"])),
    ]
    if taken := (result.get("checkpoints") or {}).get("seconds"):
        size = result["checkpoints"]["bytes"][-1]
        rows.append(("checkpoints", f"{len(taken)}, {sum(taken):.2f} s in all, {size / 1e6:.2f} MB a party"))
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
