"""SIMULATED: what perseus saves on a pipelined step, and how a power cap is followed. No GPU is measured.

    python examples/benchmarks/power.py                                  LeNet and VGG-16 on A100s, several networks
    python examples/benchmarks/power.py --works lenet --nets lan10 --card h100 --json result.json

The step: the planner's best pipeline for the network, with the seconds of a device's data sheet (`mpcpipe plan
--device`), on one GPU for each worker (a GPU for all: --one-gpu). Perseus chooses a clock for each GPU, with the
planner's simulator to say how long a step takes then (all computing is assumed to go with the clock, the worst case).
The GPUs live through the step as simulated cards, with their heat. Where actions are long enough, also with a clock for
each action, set at its boundaries, with what changes of clocks take. Baseline: the driver's clocks, which stay up in
gaps as short as these. Net saving: without the power of a card that does nothing at its lowest clock.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mpcpipe.job.load import from_dict
from mpcpipe.job.model import build_chain
from mpcpipe.plan.actions import Action, Schedule
from mpcpipe.plan.machine import device
from mpcpipe.plan.net import Net, parse
from mpcpipe.plan.partition import Wish, choose
from mpcpipe.plan.planner import estimated
from mpcpipe.plan.schedule import build
from mpcpipe.plan.simulate import Simulation, simulate
from mpcpipe.plan.stages import Cut
from mpcpipe.plan.trace import TimedTrace
from mpcpipe.runtime.planning import setting_of
from mpcpipe.runtime.record import Span
from mpcpipe.services.power.cards import Card, card_named
from mpcpipe.services.power.clockplan import Curve, clocks_of_gpus
from mpcpipe.services.power.control import Control
from mpcpipe.services.power.guard import Guard
from mpcpipe.services.power.pace import LONGER
from mpcpipe.services.power.phases import PhasePlan, plan_phases, with_changes
from mpcpipe.services.power.policies.base import Scene
from mpcpipe.services.power.policies.perseus import Perseus
from mpcpipe.services.power.setting import Limits, Setting
from mpcpipe.services.power.simulated import Simulated
from mpcpipe.services.power.stepgraph import Part, step_graph

SHAPES = {"lenet": [1, 28, 28], "vgg16": [3, 32, 32], "alexnet": [3, 32, 32]}
STRIDE = 4
"""Every so many of a card's clocks are tried."""

CAPS_W = (230.0, 130.0, 180.0)


@dataclass(frozen=True)
class Row:
    """One work on one network. joules: of all GPUs of a party over a step."""

    work: str
    net: str
    schedule: str
    gpus: int
    computing_share: float
    step_s: float
    joules: float
    perseus_step_s: float
    perseus_joules: float
    net_saving: float
    clocks_mhz: tuple[int, ...]
    actions_saving: float | None
    actions_longer: float | None

    @property
    def saving(self) -> float:
        """Of all joules."""
        return 1 - self.perseus_joules / self.joules

    @property
    def longer(self) -> float:
        """By what share the step is."""
        return self.perseus_step_s / self.step_s - 1


def job_of(work: str, batch: int) -> object:
    """A job on invented data."""
    source = {"source": "synthetic"}
    return from_dict(
        {
            "job": {"name": work},
            "model": {"zoo": work},
            "data": {
                "shape": SHAPES[work],
                "classes": 10,
                "train": [0, batch],
                "test": [batch, batch + 1],
                "features": {"owner": "alice", **source},
                "labels": {"owner": "bob", **source},
            },
            "train": {"batch_size": batch},
        }
    )


def spans_of(schedule: Schedule, simulation: Simulation) -> list[Span]:
    """The simulated step as the runtime would write it down: the groups of each worker, with what they waited."""
    found: list[Span] = []
    for index, worker in enumerate(schedule.workers):
        own = [span for span in simulation.spans if span.worker == index]
        first_update = next((a for a in worker.actions if a.kind == "U"), None)
        for action in dict.fromkeys(span.action for span in own):
            pieces = [span for span in own if span.action == action]
            # Neighbouring updates run side by side, under the name of the first.
            names = [a for a in worker.actions if a.kind == "U"] if action == first_update else [action]
            waited = sum(p.end_s - p.start_s for p in pieces if not p.computes)
            found.append(Span(worker.name, " ".join(map(str, names)), pieces[0].start_s, pieces[-1].end_s, waited, 0.0))
    return found


