"""A run folder whose every figure is known: two stages, two micro-batches, steps of 10 seconds, three parties.

      0    1    2    3    4    5    6    7    8    9   10
0.0   F    .    F    .    -    -    B    .    U    .
1.0   -    -    F    F    B    B    F    B    U    -        (. waiting, - idle)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mpcpipe.job.load import load
from mpcpipe.job.public import public_text

NAMES = ("alice", "bob", "carol")
STEPS = 3
EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.toml"
ACTIONS: dict[str, list[tuple[str, float, float, float, list[tuple[float, float]], int]]] = {
    "0.0": [  # action, begin, end, idle, waits, bytes sent
        ("0F0", 0, 2, 0, [(1, 2)], 100),
        ("0F1", 2, 4, 0, [(3, 4)], 100),
        ("0B0 0B1", 4, 8, 2, [(7, 8)], 50),
        ("0U", 8, 10, 0, [(9, 10)], 10),
    ],
    "1.0": [
        ("1F0", 0, 4, 2, [], 30),
        ("1B0", 4, 6, 0, [], 20),
        ("1F1", 6, 7, 0, [], 30),
        ("1B1", 7, 8, 0, [], 20),
        ("1U", 8, 9, 0, [], 0),
    ],
}
PICTURE = {"0.0": "F.F.  B.U.", "1.0": "  FFBBFBU "}
SENT = 360
"""Of one party in one step."""


def lines(steps: int = STEPS) -> list[str]:
    """The events of one party."""
    out = []
    for step in range(1, steps + 1):
        zero = 10.0 * (step - 1)
        for worker, actions in ACTIONS.items():
            for action, begin, end, idle, waits, sent in actions:
                event = {
                    "step": step,
                    "worker": worker,
                    "action": action,
                    "begin_s": zero + begin,
                    "end_s": zero + end,
                    "wait_s": sum(b - a for a, b in waits),
                    "idle_s": idle,
                    "sent_bytes": sent,
                    "waits": [[zero + a, zero + b] for a, b in waits],
                }
                out.append(json.dumps(event))
    return out


def result(steps: int = STEPS) -> dict[str, Any]:
    """What `train` wrote."""
    opened = [{"why": f"loss of step {step}", "to": None, "shape": []} for step in range(1, steps + 1)]
    opened.append({"why": "number of right answers", "to": None, "shape": []})
    opened += [
        {"why": f"model {key}", "to": 0, "shape": shape}
        for key, shape in {
            "0.weight": [16, 1, 3, 3],
            "0.bias": [16],
            "3.weight": [32, 16, 3, 3],
            "3.bias": [32],
            "7.weight": [64, 128],
            "7.bias": [64],
            "9.weight": [10, 64],
            "9.bias": [10],
        }.items()
    ]
    return {
        "party": 0,
        "origin_unix_s": [1_800_000_000.0, 1_800_000_000.5, 1_800_000_000.0],
        "step_s": 10.0,
        "steps_s": [10.0] * steps,
        "losses": [2.3, 1.9, 1.4][:steps],
        "loss_steps": list(range(1, steps + 1)),
        "accuracy": 0.75,
        "right": [270, 360],
        "clear_accuracy": 0.7611,
        "sent_bytes_per_step": [400, 300, 300],
        "payload_bytes_per_step": [390, 290, 290],
        "rounds_per_step": 12.0,
        "compute_s": [5.0, 5.0, 5.0],
        "wait_s": [2.0, 2.0, 2.0],
        "idle_s": [3.0, 3.0, 3.0],
        "peak_rss_bytes": [1_000_000, 1_000_000, 1_000_000],
        "reveals": opened,
        "protocol": "replicated3",
        "schedule": "1f1b",
        "stages": [0, 3],
        "slots": [1, 1],
        "microbatches": 2,
        "versions": {"mpcpipe": "0.1.0", "torch": "2.9.0", "python": "3.11.7"},
        "kernels": {"path": "lib.so", "isa": "avx2", "aes": True, "reason": None},
        "link": "TCP, plaintext (loopback)",
        "insecure_keys": False,
    }


def make_run(folder: Path, steps: int = STEPS, job: bool = True, **changes: Any) -> Path:
    """A run folder. job: with its job.toml. changes: of the result."""
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result(steps) | changes))
    for name in NAMES:
        (folder / f"events.{name}.jsonl").write_text("\n".join(lines(steps)) + "\n")
    if job:
        described = load(EXAMPLE, [f"train.steps={steps}", "reveal.loss_every=1", "job.name=known"])
        (folder / "job.toml").write_text(public_text(described))
    return folder
