"""Parties with real crews in threads of one process, over memory links; the keys are the same in every run."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from mpcpipe.link.memory import MemoryNetwork
from mpcpipe.nn.convert import convert
from mpcpipe.nn.fixed import Fixed
from mpcpipe.nn.layers import walk
from mpcpipe.nn.loss import CrossEntropy, Loss
from mpcpipe.nn.optim import SGD
from mpcpipe.plan.actions import Schedule
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.replicated3 import Replicated3
from mpcpipe.random.tape import PrgTape
from mpcpipe.ring.fixed import FixedPoint
from mpcpipe.ring.ring import Ring
from mpcpipe.runtime.crew import Crew
from mpcpipe.runtime.model import secrets, start_weights
from mpcpipe.runtime.pipeline import Arrangement
from mpcpipe.runtime.stage import Stage
from mpcpipe.runtime.worker import Shared, Task

CLASSES = 3


class Rows:
    """A feed whose party 0 has the features and party 1 the labels, all random and public to the test."""

    classes = CLASSES
    fraction_bits = 16

    def __init__(self, party: int, shape: tuple[int, ...], count: int) -> None:
        generator = torch.Generator().manual_seed(5)
        self.party, self.shape = party, shape
        self.x = torch.rand((count, *shape), generator=generator)
        self.y = torch.randint(self.classes, (count,), generator=generator)

    async def features(self, p: Protocol, rows: torch.Tensor) -> Fixed:
        bits = self.fraction_bits
        value = FixedPoint(p.ring, bits).encode(self.x[rows], "x") if self.party == 0 else None
        return Fixed(await p.share(value, 0, (len(rows), *self.shape)), bits)

    async def labels(self, p: Protocol, rows: torch.Tensor) -> Fixed:
        value = None
        if self.party == 1:
            value = nn.functional.one_hot(self.y[rows], self.classes).to(p.ring.dtype)
        return Fixed(await p.share(value, 1, (len(rows), self.classes)), 0)


def keys(party: int, parties: int = 3) -> dict[tuple[int, ...], bytes]:
    """The same in every run: one for every set of parties that this one is in."""
    holders = [held for size in (1, 2, 3) for held in itertools.combinations(range(parties), size) if party in held]
    return {h: hashlib.sha256(f"test key {h}".encode()).digest() for h in holders}


def train(
    module: Callable[[], nn.Module],
    shape: tuple[int, ...],
    firsts: Sequence[int],
    schedule: Schedule,
    steps: int = 3,
    batch: int = 10,
    feed: Callable[[int, tuple[int, ...], int], Rows] = Rows,
    kind: type[Protocol] = Replicated3,
    reveal_loss: bool = False,
    ring: Ring = Ring(64),  # noqa: B008
    make_loss: Callable[[], Loss] = CrossEntropy,
    pieces: int = 1,
) -> list[dict[str, torch.Tensor]]:
    """Train for `steps` steps; every party's shares of all weights and running statistics."""
    count = kind.party_counts[0]
    network = MemoryNetwork(count, len(schedule.workers), deadline_s=60)

    def party(number: int) -> dict[str, torch.Tensor]:
        torch.set_num_threads(1)
        chain, bits = chains[number], feed.fraction_bits if isinstance(feed, type) else 16
        for layer in walk(chain.layers):
            layer.working_bits = bits
        p = kind(
            party=number, ring=ring, tape=PrgTape(keys(number, count), audit=True), compare_bits=min(32, ring.bits)
        )
        start_weights(chain, p, FixedPoint(ring, bits))
        cut = Arrangement(tuple(firsts), schedule).cut(chain.layers)
        stages = [
            Stage(
                *(layers, lambda: SGD(momentum=0.9), i == 0, schedule.staleness),
                *(pieces, schedule.name != "sequential"),
            )
            for i, layers in enumerate(cut)
        ]
        meshes = [network.mesh(number, worker) for worker in range(len(schedule.workers))]
        loss = make_loss()
        loss.working_bits = bits
        crew = Crew(Shared(p, stages, feed(number, shape, batch * steps), loss), meshes, network.abort)
        tasks = [
            Task(
                step + 1,
                torch.arange(step * batch, (step + 1) * batch).tensor_split(schedule.microbatches),
                0.1,
                reveal_loss,
            )
            for step in range(steps)
        ]
        for first in range(0, steps, schedule.steps):
            crew.run(schedule, tasks[first : first + schedule.steps])
        return {f"{layer}.{key}": value.data for (layer, key), value in secrets(chain.layers).items()}

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        template = module()
    chains = [convert(template, shape) for _ in range(count)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(party, range(count)))