def slowed(cut: Cut, slower: Callable[[Action], float]) -> Callable[[Action], TimedTrace]:
    """The traces of actions with their computing stretched."""

    def trace(action: Action) -> TimedTrace:
        by = slower(action)
        return tuple(dataclasses.replace(piece, compute_s=piece.compute_s * by) for piece in cut.trace(action))

    return trace


def lived_through_j(card: Card, simulation: Simulation, workers: Sequence[int], clock_mhz: int | None) -> float:
    """Joules of a simulated card in a step, warm from many such steps, at this clock (None: the driver's)."""
    now = [0.0]
    gpu = Simulated(card, now=lambda: now[0])
    gpu.set_knob("sm", clock_mhz)
    gpu.work(0.0)
    step_s, before_j = simulation.step_s, 0.0
    computing = sorted((s.start_s, s.end_s) for s in simulation.spans if s.computes and s.worker in workers)
    # The heat sink is warm after minutes: the mean load is held that long first.
    share = min(1.0, sum(end - begin for begin, end in computing) / step_s)
    gpu.work(share)
    now[0] += 600.0
    gpu.advance()
    before_j, zero_s = gpu.energy_j, now[0]
    busy_until_s = 0.0
    for begin_s, end_s in computing:
        if begin_s > busy_until_s:
            gpu.work(0.0)
            now[0] = zero_s + begin_s
            gpu.work(1.0)
        elif end_s <= busy_until_s:
            continue
        now[0] = zero_s + end_s
        gpu.work(1.0)
        busy_until_s = end_s
    gpu.work(0.0)
    now[0] = zero_s + step_s
    gpu.advance()
    return gpu.energy_j - before_j


def phases_of(
    schedule: Schedule, cut: Cut, parts: Sequence[Part], curve: Curve, plan: PhasePlan, net: Net, gpus: int
) -> tuple[Simulation, dict[tuple[int, Action], int]]:
    """The step with a clock for each action, changes included; and the clocks by worker and action."""
    change_s = change_of(curve.card)
    late = with_changes(parts, curve, plan.clocks_mhz, change_s)
    slower: dict[Action, float] = {}
    clocks: dict[tuple[int, Action], int] = {}
    for part, slow in zip(parts, late, strict=True):
        for word in part.name.split()[1:]:
            action = Action.parse(word)
            slower[action] = slow.compute_s / part.compute_s if part.compute_s > 0 else 1.0
            clocks[part.worker, action] = plan.clocks_mhz[part.name]
    return simulate(schedule, slowed(cut, lambda action: slower.get(action, 1.0)), net, float(gpus)), clocks


def change_of(card: Card) -> float:
    """Seconds until a clock is in force, as declared."""
    return card.transition.call_s + card.transition.median_s


def lived_by_actions_j(
    card: Card, simulation: Simulation, worker: int, clocks: Mapping[tuple[int, Action], int], rest_mhz: int
) -> float:
    """Like `lived_through_j`, of one worker's GPU, whose clock is set when an action begins and when it ends."""
    events: list[tuple[float, int, str, int]] = []
    own = [span for span in simulation.spans if span.worker == worker]
    for action in dict.fromkeys(span.action for span in own):
        pieces = [span for span in own if span.action == action]
        clock = clocks.get((worker, action), card.sustained_mhz)
        events += [(pieces[0].start_s, 1, "sm", clock), (pieces[-1].end_s, 0, "sm", rest_mhz)]
        for piece in pieces:
            if piece.computes:
                events += [(piece.start_s, 3, "work", 1), (piece.end_s, 2, "work", 0)]
    now = [0.0]
    gpu = Simulated(card, now=lambda: now[0])
    computing_s = sum(span.end_s - span.start_s for span in own if span.computes)
    gpu.work(min(1.0, computing_s / simulation.step_s))
    gpu.set_knob("sm", rest_mhz)
    now[0] += 600.0
    gpu.advance()
    gpu.work(0.0)
    before_j, zero_s = gpu.energy_j, now[0]
    for at_s, _, what, value in sorted(events):
        now[0] = zero_s + at_s
        if what == "work":
            gpu.work(float(value))
        else:
            gpu.set_knob("sm", value)
    now[0] = zero_s + simulation.step_s
    gpu.advance()
    return gpu.energy_j - before_j


