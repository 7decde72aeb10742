"""`mpcpipe power train`: GREENDLS's agent, against a simulated server."""

from __future__ import annotations

from pathlib import Path

import click

from mpcpipe.cli import console
from mpcpipe.cli.options import with_json
from mpcpipe.errors import UsageError


@click.command(
    epilog="Example:  mpcpipe power train --grid resnet50.csv --rate wiki.csv --slo 0.2 --out agent.safetensors     "
    "then: mpcpipe power replay --policy greendls"
)
@click.option("--grid", type=click.Path(), metavar="CSV", help="Measured latency and energy.")
@click.option("--network", metavar="NAME", help="Instead: derived, on a card without a grid.")
@click.option("--rate", required=True, type=click.Path(), metavar="CSV", help="Requests a second: gives the range.")
@click.option("--slo", "slo_s", required=True, type=float, metavar="SECONDS", help="The latency objective.")
@click.option("--out", required=True, type=click.Path(), metavar="FILE", help="Where the agent goes (safetensors).")
@click.option("--card", default="rtx3080ti", show_default=True, help="The GPU of the grid.")
@click.option("--seed", default=0, show_default=True, help="Of requests, exploration and first weights.")
@click.option("--steps", type=int, help="Batches to learn from; 6,000, or 100,000 with --paper-exact.")
@click.option("--single", is_flag=True, help="Plain targets instead of double Q-learning.")
@click.option("--paper-exact", is_flag=True, help="The published agent with its quirks: reward, terminals, masks.")
@click.option("--checkpoint", type=click.Path(), metavar="FILE", help="Written as it goes; gone on from if it exists.")
@with_json
def train(
    grid: str | None,
    network: str | None,
    rate: str,
    slo_s: float,
    out: str,
    card: str,
    seed: int,
    steps: int | None,
    single: bool,
    paper_exact: bool,
    checkpoint: str | None,
    json_file: str | None,
) -> None:
    """Train GREENDLS's agent for a network on a card: which clocks and batch for which load. Minutes on one core."""
    from mpcpipe.services.power.cards import card_named
    from mpcpipe.services.power.greendls.agent import Learning, corrected
    from mpcpipe.services.power.greendls.train import Course, Progress
    from mpcpipe.services.power.greendls.train import train as teach
    from mpcpipe.services.power.greendls.weights import save_policy
    from mpcpipe.services.power.grid import load
    from mpcpipe.services.power.networks import derived_grid
    from mpcpipe.services.power.requests import Rates
    from mpcpipe.services.power.serving import Bench
    from mpcpipe.services.power.setting import Limits
    from mpcpipe.services.power.v100s import v100s_grid
    from mpcpipe.services.power.world import World

    if (grid is None) == (network is None):
        raise UsageError("give either --grid CSV, a measured grid, or --network NAME for one that is derived")
    console.check_json(json_file)
    if steps is not None and steps < 1:
        raise UsageError(f"--steps {steps}: there must be at least one")
    if slo_s <= 0:
        raise UsageError(f"--slo {slo_s}: seconds, above 0")
    chosen = card_named(card)
    if grid is not None:
        measured = load(grid).on(chosen)
    else:
        measured = (v100s_grid if chosen.name == "v100s" else derived_grid)(chosen, network or "")
    world = World(chosen, measured)
    world.check(Limits(slo_s=slo_s))
    rates = Rates.read(Path(rate))
    bench = Bench(world, rates, slo_s)
    if paper_exact:
        learning = Learning.published(steps or 100_000, double=False)
    else:
        learning = corrected(steps or 6_000, double=not single)
    shown: list[Progress] = []

    def report(progress: Progress) -> None:
        shown.append(progress)
        if progress.steps % (learning.steps // 10 or 1) < 500:
            console.note(f"{progress.steps} batches: reward {progress.reward:.3f}, late {100 * progress.late:.1f} %")

    course = Course(bench.scene(seed), bench.plant, rates, slo_s)
    agent, actions = teach(course, learning, seed, Path(checkpoint) if checkpoint else None, report)
    made = {"grid": world.grid.name, "card": chosen.name, "slo_s": slo_s, "seed": seed}
    save_policy(Path(out), agent, actions, made)
    if json_file:
        last = shown[-1] if shown else None
        console.write_json(
            json_file,
            made
            | {"out": out, "steps": agent.steps, "actions": len(actions)}
            | ({"reward": last.reward, "late": last.late} if last else {}),
        )
    size = Path(out).stat().st_size / 1e3
    console.note(f"{out}: {len(actions)} actions, trained on {agent.steps} batches, {size:.0f} kB")
