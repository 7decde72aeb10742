"""Which policy serves requests with the least energy? Replays on a measured grid; a table in Markdown.

    python examples/power/serving.py --grid resnet50.csv --rate wiki.csv --slo 0.2 --agent agent.safetensors
    python examples/power/serving.py --card v100s --network densenet201 --rate wiki.csv --slo 0.2

Ten seeds, each with requests of its own; all policies get the same requests on the same simulated GPU and start at the
driver's clocks. Nothing runs on a GPU. Several --rate or --grid files give a mean over all of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpcpipe.services.power.cards import card_named
from mpcpipe.services.power.grid import load
from mpcpipe.services.power.requests import Rates
from mpcpipe.services.power.serving import Bench, Interval, Outcome, compare, savings, summary
from mpcpipe.services.power.v100s import v100s_grid
from mpcpipe.services.power.world import World

BASELINES = ("clipper", "clipper-variant", "eais", "slo-clock")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--card", default="rtx3080ti")
    parser.add_argument("--grid", action="append", default=[], help="a CSV file; repeatable")
    parser.add_argument("--network", action="append", default=[], help="on a V100S: derived, not measured; repeatable")
    parser.add_argument("--rate", action="append", required=True, help="a CSV file; repeatable")
    parser.add_argument("--slo", type=float, default=0.2, help="seconds")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=1800, help="of each trace")
    parser.add_argument("--even", action="store_true", help="evenly spaced requests, as GREENDLS's authors send them")
    parser.add_argument("--agent", action="append", default=[], help="of `mpcpipe power train`, one a grid or network")
    parser.add_argument("--baselines", default=",".join(BASELINES))
    parser.add_argument("--json", help="a file for all figures")
    return parser.parse_args()


def worlds(asked: argparse.Namespace) -> Iterator[World]:
    card = card_named(asked.card)
    for path in asked.grid:
        yield World(card, load(path).on(card))
    for network in asked.network:
        yield World(card, v100s_grid(card, network))


def row(name: str, found: list[Outcome], ours: str, outcomes: dict[str, list[Outcome]]) -> str:
    power = Interval.of([one.mean_power_w for one in found])
    net = Interval.of([one.net_j / one.duration_s for one in found])
    late = 100 * sum(one.violation_share for one in found) / len(found)
    cells = [f"{power.mean:.1f}", f"{net.mean:.1f}", f"{late:.2f} %", f"{found[0].mean_batch:.0f}"]
    if name == ours:
        return f"| **{name}** | {' | '.join(cells)} | | |"
    gross, without = savings(outcomes, ours, name)
    saved = [f"{100 * one.mean:.1f} ± {100 * one.half:.1f} %" for one in (gross, without)]
    return f"| {name} | {' | '.join([*cells, *saved])} |"


def main() -> None:
    asked = arguments()
    spacing: Any = "even" if asked.even else "poisson"
    report = []
    for (number, world), path in itertools.product(enumerate(worlds(asked)), asked.rate):
        rates = Rates.read(Path(path)).first(asked.seconds)
        policies = [*(name for name in asked.baselines.split(",") if name), "lookahead"]
        options = {}
        if asked.agent:
            policies.insert(-1, "greendls")
            options["greendls"] = {"weights": asked.agent[number]}
        outcomes = compare(Bench(world, rates, asked.slo, spacing), policies, range(asked.seeds), options)
        print(f"\n{world.card.title}, {world.grid.name}, {Path(path).stem}, {1000 * asked.slo:g} ms\n")
        for ours in [name for name in ("greendls", "lookahead") if name in outcomes]:
            print(f"| policy | W | net W | late | batch | {ours} saves, gross | net |\n|---|---|---|---|---|---|---|")
            print("\n".join(row(name, found, ours, outcomes) for name, found in outcomes.items()), flush=True)
            report.append(summary(outcomes, ours) | {"grid": world.grid.name, "rate": Path(path).stem})
    if asked.json:
        Path(asked.json).write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
