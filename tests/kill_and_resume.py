"""Kills a random party at a random moment, goes on, and again, until the training is done: is the model the same?

    python -m tests.kill_and_resume --minutes 10 [--seed 1] [--protocol replicated4]

Every training is a small job under a random protocol, optimizer and cut, with fixed keys (`--insecure-keys`). First it
runs in one go; then it is killed and resumed, each time with another cut if its schedule is exact, until it comes
through. Prints a line for each training and ends with 1 if one model differs in a single bit, or a party ends otherwise
than it should.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests import tiny
from tests.fleet import Fleet

PROTOCOLS = {
    "replicated3": (),
    "additive2": (),
    "replicated4": ('parties.names=["alice","bob","carol","dave"]',),
}
OPTIMIZERS = {
    "sgd": (),
    "momentum": ("train.momentum=0.9", "train.weight_decay=0.01"),
    "nesterov": ("train.momentum=0.9", "train.nesterov=true"),
    "adam": ("train.optimizer=adam",),
}
SCHEDULES = {
    "constant": (),
    "cosine": ("train.schedule=cosine", "train.warmup_steps=3"),
    "stepped": ("train.schedule=stepped",),
}
CUTS = (
    (),
    ("pipeline.stages=[0,2]", "pipeline.schedule=1f1b"),
    ("pipeline.stages=[0,1,2]", "pipeline.schedule=gpipe"),
    ("pipeline.stages=[0,2]", "pipeline.schedule=zero-bubble"),
)
ASYNC = ("pipeline.stages=[0,2]", "pipeline.schedule=async")


def chosen(pick: random.Random, protocols: Sequence[str]) -> tuple[str, tuple[str, ...], bool]:
    """A job's name and settings, and whether its cut may change."""
    protocol, optimizer, schedule = (pick.choice(list(among)) for among in (protocols, OPTIMIZERS, SCHEDULES))
    exact = pick.random() < 0.75
    more = pick.choice([(), ("model.args.norm=true",), ("data.sharing=once",)])
    every = pick.choice([1, 2, 3])
    settings = (
        f"protocol.name={protocol}",
        *PROTOCOLS[protocol],
        *OPTIMIZERS[optimizer],
        *SCHEDULES[schedule],
        *more,
        "train.epochs=3",
        "pipeline.microbatches=2",
        f"checkpoint.every={every}",
        f"checkpoint.keep={pick.choice([1, 2])}",
        "evaluate.every=1",
        "reveal.loss_every=1",
        "run.connect_s=15",
    )
    about = f"{protocol}, {optimizer}, {schedule}, every {every}{''.join(f', {m}' for m in more)}"
    return about + ("" if exact else ", async"), settings, exact


def training(
    folder: Path, job: Path, pick: random.Random, protocols: Sequence[str], seen: Counter[str]
) -> tuple[str, str]:
    """One training: what it was, and what was wrong with it, if anything."""
    about, settings, exact = chosen(pick, protocols)
    cut = (lambda: pick.choice(CUTS)) if exact else lambda: ASYNC
    began_s = time.monotonic()
    with Fleet(job, folder / "whole", (*settings, *cut())) as fleet:
        whole = fleet.ok()
    took_s = time.monotonic() - began_s
    last: Path | None = None
    kills = 0
    while True:
        run = folder / f"run{kills}"
        with Fleet(job, run, (*settings, *cut()), resume=last) as fleet:
            victim = pick.randrange(len(fleet.processes))
            moment_s = time.monotonic() + pick.uniform(0.1, took_s) if kills < 8 else float("inf")
            while time.monotonic() < moment_s and fleet.alive():
                fleet.take(min(0.02, max(0.0, moment_s - time.monotonic())))
            if fleet.alive():
                fleet.kill(victim)
                kills += 1
            codes = fleet.finish(120)
            if set(codes) == {0}:
                report = next(e["report"] for e in fleet.events if e["event"] == "done" and e["party"] == 0)
                break
            if any(code not in (-9, 12, 11, 0) for code in codes):  # 11: killed before the parties had met
                return about, f"exit codes\n{fleet.story()}"
            phases = [
                e for e in fleet.events if e["party"] == victim and e["event"] in ("checkpoint", "step", "resumed")
            ]
            seen[phases[-1].get("phase", phases[-1]["event"]) if phases else "before the first step"] += 1
        folders = run / "checkpoints"
        if folders.is_dir() and any(folders.glob("*/step-*.complete")):
            last = run
    same = all(report[key] == whole[key] for key in ("model_sha256", "losses", "loss_steps", "right"))
    return f"{about}: {kills} kills", "" if same else "another model, loss or accuracy"


def main() -> int:
    """The exit code."""
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--minutes", type=float, default=10.0)
    given.add_argument("--seed", type=int, default=1)
    given.add_argument("--protocol", action="append", choices=list(PROTOCOLS), help="all of them, if none is given")
    options = given.parse_args()
    pick, protocols = random.Random(options.seed), options.protocol or list(PROTOCOLS)
    ends_at_s = time.monotonic() + 60 * options.minutes
    trainings, wrong, seen = 0, 0, Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        job = tiny.columns(Path(place) / "job")
        while time.monotonic() < ends_at_s:
            about, trouble = training(Path(place) / str(trainings), job, pick, protocols, seen)
            trainings += 1
            wrong += bool(trouble)
            print(f"{trainings:4}  {about}: {trouble or 'the same'}", flush=True)
    print(f"{trainings} trainings, {sum(seen.values())} kills, {wrong} wrong; the killed party had last said:")
    print(", ".join(f"{what} {count}" for what, count in seen.most_common()))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
