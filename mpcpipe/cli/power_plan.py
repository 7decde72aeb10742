"""`mpcpipe power plan`: the pipeline and the clock with which a step takes the least energy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mpcpipe.cli import console
from mpcpipe.cli.options import all_overrides, with_job, with_json
from mpcpipe.cli.plan import keys_of
from mpcpipe.errors import UsageError
from mpcpipe.job.load import load

if TYPE_CHECKING:
    from mpcpipe.job.schema import Job
    from mpcpipe.services.power.arrangement import Way
    from mpcpipe.services.power.cards import Card


@click.command(
    epilog="Example:  mpcpipe power plan job.toml --net lan --device a100 --card a100-40gb --set pipeline.stages=auto "
    "--set services.power.deadline_s=0.8"
)
@with_job
@with_json
@click.option("--net", default="none", help="lan, metro, wan, none, or rtt=..,rate=.. (default: none, as on loopback).")
@click.option("--device", metavar="NAME", help="What computes, such as a100: from its data sheet.")
@click.option("--card", "card_name", metavar="NAME", help="Its clocks and watts; else of services.power.device.")
def plan(
    job: str,
    overrides: tuple[str, ...],
    protocol: str | None,
    json_file: str | None,
    net: str,
    device: str | None,
    card_name: str | None,
) -> None:
    """The pipeline for JOB and the clock of its GPU with the least energy a step. SIMULATED: nothing is measured.

    Within services.power.deadline_s and cap_w; without a deadline at most 0.9 % longer than the fastest. Other numbers
    of micro-batches and pieces round results otherwise, so this is for before a run. The job is as for `mpcpipe plan`.
    """
    from mpcpipe.job.model import build_chain
    from mpcpipe.plan.machine import device as device_named
    from mpcpipe.plan.net import parse
    from mpcpipe.plan.planner import estimated
    from mpcpipe.runtime.planning import setting_of, wish_of
    from mpcpipe.services.power.arrangement import ways
    from mpcpipe.services.power.clockplan import Curve
    from mpcpipe.services.power.setting import Limits

    console.check_json(json_file)
    described = load(job, all_overrides(overrides, protocol))
    if device is None:
        raise UsageError(
            "--device NAME is missing: which GPU computes, such as a100; this machine has no clocks to set"
        )
    machine, network, card = device_named(device), parse(net), _card(described, card_name)
    _, chain = build_chain(described)
    power = described.services.power
    limits = Limits(power.cap_w or None, None, power.deadline_s or None)
    curve = Curve(card, card.memory_clocks_mhz[-1], card.sm_clocks_mhz)
    nodes_of = estimated(chain, setting_of(described), machine)
    batch = described.train.batch_size
    found = ways(nodes_of, len(chain.layers), batch, network, 1.0, wish_of(described), curve, limits)
    fastest = min(found, key=lambda way: way.full_s)
    keys = _keys(found[0], described)
    if json_file != "-":
        console.table(
            f"{described.name} on {network}, {card.title}: the cheapest of each number of micro-batches and pieces",
            ("micro-batches", "pieces", "pipeline", "full clocks", "clock", "step", "joules", "of the fastest"),
            [_row(way, fastest) for way in found],
        )
        console.blank()
        console.lines([("in the job file", keys)])
        if found[0].numbers != fastest.numbers:
            console.note("results round otherwise than with the fastest pipeline: all parties need the same numbers")
    console.write_json(
        json_file, {"simulated": True, "card": card.name, "keys": keys, "ways": [_plain(way) for way in found]}
    )


def _card(job: Job, name: str | None) -> Card:
    from mpcpipe.services.power.cards import CARDS, card_named

    kind, _, simulated = job.services.power.device.partition(":")
    if name is None and kind != "simulated":
        raise UsageError(f"--card NAME is missing: clocks and watts of the GPU, one of {', '.join(CARDS)}")
    return card_named(simulated if name is None else name)


def _pipeline(way: Way) -> str:
    schedule = way.choice.best.schedule
    slots = f", slots {list(schedule.slots)}" if max(schedule.slots) > 1 else ""
    return f"{schedule.name}, {len(schedule.slots)} stage{'s' if len(schedule.slots) > 1 else ''}{slots}"


def _row(way: Way, fastest: Way) -> tuple[str, ...]:
    count, pieces = way.numbers
    return (
        str(count),
        str(pieces),
        _pipeline(way),
        f"{way.full_s:.4g} s",
        f"{way.clock_mhz} MHz",
        f"{way.step_s:.4g} s",
        f"{way.joules:.4g}",
        f"{100 * (way.joules / fastest.joules - 1):+.1f} %",
    )


def _plain(way: Way) -> dict[str, Any]:
    cut, schedule = way.choice.best.cut, way.choice.best.schedule
    return {
        "microbatches": cut.microbatches,
        "pieces": cut.pieces,
        "stages": list(cut.starts),
        "slots": list(schedule.slots),
        "schedule": schedule.name,
        "full_s": way.full_s,
        "clock_mhz": way.clock_mhz,
        "step_s": way.step_s,
        "joules": way.joules,
    }


def _keys(way: Way, job: Job) -> str:
    from mpcpipe.runtime.planning import overrides_for

    cut, schedule = way.choice.best.cut, way.choice.best.schedule
    said = keys_of(overrides_for(cut.starts, schedule, cut.pieces))
    deadline_s = job.services.power.deadline_s
    return said + (f'  [services.power] policy="perseus", deadline_s={deadline_s:g}' if deadline_s else "")
