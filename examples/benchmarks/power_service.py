"""SIMULATED: what the power service saves beside a training, as it comes, on one GPU a party. No GPU is measured.

    python examples/benchmarks/power_service.py                       LeNet and VGG-16 on several networks
    python examples/benchmarks/power_service.py --scatter 0.01 --seeds 3 --works lenet --nets lan

The service's own control and policy (perseus, unless --policy) see what they see in a training: the spans of each step,
its length, and readings of a simulated card. Steps are the planner's best pipeline with the seconds of a data sheet, at
the clock in force (all computing goes with the clock, the worst case), and scatter: half of a normal distribution, and
one in 29 takes three times as long. Nothing is told of the network or of what a clock costs. Figures: of the second
half of the training, over the same training with the driver's clocks; `longer` is without the scatter.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from power import SHAPES, job_of, slowed, spans_of  # type: ignore[import-not-found]

from mpcpipe.job.model import build_chain
from mpcpipe.plan.machine import device
from mpcpipe.plan.net import parse
from mpcpipe.plan.partition import Wish, choose
from mpcpipe.plan.planner import estimated
from mpcpipe.plan.simulate import Simulation, simulate
from mpcpipe.runtime.planning import setting_of
from mpcpipe.runtime.record import Span
from mpcpipe.services.base import StepFacts
from mpcpipe.services.power.cards import Card, card_named
from mpcpipe.services.power.clockplan import Curve
from mpcpipe.services.power.control import Control
from mpcpipe.services.power.guard import Guard
from mpcpipe.services.power.policies.base import Scene
from mpcpipe.services.power.service import INTERVAL_S
from mpcpipe.services.power.setting import Limits, Setting
from mpcpipe.services.power.simulated import Simulated
from mpcpipe.services.registry import policy_named

RARE, RARELY = 2.0, 29
"""So much longer is a step now and then: one in so many."""


class Work:
    """A training on a network: its pipeline, and a step at each clock."""

    def __init__(self, work: str, net: str, card: Card, machine: str, workers: int, batch: int) -> None:
        job = job_of(work, batch)
        _, chain = build_chain(job)
        nodes_of = estimated(chain, setting_of(job), device(machine))
        self.net, self.card = parse(net), card
        wish = Wish(max_workers=workers, max_simulations=40)
        choice = choose(nodes_of, len(chain.layers), batch, self.net, 1.0, wish)
        self.cut, self.schedule = choice.best.cut, choice.best.schedule
        self.curve = Curve(card, card.memory_clocks_mhz[-1], card.sm_clocks_mhz)
        self.step = cache(self._step)

    def _step(self, clock_mhz: int) -> tuple[Simulation, list[Span], float]:
        """At a clock: what happens, as the runtime writes it down, and the share of it that the GPU computes."""
        slower = self.curve.slower(clock_mhz)
        found = simulate(self.schedule, slowed(self.cut, lambda action: slower), self.net, 1.0)
        computing_s = sum(span.end_s - span.start_s for span in found.spans if span.computes)
        return found, spans_of(self.schedule, found), min(1.0, computing_s / found.step_s)

    @property
    def full(self) -> Simulation:
        """At the driver's clocks."""
        return self.step(self.card.sustained_mhz)[0]


@dataclass(frozen=True)
class Lived:
    """The second half of a training. longer: the mean of its clocks' steps over that at full clocks, minus 1."""

    longer: float
    joules: float
    seconds: float
    clocks_mhz: tuple[int, ...]
    changes: int
    said: tuple[str, ...]


