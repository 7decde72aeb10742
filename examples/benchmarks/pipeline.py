"""One step, sequential and pipelined, on an emulated network: the ratio, and the share of the bound that was reached.

    python examples/benchmarks/pipeline.py --netlab PATH                           LeNet on lan, metro, 500, 200 Mbit/s
    python examples/benchmarks/pipeline.py --netlab PATH --work w1 --net wan --json result.json
    python examples/benchmarks/pipeline.py --netlab PATH --work all --net balance --published --svg pipeline.svg

The network `balance` has 0.2 ms and the rate at which a step's bytes take as long as its computing, by a first run.

Sequential and pipelined runs take turns; seconds are medians over all steps of all turns. The bound of a pipelined
step is max(C, B, T0 / K): C the processor seconds of all parties over the cores, B the bytes of a party over the rate,
T0 the sequential step, K the micro-batches in flight; all from the same runs. See steps.py for what NETLAB must do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NETS = {"lan": (0.2, 1000), "metro": (4, 1000), "500": (0.2, 500), "200": (0.2, 200), "wan": (40, 100)}
BALANCE = "balance"
PUBLISHED = {"w1": [0, 2], "w2avg": [0, 3, 6], "w2max": [0, 3, 6], "w3": [0, 3], "w4": [0, 12]}
ALONE = {"evaluate.how": '"none"', "evaluate.clear_twin": "false", "run.threads": "1"}


@dataclass(frozen=True)
class Net:
    """An emulated network."""

    name: str
    rtt_ms: float
    mbit: float


@dataclass(frozen=True)
class Row:
    """One work on one network: seconds a step, the bound, and what limits it."""

    work: str
    net: str
    arrangement: str
    sequential_s: float
    pipelined_s: float
    predicted_s: float
    compute_s: float
    bytes_s: float
    latency_s: float
    bound_s: float

    @property
    def ratio(self) -> float:
        """How many times as fast as one after another."""
        return self.sequential_s / self.pipelined_s

    @property
    def reached(self) -> float:
        """Share of the bound."""
        return self.bound_s / self.pipelined_s


class Lab:
    """Runs a job on an emulated network, all parties by hand, and reads what party 0 measured."""

    def __init__(self, program: str, steps: int) -> None:
        self.program, self.steps = program, steps

    def run(self, work: str, net: Net, settings: dict[str, Any]) -> dict[str, Any]:
        rtt_ms, mbit = net.rtt_ms, net.mbit
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "mpcpipe", "train", str(HERE / f"{work}.toml"), "--steps", str(self.steps)]
            for key, value in {**ALONE, "run.output": f'"{folder}/{{rank}}"', **settings}.items():
                command += ["--set", f"{key}={value}"]
            command += ["--party", "{rank}", "--hosts", "{host0},{host1},{host2}", "--insecure-plaintext"]
            lab = [sys.executable, self.program, "--parties", "3", "--rtt-ms", str(rtt_ms), "--mbit", str(mbit), "--"]
            done = subprocess.run(
                [*lab, *command, "--json", f"{folder}/{{rank}}.json"], capture_output=True, text=True, timeout=900
            )
            if done.returncode:
                raise RuntimeError(f"{work} on {net}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
            result: dict[str, Any] = json.loads(Path(folder, "0.json").read_text())
            return result


def network(lab: Lab, work: str, name: str) -> Net:
    """The network of that name. For `balance` a sequential step says how long it computes and what it sends."""
    if name != BALANCE:
        return Net(name, *NETS[name])
    run = lab.run(work, Net(name, *NETS["lan"]), {})
    seconds = sum(run["cpu_s"]) / (os.cpu_count() or 1)
    mbit = round(max(run["sent_bytes_per_step"]) * 8e-6 / seconds)
    return Net(f"{mbit} Mbit/s", NETS["lan"][0], mbit)


def planned(work: str, net: Net, settings: dict[str, Any]) -> dict[str, Any]:
    """What `mpcpipe plan` chooses for this network."""
    given = {f"pipeline.{key}": '"auto"' for key in ("stages", "slots", "microbatches", "schedule")} | settings
    command = [sys.executable, "-m", "mpcpipe", "plan", str(HERE / f"{work}.toml"), "--json", "-"]
    command += ["--net", f"rtt={net.rtt_ms}ms,rate={net.mbit}Mbit/s"]
    for key, value in given.items():
        command += ["--set", f"{key}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan


def settings_of(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan as settings of the job."""
    head = plan["schedule"].splitlines()[0]
    return {
        "pipeline.stages": [stage["first"] for stage in plan["stages"]],
        "pipeline.slots": [stage["slots"] for stage in plan["stages"]],
        "pipeline.microbatches": int(head.split("micro-batches ")[1].split(",")[0]),
        "pipeline.schedule": f'"{head.split()[1].rstrip(":")}"',
    }


