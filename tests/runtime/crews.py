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
from mpcpipe.nn.loss import CrossEntropy
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

    def __init__(self, party: int, shape: tuple[int, ...], count: int) -> None:
        generator = torch.Generator().manual_seed(5)
        self.party, self.shape = party, shape
        self.x = torch.rand((count, *shape), generator=generator)
        self.y = torch.randint(CLASSES, (count,), generator=generator)

    async def features(self, p: Protocol, rows: torch.Tensor) -> Fixed:
        value = FixedPoint(p.ring, 16).encode(self.x[rows], "x") if self.party == 0 else None
        return Fixed(await p.share(value, 0, (len(rows), *self.shape)), 16)

    async def labels(self, p: Protocol, rows: torch.Tensor) -> Fixed:
        value = nn.functional.one_hot(self.y[rows], CLASSES) if self.party == 1 else None
        return Fixed(await p.share(value, 1, (len(rows), CLASSES)), 0)


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
) -> list[dict[str, torch.Tensor]]:
    """Train for `steps` steps; every party's shares of all weights and running statistics."""
    count = kind.party_counts[0]
    network = MemoryNetwork(count, len(schedule.workers), deadline_s=60)

    def party(number: int) -> dict[str, torch.Tensor]:
        torch.set_num_threads(1)
        chain, ring = chains[number], Ring(64)
        p = kind(party=number, ring=ring, tape=PrgTape(keys(number, count), audit=True), compare_bits=32)
        start_weights(chain, p, FixedPoint(ring, 16))
        cut = Arrangement(tuple(firsts), schedule).cut(chain.layers)
        stages = [
            Stage(layers, lambda: SGD(momentum=0.9), first=i == 0, keep=schedule.staleness)
            for i, layers in enumerate(cut)
        ]
        meshes = [network.mesh(number, worker) for worker in range(len(schedule.workers))]
        crew = Crew(Shared(p, stages, feed(number, shape, batch * steps), CrossEntropy()), meshes, network.abort)
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
