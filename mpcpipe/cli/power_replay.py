"""`mpcpipe power replay`: policies on measured grids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mpcpipe.cli import console
from mpcpipe.cli.options import with_json
from mpcpipe.errors import UsageError

if TYPE_CHECKING:
    from mpcpipe.services.power.cards import Card
    from mpcpipe.services.power.grid import Grid
    from mpcpipe.services.power.replay import Comparison, Task

_SHARING = ("large", "small", "slowdown", "launch_ms")


@click.command(
    epilog="Example:  mpcpipe power replay --policy pctodl --against batch-dvfs,morak --grid resnet50.csv --cap 160    "
    "--cap 230,130,180 steps through caps;  --rate wiki.csv --slo 0.2 serves requests instead"
)
@click.option("--policy", default="pctodl", show_default=True, help="The policy in question.")
@click.option("--against", default="static", show_default=True, metavar="Q,R", help="Those it is compared with.")
@click.option("--grid", "grids", multiple=True, metavar="CSV", help="Measured latency and energy. May be repeated.")
@click.option(
    "--network", "networks", multiple=True, metavar="NAME", help="Instead: derived, on a card without a grid."
)
@click.option("--card", "card_name", default="rtx3080ti", show_default=True, help="The GPU.")
@click.option("--cap", "caps", multiple=True, metavar="W", help="A power cap, or several after another: 230,130,180.")
@click.option("--hold", "hold_s", default=150.0, show_default=True, metavar="S", help="Seconds that each cap holds.")
@click.option("--rate", metavar="CSV", help="Requests a second: serve these, instead of being busy all the time.")
@click.option("--first", "first_s", type=int, metavar="S", help="Only the beginning of the trace.")
@click.option("--slo", "slo_s", type=float, metavar="S", help="The latency objective, in seconds.")
@click.option("--seeds", default=10, show_default=True, help="Replays, each with noise and arrivals of its own.")
@click.option("--workers", default=5, show_default=True, help="How many may share the GPU.")
@click.option("--agent", metavar="FILE", help="A trained agent, for the policy greendls.")
@click.option(
    "--with", "own", multiple=True, metavar="POLICY.KEY=VALUE", help="An option of a policy: pctodl.at_once=false."
)
@click.option(
    "--sharing",
    metavar="KEY=VALUE,..",
    help="How workers share the GPU in truth: large, small, slowdown (else drawn for each seed), launch_ms.",
)
@click.option("--as-published", is_flag=True, help="Unequal starts and limits, as in PctoDL's comparisons.")
@click.option("--png", metavar="FILE", help="Draw it (needs matplotlib: extra `power`).")
@click.option("--html", metavar="FILE", help="Write a page.")
@with_json
def replay(
    policy: str,
    against: str,
    grids: tuple[str, ...],
    networks: tuple[str, ...],
    card_name: str,
    caps: tuple[str, ...],
    hold_s: float,
    rate: str | None,
    first_s: int | None,
    slo_s: float | None,
    seeds: int,
    workers: int,
    agent: str | None,
    own: tuple[str, ...],
    sharing: str | None,
    as_published: bool,
    png: str | None,
    html: str | None,
    json_file: str | None,
) -> None:
    """Replay policies on measured grids: the same start and the same simulated GPU for all. Nothing real is touched."""
    from mpcpipe.services.power.cards import card_named
    from mpcpipe.services.power.world import World
    from mpcpipe.services.registry import policy_named

    for option, file in (("--json", json_file), ("--png", png), ("--html", html)):
        console.check_json(file, option)
    others = tuple(name.strip() for name in against.split(",") if name.strip() and name.strip() != policy)
    for name in (policy, *others):
        policy_named(name)
    if seeds < 1 or workers < 1 or hold_s < 10:
        raise UsageError("--seeds and --workers are at least 1, --hold at least 10 seconds")
    card = card_named(card_name)
    constants = _constants(sharing)
    worlds = [World(card, grid, workers, sharing=constants) for grid in _grids(card, grids, networks)]
    options = _options(own, (policy, *others))
    if agent:
        options.setdefault("greendls", {})["weights"] = agent
    if rate is not None:
        _requests(worlds, policy, others, rate, first_s, slo_s, seeds, options, (png, html, json_file))
        return
    _under_caps(worlds, policy, others, caps, hold_s, slo_s, seeds, as_published, options, (png, html, json_file))


def _options(own: tuple[str, ...], names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Keyword arguments of policies, as TOML writes values. Errors: UsageError for what a policy does not have."""
    import inspect
    import tomllib

    from mpcpipe.services.registry import policy_named

    found: dict[str, dict[str, Any]] = {}
    for text in own:
        where, _, value = text.partition("=")
        name, _, key = where.partition(".")
        if name not in names:
            raise UsageError(f"--with {text}: POLICY.KEY=VALUE, of a policy that is replayed: {', '.join(names)}")
        known = [key for key in inspect.signature(policy_named(name)).parameters if key != "scene"]
        if key not in known:
            raise UsageError(f"--with {text}: {name} has no option {key!r}. It has: {', '.join(known) or 'none'}")
        try:
            found.setdefault(name, {})[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f'--with {text}: {value!r} is no value: true, false, a number or "text"') from error
    return found