def saving_of(
    work: str, net_name: str, card: Card, machine: str, workers: int, one_gpu: bool, batch: int, longer: float
) -> Row:
    """One work on one network."""
    job = job_of(work, batch)
    _, chain = build_chain(job)  # type: ignore[arg-type]
    nodes_of = estimated(chain, setting_of(job), device(machine))  # type: ignore[arg-type]
    net = parse(net_name)
    gpus = 1 if one_gpu else workers
    wish = Wish(max_workers=workers, max_simulations=40)
    choice = choose(nodes_of, len(chain.layers), batch, net, float(gpus), wish)
    cut, schedule, full = choice.best.cut, choice.best.schedule, choice.simulation
    parts: list[Part] = step_graph(schedule, spans_of(schedule, full))
    curve = Curve(card, card.memory_clocks_mhz[-1], card.sm_clocks_mhz)
    gpu_of = [0 if one_gpu else index for index in range(len(schedule.workers))]
    owners: dict[int, list[int]] = {}
    for index, worker in enumerate(schedule.workers):
        for stage in worker.stages:
            owners.setdefault(stage, []).append(index)

    def at(clocks: Mapping[int, int]) -> Simulation:
        def slower(action: Action) -> float:
            own = owners[action.stage]
            return curve.slower(clocks[gpu_of[own[(action.microbatch or 0) % len(own)]]])

        return simulate(schedule, slowed(cut, slower), net, float(gpus))

    coarse = dataclasses.replace(curve, clocks_mhz=card.sm_clocks_mhz[::-STRIDE][::-1])
    target_s = full.step_s * (1 + longer)
    clocks = clocks_of_gpus(parts, coarse, gpu_of, target_s, lambda tried: at(tried).step_s)
    slow = at(clocks)
    before_j = after_j = idle_j = 0.0
    for gpu, clock in clocks.items():
        own = [index for index, its in enumerate(gpu_of) if its == gpu]
        before_j += lived_through_j(card, full, own, None)
        after_j += lived_through_j(card, slow, own, clock)
        nothing = dataclasses.replace(full, spans=())
        idle_j += lived_through_j(card, nothing, own, card.sm_clocks_mhz[0])
    actions_saving = actions_longer = None
    slack_s = max(0.0, target_s - slow.step_s)
    plan = None if one_gpu else plan_phases(parts, coarse, gpu_of, clocks, slack_s, change_of(card), full.step_s)
    if plan is not None:
        by_actions, own_clocks = phases_of(schedule, cut, parts, coarse, plan, net, gpus)
        actions_longer = by_actions.step_s / full.step_s - 1
        actions_j = sum(
            lived_by_actions_j(card, by_actions, worker, own_clocks, plan.rest_mhz) for worker in range(len(gpu_of))
        )
        actions_saving = 1 - actions_j / before_j
    share = sum(worker.compute_s for worker in full.workers) / full.step_s / gpus
    return Row(
        work,
        net_name,
        f"{schedule.name}, {len(schedule.slots)} stages, {schedule.microbatches} micro-batches",
        len(clocks),
        share,
        full.step_s,
        before_j,
        slow.step_s,
        after_j,
        1 - (after_j - idle_j) / (before_j - idle_j),
        tuple(clocks.values()),
        actions_saving,
        actions_longer,
    )


@dataclass(frozen=True)
class CapRow:
    """A cap: seconds until the truth is below it, the longest time above it, watt-seconds above it, and mean power."""

    cap_w: float
    settled_s: float
    longest_above_s: float
    above_ws: float
    mean_w: float


