"""One step, sequential and pipelined, on an emulated network: the ratio, and the share of the bound that was reached.

    python examples/benchmarks/pipeline.py --netlab PATH                           LeNet on lan, metro, 500, 200 Mbit/s
    python examples/benchmarks/pipeline.py --netlab PATH --work w1 --net wan --json result.json
    python examples/benchmarks/pipeline.py --netlab PATH --work all --net balance --published --async --svg pipeline.svg
    python examples/benchmarks/pipeline.py --netlab PATH --net lan --protocol replicated4
    python examples/benchmarks/pipeline.py --netlab PATH --net lan --protocol additive2 --dealt

Sequential and pipelined runs take turns; seconds are medians over all steps of all turns. The bound of a pipelined
step is max(C, B, T0 / K): C the processor seconds over the cores, of the parties and of the emulated network (which is
on the same cores), B the bytes of the busiest party over the rate, T0 the sequential step, K the pieces in flight; all
from the same runs. "off" is how far the prediction of `mpcpipe plan` is from what was measured; the plan is told the
round trip as measured, and what a byte takes of the emulator, by the first sequential run. Where the plan says that
`link.rate` pays, it is shown, too.

The network `balance` has 0.2 ms and the rate at which a step's bytes take as long as its computing, by a first run.
See lab.py for what NETLAB must do. What fails is named, and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lab import HERE, NETS, PARTIES, Lab, Net, protocol_settings, step_s

BALANCE = "balance"
PUBLISHED = {"w1": [0, 2], "w2avg": [0, 3, 6], "w2max": [0, 3, 6], "w3": [0, 3], "w4": [0, 12]}
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
CHOICES = ("stages", "slots", "microbatches", "pieces", "schedule")


@dataclass(frozen=True)
class Row:
    """One arrangement of a work on one network: seconds a step, measured and predicted; the bound, and its parts."""

    work: str
    net: str
    arrangement: str
    step_s: float
    sequential_s: float
    predicted_s: float
    parties_s: float
    compute_s: float
    bytes_s: float
    latency_s: float
    bound_s: float

    @property
    def ratio(self) -> float:
        """How many times as fast as one after another."""
        return self.sequential_s / self.step_s

    @property
    def reached(self) -> float:
        """Share of the bound."""
        return self.bound_s / self.step_s

    @property
    def off(self) -> float:
        """How much longer the prediction is than the step."""
        return self.predicted_s / self.step_s - 1

    def __str__(self) -> str:
        seconds = (self.parties_s, self.compute_s, self.bytes_s, self.latency_s, self.bound_s)
        return (
            f"| {self.work} | {self.net} | {self.arrangement} | {self.step_s:.3f} | {self.ratio:.2f} | "
            f"{self.predicted_s:.3f} | {self.off:+.0%} | {' | '.join(f'{s:.3f}' for s in seconds)} | "
            f"{self.reached:.0%} |"
        )


HEAD = (
    "| work | network | pipeline | s a step | ratio | predicted | off | C of the parties | C with the emulator | B | L "
    "| bound | reached |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)


@dataclass
class Arrangement:
    """One way to run a work: what the job says, what the plan predicts, and the runs."""

    name: str
    settings: dict[str, Any]
    predicted_s: float
    runs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def in_flight(self) -> int:
        """Pieces that may be under way at a time: of every worker, whose weight gradients may wait for later."""
        s = self.settings
        return int(sum(s["pipeline.slots"]) * s["pipeline.pieces"]) if s else 1

    def __str__(self) -> str:
        s = {key.partition(".")[2]: value for key, value in self.settings.items()}
        if not s:
            return self.name
        paced = f", link.rate {s['rate'].strip(chr(34))}" if "rate" in s else ""
        parts = f"{s['microbatches']} x {s['pieces']} pieces" if s["pieces"] > 1 else s["microbatches"]
        return f"{self.name}: {s['schedule'].strip(chr(34))} {s['stages']}, slots {s['slots']}, {parts}{paced}"


def network(lab: Lab, work: str, name: str) -> Net:
    """The network of that name. For `balance` a sequential step says how long it computes and what it sends."""
    if name != BALANCE:
        return Net(name, *NETS[name])
    run = lab.run(work, Net(name, *NETS["lan"]), {})
    seconds = sum(run["cpu_s"]) / (os.cpu_count() or 1)
    mbit = round(max(run["sent_bytes_per_step"]) * 8e-6 / seconds)
    return Net(f"{mbit} Mbit/s", NETS["lan"][0], mbit)


def planned(lab: Lab, work: str, net: Net, rtt_ms: float, hub_s: float, given: dict[str, Any]) -> dict[str, Any]:
    """What `mpcpipe plan` says for this network, whose round trip is `rtt_ms` and a byte of which takes `hub_s`."""
    command = [sys.executable, "-m", "mpcpipe", "plan", str(HERE / f"{work}.toml"), "--json", "-"]
    command += ["--net", f"rtt={rtt_ms}ms,rate={net.mbit}Mbit/s,hub={hub_s * 1e9:.2f}ns"]
    store = {"protocol.store": '"store"'} if lab.dealt else {}
    for key, value in {**protocol_settings(lab.protocol), **store, **given}.items():
        command += ["--set", f"{key}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"plan of {work} on {net.name}: {done.stderr[-1000:]}")
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan


def settings_of(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan as settings of the job."""
    head = plan["schedule"].splitlines()[0]
    paced = {"link.rate": json.dumps(plan["link_rate"])} if "link_rate" in plan else {}
    return {
        "pipeline.stages": [stage["first"] for stage in plan["stages"]],
        "pipeline.slots": [stage["slots"] for stage in plan["stages"]],
        "pipeline.microbatches": int(head.split("micro-batches ")[1].split(",")[0]),
        "pipeline.pieces": plan["pieces"],
        "pipeline.schedule": f'"{head.split()[1].rstrip(":")}"',
        **paced,
    }