def _constants(text: str | None) -> dict[str, float]:
    """Of the truth, as `--sharing` gives them. Errors: UsageError."""
    found: dict[str, float] = {}
    for part in text.split(",") if text else ():
        key, _, value = part.partition("=")
        if key.strip() not in _SHARING:
            raise UsageError(f"--sharing {text}: there is no {key.strip()!r}, there are {', '.join(_SHARING)}")
        try:
            found[key.strip()] = float(value)
        except ValueError as error:
            raise UsageError(f"--sharing {text}: {value!r} is no number") from error
        if not 0 <= found[key.strip()] < 1000:
            raise UsageError(f"--sharing {text}: {key.strip()} is 0 or more")
    return found


def _grids(card: Card, files: tuple[str, ...], networks: tuple[str, ...]) -> list[Grid]:
    from mpcpipe.services.power.grid import load
    from mpcpipe.services.power.networks import derived_grid
    from mpcpipe.services.power.v100s import v100s_grid

    if not files and not networks:
        raise UsageError("--grid CSV is missing: a measured grid, or --network NAME for one that is derived")
    derived = v100s_grid if card.name == "v100s" else derived_grid
    return [*(load(file).on(card) for file in files), *(derived(card, network) for network in networks)]


def _under_caps(
    worlds: list[Any],
    policy: str,
    others: tuple[str, ...],
    caps: tuple[str, ...],
    hold_s: float,
    slo_s: float | None,
    seeds: int,
    as_published: bool,
    options: dict[str, dict[str, Any]],
    files: tuple[str | None, str | None, str | None],
) -> None:
    from mpcpipe.services.power.replay import Task, as_json, compare
    from mpcpipe.services.power.saturated import Phase

    if not caps:
        raise UsageError("--cap W is missing: a power cap in watts; or --rate CSV and --slo S for requests")
    schedules = [tuple(Phase(cap, hold_s) for cap in _watts(text)) for text in caps]
    tasks = [Task(world, phases, slo_s) for world in worlds for phases in schedules]
    found = compare(policy, others, tasks, seeds, as_published, options, console.note)
    png, html, json_file = files
    if json_file != "-":
        _show(found)
    if png:
        from mpcpipe.services.power.plots import draw

        draw(found, png)
    if html:
        from mpcpipe.services.power.replay_page import page

        _write(html, page(found))
    console.write_json(json_file, as_json(found))


def _watts(text: str) -> list[float]:
    try:
        caps = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--cap {text}: watts, such as 160, or 230,130,180") from error
    if not all(0 < cap < 1e5 for cap in caps):
        raise UsageError(f"--cap {text}: watts above 0")
    return caps


def _show(found: Comparison) -> None:
    for task in found.tasks:
        console.table(
            f"{task.name}: replayed, {found.seeds} seeds",
            (
                "policy",
                "requests/s",
                "+-",
                f"{found.policy} over it",
                "mJ each",
                "net mJ",
                "settles s",
                "over Ws",
                "over s",
            ),
            [_row(found, task, name) for name in found.policies],
        )
        console.blank()
    if len(found.tasks) > 1:
        console.table(
            f"{found.policy} over each, {len(found.tasks)} tasks",
            ("policy", "throughput", "least", "median", "most", "energy saved", "net of idle", "time above the cap"),
            _overall(found),
        )


def _row(found: Comparison, task: Task, name: str) -> tuple[str, ...]:
    from mpcpipe.services.power.serving import Interval

    outcomes = found.outcomes[task.name, name]
    rate = Interval.of([o.throughput_per_s for o in outcomes])
    gain = (
        "" if name == found.policy else f"{100 * found.by_task(task, name, lambda o: o.throughput_per_s).mean:+.1f} %"
    )

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    # Settling: the longest of the phases; what is above the cap is summed.
    return (
        name,
        f"{rate.mean:.0f}",
        f"{rate.half:.0f}",
        gain,
        f"{1000 * mean([o.gross_j for o in outcomes]):.1f}",
        f"{1000 * mean([o.net_j for o in outcomes]):.1f}",
        f"{mean([max(p.settling_s for p in o.phases) for o in outcomes]):.1f}",
        f"{mean([sum(p.overshoot_ws for p in o.phases) for o in outcomes]):.0f}",
        f"{mean([sum(p.over_s for p in o.phases) for o in outcomes]):.1f}",
    )