def follow_caps(card: Card, busy: float, seed: int, with_limit: bool, seconds: float = 30.0) -> list[CapRow]:
    """A step response: caps one after the other on a card that computes a share `busy` of the time. with_limit: the
    driver's own limit is set, too, which a simulated card keeps at once; else clocks alone."""
    now = [0.0]
    gpu = Simulated(card, seed, lambda: now[0])
    guard = Guard(gpu, print, now=lambda: now[0])
    scene = Scene(card, card.sm_clocks_mhz, card.memory_clocks_mhz, (1,), Setting())
    curve = Curve(card, card.memory_clocks_mhz[-1], card.sm_clocks_mhz)
    caps = [min(cap, card.tdp_w) for cap in CAPS_W]
    knobs = guard.can.knobs if with_limit else guard.can.knobs - {"limit"}
    can = dataclasses.replace(guard.can, knobs=knobs)
    memories = {memory: Curve(card, memory, card.sm_clocks_mhz).busy_w for memory in card.memory_clocks_mhz}
    limits, schedule = Limits(cap_w=caps[0]), build("sequential", (1,), 1)
    control = Control(Perseus(scene), limits, can, schedule, print, curve.busy_w, memories)
    gpu.work(busy)
    rows = []
    for cap_w in caps:
        control.change_cap(cap_w)
        began_s, above_s, longest_s, above_ws, last_above_s, energy_j = now[0], 0.0, 0.0, 0.0, now[0], gpu.energy_j
        while now[0] < began_s + seconds:
            wanted = control.tick(now[0], guard.read())
            if wanted != guard.setting:
                guard.apply(wanted)
            for _ in range(10):
                now[0] += 0.01
                gpu.advance()
                over_w = gpu.power_w - cap_w
                above_s = above_s + 0.01 if over_w > 0 else 0.0
                longest_s, above_ws = max(longest_s, above_s), above_ws + 0.01 * max(0.0, over_w)
                last_above_s = now[0] if over_w > 0 else last_above_s
        rows.append(CapRow(cap_w, last_above_s - began_s, longest_s, above_ws, (gpu.energy_j - energy_j) / seconds))
    return rows


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", nargs="+", default=["lenet", "vgg16"], choices=sorted(SHAPES))
    parser.add_argument("--nets", nargs="+", default=["lan10", "lan", "metro", "wan"])
    parser.add_argument("--card", default="a100-40gb", help="a card of the power service's table")
    parser.add_argument("--device", default="a100", help="a device of the planner: how fast it computes")
    parser.add_argument("--workers", type=int, default=3, help="the most workers, each with a GPU")
    parser.add_argument("--one-gpu", action="store_true", help="one GPU for all workers of a party")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--longer", type=float, default=LONGER, help="by what share a step may be longer")
    parser.add_argument("--seeds", type=int, default=10, help="of the cap's step response")
    parser.add_argument("--json", type=Path)
    words = parser.parse_args()
    card = card_named(words.card)
    print(f"SIMULATED: {card.title}, step times of {words.device} from its data sheet, batch {words.batch}\n")
    head = f"{'work':8}{'net':7}{'GPUs':>5}{'computing':>10}{'step':>10}{'longer':>8}{'joules':>9}{'perseus':>9}"
    print(f"{head}{'saved':>7}{'net':>6}  clocks, MHz")
    rows = []
    for work in words.works:
        for net in words.nets:
            row = saving_of(work, net, card, words.device, words.workers, words.one_gpu, words.batch, words.longer)
            rows.append(row)
            print(
                f"{row.work:8}{row.net:7}{row.gpus:5}{row.computing_share:10.1%}{row.step_s:9.3f}s{row.longer:8.2%}"
                f"{row.joules:9.2f}{row.perseus_joules:9.2f}{row.saving:7.1%}{row.net_saving:6.0%}  "
                f"{', '.join(map(str, row.clocks_mhz))}"
                + (
                    "  (one clock is all)"
                    if row.actions_saving is None or row.actions_longer is None
                    else f"  (clocks by action: {row.actions_saving:.1%}, longer {row.actions_longer:.2%})"
                ),
                flush=True,
            )
    head = f"{'below it after':>15}{'longest above':>15}{'above, Ws':>11}{'mean, W':>9}"
    print(f"\ncap, W   by{'':21}{head}    worst of {words.seeds} seeds")
    caps = {}
    for with_limit, by in ((False, "clocks alone"), (True, "clocks and limit")):
        caps[by] = [follow_caps(card, 1.0, seed, with_limit) for seed in range(words.seeds)]
        for number in range(len(CAPS_W)):
            own = [rows_of[number] for rows_of in caps[by]]
            names = [f.name for f in dataclasses.fields(CapRow)[1:]]
            worst = CapRow(own[0].cap_w, *(max(getattr(row, name) for row in own) for name in names))
            print(
                f"{worst.cap_w:<9g}{by:23}{worst.settled_s:14.2f}s{worst.longest_above_s:14.2f}s{worst.above_ws:11.2f}"
                f"{worst.mean_w:9.1f}"
            )
    if words.json:
        steps = {by: [[asdict(row) for row in own] for own in found] for by, found in caps.items()}
        plain = {"savings": [asdict(row) for row in rows], "caps": steps}
        words.json.write_text(json.dumps(plain, indent=1))


if __name__ == "__main__":
    main()