def arrangements(lab: Lab, work: str, net: Net, first: dict[str, Any], args: argparse.Namespace) -> list[Arrangement]:
    """Sequential, with its first run, and what was asked for, as the planner has it. Keys not fixed are left to it."""
    fixed = dict(item.split("=", 1) for item in args.set)
    stale = {"pipeline.schedule": '"async"', "pipeline.microbatches": 1}
    cut = PUBLISHED[work]
    wanted: dict[str, dict[str, Any]] = {"auto": fixed}
    if args.published:
        wanted["published"] = {"pipeline.stages": cut}
    if args.schedules:
        parts = {"pipeline.stages": cut, "pipeline.microbatches": 2}
        wanted |= {name: {**parts, "pipeline.schedule": f'"{name}"'} for name in SCHEDULES}
    if args.stale:
        one_each = {"pipeline.stages": cut, "pipeline.slots": [1] * len(cut), "pipeline.pieces": 2}
        wanted |= {"async": stale, "async, published": {**stale, **one_each}}
    rtt_ms = lab.rtt_ms(net)
    hub_s = first["emulator_cpu_s"] / sum(first["sent_bytes_per_step"])
    found: list[Arrangement] = []
    for name, given in wanted.items():
        open_keys = {f"pipeline.{key}": '"auto"' for key in CHOICES}
        plan = planned(lab, work, net, rtt_ms, hub_s, {**open_keys, **given})
        if not found:
            found.append(Arrangement("sequential", {}, plan["sequential_step_s"], [first]))
        paced = plan.get("with_link_rate")
        if paced is None or name == "auto":
            found.append(Arrangement(name, settings_of(plan), plan["predicted_step_s"]))
        if paced is not None:
            found.append(Arrangement(f"{name}, paced", settings_of(paced), paced["predicted_step_s"]))
    return found


def compare(lab: Lab, work: str, net: Net, ways: list[Arrangement], turns: int) -> list[Row]:
    """All of them in turn. One that fails is named and left out."""
    failed: set[str] = set()
    for turn in range(turns):
        for way in ways:
            if way.name in failed or len(way.runs) > turn:
                continue
            try:
                way.runs.append(lab.run(work, net, way.settings))
                print(f"{work} {net.name} {turn + 1}/{turns} {way}: {step_s(way.runs[-1:]):.3f} s", file=sys.stderr)
            except RuntimeError as error:
                failed.add(way.name)
                print(f"{way} failed, and is left out: {error}", file=sys.stderr)
    if "sequential" in failed:
        raise RuntimeError(f"{work} on {net.name}: nothing to compare with")
    first = ways[0].runs
    return [row(work, net, way, first) for way in ways if way.runs]