def _overall(found: Comparison) -> list[tuple[str, ...]]:
    from mpcpipe.services.power.replay import as_json

    said = as_json(found)
    rows: list[tuple[str, ...]] = [
        (found.policy, "", "", "", "", "", "", f"{100 * said['violation_share'][found.policy]:.1f} %")
    ]
    for name in found.against:
        span = said["throughput_gain_range"][name]
        half = f" +- {100 * said['throughput_gain_half'][name]:.1f}" if found.seeds > 1 else ""
        rows.append(
            (
                name,
                f"{100 * said['throughput_gain'][name]:+.1f}{half} %",
                *(f"{100 * span[key]:+.1f} %" for key in ("least", "median", "most")),
                f"{100 * said['gross_saving'][name]:.1f} %",
                f"{100 * said['net_saving'][name]:.1f} %",
                f"{100 * said['violation_share'][name]:.1f} %",
            )
        )
    return rows


def _requests(
    worlds: list[Any],
    policy: str,
    others: tuple[str, ...],
    rate: str,
    first_s: int | None,
    slo_s: float | None,
    seeds: int,
    options: dict[str, dict[str, Any]],
    files: tuple[str | None, str | None, str | None],
) -> None:
    from pathlib import Path

    from mpcpipe.services.power.requests import Rates
    from mpcpipe.services.power.serving import Bench, compare, summary
    from mpcpipe.services.power.setting import Limits

    if slo_s is None or slo_s <= 0:
        raise UsageError("--slo S is missing: the latency objective in seconds, above 0")
    if len(worlds) != 1:
        raise UsageError("--rate serves the requests of one network: give one --grid or --network")
    world = worlds[0]
    world.check(Limits(slo_s=slo_s))
    rates = Rates.read(Path(rate))
    bench = Bench(world, rates.first(first_s) if first_s else rates, slo_s)
    outcomes = compare(bench, (policy, *others), range(seeds), options)
    said = summary(outcomes, policy)
    names = (policy, *others)
    png, html, json_file = files
    if json_file != "-":
        console.table(
            f"{world.grid.name}, {Path(rate).name}, within {1000 * slo_s:g} ms: replayed, {seeds} seeds",
            ("policy", "watts", "net watts", f"{policy} saves", "net of idle", "late", "p99 ms", "batch"),
            [_served(said, name) for name in names],
        )
    if png or html:
        from mpcpipe.services.power import plots, replay_page

        title = f"{world.grid.name}, {Path(rate).stem}, {1000 * slo_s:g} ms"
        if png:
            plots.draw_served(title, names, said, png)
        if html:
            _write(html, replay_page.served_page(title, names, said))
    console.write_json(json_file, _served_json(said))


def _served(said: dict[str, Any], name: str) -> tuple[str, ...]:
    gross, net = (said[key].get(name) for key in ("gross_saving", "net_saving"))
    return (
        name,
        f"{said['mean_power_w'][name][0]:.1f}",
        f"{said['net_power_w'][name][0]:.1f}",
        "" if gross is None else f"{100 * gross[0]:.1f} +- {100 * gross[1]:.1f} %",
        "" if net is None else f"{100 * net[0]:.1f} +- {100 * net[1]:.1f} %",
        f"{100 * said['violation_share'][name][0]:.2f} %",
        f"{1000 * said['p99_s'][name][0]:.1f}",
        f"{said['mean_batch'][name][0]:.1f}",
    )


def _served_json(said: dict[str, Any]) -> dict[str, Any]:
    """Means as plain numbers; the intervals under the same keys with `_half`."""
    plain: dict[str, Any] = {"replayed": True, "load": "requests"}
    for key, value in said.items():
        if isinstance(value, dict):
            plain[key] = {name: pair[0] for name, pair in value.items()}
            plain[f"{key}_half"] = {name: pair[1] for name, pair in value.items()}
        else:
            plain[key] = value
    plain["throughput_gain"] = dict.fromkeys(said["gross_saving"], 0.0)  # all serve every request
    return plain


def _write(file: str, text: str) -> None:
    from pathlib import Path

    try:
        Path(file).write_text(text)
    except OSError as error:
        raise UsageError(f"{file}: cannot be written: {error.strerror}") from error