class Party:
    """A party's simulated card, with the service's control and policy beside it; None: nothing is."""

    def __init__(self, work: Work, policy: str | None, seed: int, now: Callable[[], float], party: int, parties: int):
        self.said: list[str] = []
        self.gpu = Simulated(work.card, seed + 1000 * party, now)
        self.guard = Guard(self.gpu, self.said.append, now=now)
        self.control: Control | None = None
        if policy is not None:
            card = work.card
            clocks, memory = card.sm_clocks_mhz, card.memory_clocks_mhz
            scene = Scene(card, clocks, memory, (1,), Setting(), party=party, parties=parties)
            chosen, schedule = policy_named(policy)(scene), work.schedule
            self.control = Control(chosen, Limits(), self.guard.can, schedule, self.said.append, work.curve.busy_w)

    def tick(self, now_s: float) -> None:
        """A reading, and what follows."""
        sample = self.guard.read()
        if self.control is not None and (wanted := self.control.tick(now_s, sample)) != self.guard.setting:
            self.guard.apply(wanted)


def live(work: Work, policy: str | None, steps: int, scatter: float, seed: int, parties: int = 1) -> Lived:
    """A training beside which the service runs; None: nothing does. Several parties, each with a card and a service of
    its own, compute the same at the same time: the slowest clock decides how long a step takes."""
    now = [0.0]
    all_of = [Party(work, policy, seed, lambda: now[0], party, parties) for party in range(parties)]
    draw = random.Random(seed)
    rows: list[tuple[float, float, float]] = []
    ticked_s = 0.0
    for number in range(steps):
        clocks = [party.gpu.sm_clock_mhz for party in all_of]
        step, spans, busy = work.step(min(clocks))
        shares = [work.curve.slower(clock) / work.curve.slower(min(clocks)) for clock in clocks]
        noise = abs(draw.gauss(0.0, scatter)) + (RARE if scatter and number % RARELY == 7 else 0.0)
        begin_s, end_s = now[0], now[0] + (1 + noise) * step.step_s
        before_j = sum(party.gpu.energy_j for party in all_of)
        for party, share in zip(all_of, shares, strict=True):
            party.gpu.work(share * busy / (1 + noise))
        every_s = max(INTERVAL_S, step.step_s / 20)  # readings of long steps are fewer: nothing happens in between
        while now[0] < end_s:
            now[0] = min(end_s, max(now[0], ticked_s + every_s))
            if now[0] >= ticked_s + every_s - 1e-9:
                ticked_s = now[0]
                for party in all_of:
                    party.tick(now[0])
        for party, share in zip(all_of, shares, strict=True):
            party.gpu.advance()
            if party.control is not None:
                workers = len(work.schedule.workers)
                party.control.step(_facts(number, begin_s, end_s, spans, 1 + noise, share, workers))
        joules = sum(party.gpu.energy_j for party in all_of) - before_j
        rows.append((step.step_s, joules / parties, end_s - begin_s))
    for party in all_of:
        party.guard.close()
    half = rows[len(rows) // 2 :]
    means = [statistics.fmean(row[column] for row in half) for column in range(3)]
    changes = sum(0 if party.control is None else party.control.changes for party in all_of)
    clocks_mhz = tuple(party.gpu.sm_clock_mhz for party in all_of)
    said = tuple(sentence for party in all_of for sentence in party.said)
    return Lived(means[0] / work.full.step_s - 1, means[1], means[2], clocks_mhz, changes, said)


def _facts(
    number: int, begin_s: float, end_s: float, spans: Sequence[Span], by: float, share: float, workers: int
) -> StepFacts:
    """The step as a party is told it: what scatters is the waiting. share: of the slowest party's computing."""
    own = []
    for span in spans:
        computed_s = span.end_s - span.begin_s - span.wait_s - span.idle_s
        more_s = (by - 1) * (span.end_s - span.begin_s) + (1 - share) * computed_s
        moved = {"begin_s": begin_s + by * span.begin_s, "end_s": begin_s + by * span.end_s}
        own.append(dataclasses.replace(span, **moved, wait_s=span.wait_s + more_s, idle_s=by * span.idle_s))
    compute_s = sum(span.end_s - span.begin_s - span.wait_s - span.idle_s for span in own) / workers
    return StepFacts(number, 1, begin_s, end_s, compute_s, end_s - begin_s - compute_s, own)


@dataclass(frozen=True)
class Row:
    """One work on one network, means over the seeds; longest: the largest `longer` of any seed."""

    work: str
    net: str
    pipeline: str
    scatter: float
    steps: int
    step_s: float
    computing_share: float
    longer: float
    longest: float
    joules: float
    saved: float
    least_saved: float
    net_saved: float
    clocks_mhz: tuple[int, ...]
    changes: float


def idle_of(card: Card) -> float:
    """Watts of a card that does nothing at its lowest clock, as cool as it is then."""
    now = [0.0]
    gpu = Simulated(card, now=lambda: now[0])
    gpu.set_knob("sm", card.sm_clocks_mhz[0])
    now[0] += 600.0
    gpu.advance()
    return gpu.power_w


def row_of(name: str, net: str, work: Work, policy: str, steps: int, scatter: float, seeds: int, parties: int) -> Row:
    """All seeds."""
    idle_w = idle_of(work.card)
    plain = [live(work, None, steps, scatter, seed, parties) for seed in range(seeds)]
    found = [live(work, policy, steps, scatter, seed, parties) for seed in range(seeds)]
    for one in {sentence for own in found for sentence in own.said}:
        print(f"  {one}")
    saved = [1 - own.joules / before.joules for own, before in zip(found, plain, strict=True)]
    net_saved = [
        1 - (own.joules - idle_w * own.seconds) / (before.joules - idle_w * before.seconds)
        for own, before in zip(found, plain, strict=True)
    ]
    pipeline = f"{work.schedule.name}, {len(work.schedule.slots)} stages, {work.schedule.microbatches} micro-batches"
    return Row(
        name,
        net,
        f"{pipeline}, {work.cut.pieces} pieces",
        scatter,
        steps,
        work.full.step_s,
        work.step(work.card.sustained_mhz)[2],
        statistics.fmean(own.longer for own in found),
        max(own.longer for own in found),
        statistics.fmean(own.joules for own in plain),
        statistics.fmean(saved),
        min(saved),
        statistics.fmean(net_saved),
        tuple(clock for own in found for clock in own.clocks_mhz),
        statistics.fmean(own.changes for own in found),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", nargs="+", default=["lenet", "vgg16"], choices=sorted(SHAPES))
    parser.add_argument("--nets", nargs="+", default=["lan10", "lan", "metro", "wan"])
    parser.add_argument("--card", default="a100-40gb", help="a card of the power service's table")
    parser.add_argument("--device", default="a100", help="a device of the planner: how fast it computes")
    parser.add_argument("--policy", default="perseus")
    parser.add_argument("--workers", type=int, default=3, help="the most workers, all on the party's GPU")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--scatter", type=float, default=0.0, help="of a step: standard deviation before it is halved")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--parties", type=int, default=1, help="with a service each; joules are a party's mean")
    parser.add_argument("--json", type=Path)
    words = parser.parse_args()
    card = card_named(words.card)
    print(f"SIMULATED: {card.title}, one a party, step times of {words.device} from its data sheet, {words.policy}\n")
    print(
        f"{'work':8}{'net':7}{'step':>9}{'computing':>11}{'longer':>8}{'longest':>9}{'joules':>10}{'saved':>7}"
        f"{'least':>7}{'net':>6}  clocks, MHz"
    )
    rows = []
    for name in words.works:
        for net in words.nets:
            work = Work(name, net, card, words.device, words.workers, words.batch)
            row = row_of(name, net, work, words.policy, words.steps, words.scatter, words.seeds, words.parties)
            rows.append(row)
            print(
                f"{name:8}{net:7}{row.step_s:8.3f}s{row.computing_share:11.1%}{row.longer:8.2%}{row.longest:9.2%}"
                f"{row.joules:10.2f}{row.saved:7.1%}{row.least_saved:7.1%}{row.net_saved:6.0%}  "
                f"{', '.join(map(str, row.clocks_mhz))}",
                flush=True,
            )
    if words.json:
        words.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