def compare(lab: Lab, work: str, net: Net, arrangements: dict[str, dict[str, Any]], turns: int) -> list[Row]:
    """Sequential and every arrangement in turn."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ("sequential", *arrangements)}
    for _ in range(turns):
        runs["sequential"].append(lab.run(work, net, {}))
        for name, given in arrangements.items():
            runs[name].append(lab.run(work, net, given["settings"]))
    sequential_s = step_s(runs["sequential"])
    rows = []
    for name, given in arrangements.items():
        mine = runs[name]
        compute_s = statistics.median(sum(run["cpu_s"]) for run in mine) / (os.cpu_count() or 1)
        bytes_s = max(mine[0]["sent_bytes_per_step"]) * 8e-6 / net.mbit
        latency_s = runs["sequential"][0]["rounds_per_step"] * net.rtt_ms / 2e3
        settings = given["settings"]
        k = settings["pipeline.microbatches"]
        # Without a flush there are as many steps under way as workers.
        in_flight = sum(settings["pipeline.slots"]) if "async" in settings["pipeline.schedule"] else k
        bound_s = max(compute_s, bytes_s, sequential_s / in_flight)
        rows.append(
            Row(
                work,
                net.name,
                f"{name} {settings['pipeline.stages']} x {k}",
                sequential_s,
                step_s(mine),
                given["predicted_s"],
                compute_s,
                bytes_s,
                latency_s,
                bound_s,
            )
        )
    return rows


def step_s(runs: list[dict[str, Any]]) -> float:
    """Median seconds of all steps but each run's first."""
    return statistics.median(seconds for run in runs for seconds in run["steps_s"][1:])


def stale(stages: list[int]) -> dict[str, Any]:
    """One worker a stage and no flush between steps, as the published pipelines run."""
    return {
        "pipeline.stages": stages,
        "pipeline.slots": [1] * len(stages),
        "pipeline.microbatches": 1,
        "pipeline.schedule": '"async"',
    }


def picture(rows: list[Row]) -> str:
    """A bar for each row: a pipelined step as a share of the sequential one, and where its bound is."""
    left, scale, line = 330, 420, 34
    height = 40 + line * len(rows)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + scale + 70} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{left + scale + 70}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="18">a pipelined step, sequential = the grey bar; the mark is the bound</text>',
    ]
    for number, row in enumerate(rows):
        y = 30 + line * number
        width, mark = scale * row.pipelined_s / row.sequential_s, scale * row.bound_s / row.sequential_s
        out += [
            f'<text x="{left - 8}" y="{y + 15}" text-anchor="end">{row.work}, {row.net}: {row.arrangement}</text>',
            f'<rect x="{left}" y="{y}" width="{scale}" height="22" fill="#e4e7eb"/>',
            f'<rect x="{left}" y="{y}" width="{width:.0f}" height="22" fill="#1f6feb"/>',
            f'<rect x="{left + mark:.0f}" y="{y - 3}" width="2" height="28" fill="#d1570a"/>',
            f'<text x="{left + max(width, scale) + 8:.0f}" y="{y + 15}">{row.ratio:.2f}x</text>',
        ]
    return "\n".join([*out, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--netlab", required=True, help="the program that emulates the network")
    parser.add_argument("--work", action="append", choices=[*sorted(PUBLISHED), "all"], help="default: w2avg")
    parser.add_argument("--net", action="append", choices=[*NETS, BALANCE], help="default: lan, metro, 500, 200")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--published", action="store_true", help="also the cut of the published configurations")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="fix a key of the pipeline")
    parser.add_argument("--async", dest="stale", action="store_true", help="also async, cut at the published places")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--svg", metavar="FILE", help="the rows as a picture")
    args = parser.parse_args()
    lab = Lab(args.netlab, args.steps)
    fixed = dict(item.split("=", 1) for item in args.set)
    rows: list[Row] = []
    print(
        "| work | network | pipeline | sequential s | pipelined s | ratio | predicted s | C | B | L | bound | reached |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    works = args.work or ["w2avg"]
    for work in sorted(PUBLISHED) if "all" in works else works:
        for name in args.net or ["lan", "metro", "500", "200"]:
            net = network(lab, work, name)
            plans = {"auto": planned(work, net, fixed)}
            if args.published:
                plans["published"] = planned(work, net, {"pipeline.stages": PUBLISHED[work]})
            if args.stale:
                plans["async"] = planned(work, net, stale(PUBLISHED[work]))
            arrangements = {
                name: {"settings": settings_of(plan), "predicted_s": plan["predicted_step_s"]}
                for name, plan in plans.items()
            }
            for row in compare(lab, work, net, arrangements, args.turns):
                rows.append(row)
                print(
                    f"| {row.work} | {row.net} | {row.arrangement} | {row.sequential_s:.3f} | {row.pipelined_s:.3f} | "
                    f"{row.ratio:.2f} | {row.predicted_s:.3f} | {row.compute_s:.3f} | {row.bytes_s:.3f} | "
                    f"{row.latency_s:.3f} | {row.bound_s:.3f} | {row.reached:.0%} |",
                    flush=True,
                )
    if args.svg:
        Path(args.svg).write_text(picture(rows))
    if args.json:
        shown = [asdict(row) | {"ratio": row.ratio, "reached": row.reached} for row in rows]
        Path(args.json).write_text(json.dumps(shown, indent=1))


if __name__ == "__main__":
    main()