def row(work: str, net: Net, way: Arrangement, sequential: list[dict[str, Any]]) -> Row:
    """Medians of an arrangement's runs, and the bound."""
    cores = os.cpu_count() or 1
    parties_s = statistics.median(sum(run["cpu_s"]) for run in way.runs) / cores
    compute_s = parties_s + statistics.median(run["emulator_cpu_s"] for run in way.runs) / cores
    bytes_s = max(way.runs[0]["sent_bytes_per_step"]) * 8e-6 / net.mbit
    latency_s = sequential[0]["rounds_per_step"] * net.rtt_ms / 2e3
    sequential_s = step_s(sequential)
    bound_s = max(compute_s, bytes_s, sequential_s / way.in_flight)
    mine = step_s(way.runs)
    return Row(
        work,
        net.name,
        str(way),
        mine,
        sequential_s,
        way.predicted_s,
        parties_s,
        compute_s,
        bytes_s,
        latency_s,
        bound_s,
    )


def picture(rows: list[Row]) -> str:
    """A bar for each row: a pipelined step as a share of the sequential one, and where its bound is."""
    labels = [f"{row.work}, {row.net}: {row.arrangement}" for row in rows]
    left, scale, line = 20 + 6 * max(map(len, labels), default=0), 420, 34
    height = 40 + line * len(rows)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + scale + 70} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{left + scale + 70}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="18">a pipelined step, sequential = the grey bar; the mark is the bound</text>',
    ]
    for number, (row, label) in enumerate(zip(rows, labels, strict=True)):
        y = 30 + line * number
        width, mark = scale * row.step_s / row.sequential_s, scale * row.bound_s / row.sequential_s
        out += [
            f'<text x="{left - 8}" y="{y + 15}" text-anchor="end">{label}</text>',
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
    parser.add_argument("--protocol", choices=PARTIES, default="replicated3")
    parser.add_argument("--dealt", action="store_true", help="additive2: what a dealer left in a store before each run")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--published", action="store_true", help="also the cut of the published configurations")
    parser.add_argument(
        "--schedules", action="store_true", help="also each exact schedule: the published cut, 2 micro-batches"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="fix a key of the pipeline")
    parser.add_argument("--async", dest="stale", action="store_true", help="also async: cut by the plan, as published")
    parser.add_argument("--timeout", type=float, default=900, help="seconds of a run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="written anew after each work and network")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="the rows as a picture")
    args = parser.parse_args()
    if args.dealt and args.protocol != "additive2":
        parser.error("only additive2 has a dealer: --protocol additive2")
    lab = Lab(args.netlab, args.steps, args.protocol, args.timeout, args.dealt)
    rows: list[Row] = []
    print(HEAD)
    works = args.work or ["w2avg"]
    for work in sorted(PUBLISHED) if "all" in works else works:
        for name in args.net or ["lan", "metro", "500", "200"]:
            try:
                net = network(lab, work, name)
                first = lab.run(work, net, {})
                print(f"{work} {net.name} sequential: {step_s([first]):.3f} s", file=sys.stderr)
                found = compare(lab, work, net, arrangements(lab, work, net, first, args), args.turns)
            except (RuntimeError, OSError, ValueError, KeyError) as error:
                print(f"{work} on {name} failed: {error}", file=sys.stderr)
                continue
            print("\n".join(map(str, found)), flush=True)
            rows += found
            if args.svg:
                args.svg.write_text(picture([row for row in rows if row.ratio != 1]))
            if args.json:
                shown = [asdict(row) | {"ratio": row.ratio, "reached": row.reached, "off": row.off} for row in rows]
                args.json.write_text(json.dumps({"protocol": args.protocol, "rows": shown}, indent=1) + "\n")


if __name__ == "__main__":
    main()
