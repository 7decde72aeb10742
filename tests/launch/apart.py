"""As `tests.runtime.crews`, but a party's workers share nothing: each has a chain, a protocol and channels of its own.

They are threads here, so that a test takes no time to start them; what they say to each other goes through the real
channels, shared memory included.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from mpcpipe.link.memory import MemoryNetwork
from mpcpipe.nn.convert import convert
from mpcpipe.nn.loss import CrossEntropy
from mpcpipe.nn.optim import SGD, Optimizer
from mpcpipe.plan.actions import Schedule
from mpcpipe.protocol.base import Opening, Protocol
from mpcpipe.protocol.replicated3 import Replicated3
from mpcpipe.random.tape import PrgTape
from mpcpipe.ring.fixed import FixedPoint
from mpcpipe.ring.ring import Ring
from mpcpipe.runtime.model import secrets, start_weights
from mpcpipe.runtime.pipeline import Arrangement
from mpcpipe.runtime.processes.channel import Channel
from mpcpipe.runtime.processes.fellows import Fellows
from mpcpipe.runtime.processes.follow import follow
from mpcpipe.runtime.processes.lead import LeadCrew
from mpcpipe.runtime.stage import Stage
from mpcpipe.runtime.worker import Shared, Task
from tests.runtime.crews import Rows, keys


class KeptRows(Rows):
    """A feed that could have all rows as shares, and has not."""

    kept = None


def pairs(count: int) -> list[dict[int, socket.socket]]:
    """For each of `count` workers, a connection to each other one."""
    ends: list[dict[int, socket.socket]] = [{} for _ in range(count)]
    for one, other in itertools.combinations(range(count), 2):
        ends[one][other], ends[other][one] = socket.socketpair()
    return ends


def train(
    module: Callable[[], nn.Module],
    shape: tuple[int, ...],
    firsts: Sequence[int],
    schedule: Schedule,
    steps: int = 3,
    batch: int = 10,
    kind: type[Protocol] = Replicated3,
    reveal_loss: bool = False,
    optimizer: Callable[[], Optimizer] = lambda: SGD(momentum=0.9),
    openings: list[Opening] | None = None,
) -> list[dict[str, torch.Tensor]]:
    """Train for `steps` steps; every party's shares of all weights and running statistics, at its first worker.

    openings: where what was opened at party 0 is put.
    """
    count, workers = kind.party_counts[0], len(schedule.workers)
    network = MemoryNetwork(count, workers, deadline_s=60)
    arrangement = Arrangement(tuple(firsts), schedule, schedule.steps)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        template = module()
    chains = {(p, w): convert(template, shape) for p in range(count) for w in range(workers)}
    ends = [pairs(workers) for _ in range(count)]
    tasks = [
        Task(
            step + 1,
            torch.arange(step * batch, (step + 1) * batch).tensor_split(schedule.microbatches),
            0.1,
            reveal_loss,
        )
        for step in range(steps)
    ]

    def process(seat: tuple[int, int]) -> dict[str, torch.Tensor]:
        number, worker = seat
        torch.set_num_threads(1)
        ring, chain, mesh = Ring(64), chains[seat], network.mesh(number, worker)
        p = kind(party=number, ring=ring, tape=PrgTape(keys(number, count), audit=True), compare_bits=32)
        start_weights(chain, p, FixedPoint(ring, 16))
        stages = [
            Stage(layers, optimizer, first=i == 0, keep=schedule.staleness)
            for i, layers in enumerate(arrangement.cut(chain.layers))
        ]
        names = [f"party {number} (worker {index})" for index in range(workers)]
        channels = {other: Channel(sock) for other, sock in ends[number][worker].items()}
        fellows = Fellows(worker, channels, names, schedule)
        shared = Shared(p, stages, KeptRows(number, shape, batch * steps), CrossEntropy(), fellows)
        try:
            if worker:
                follow(shared, mesh, fellows, arrangement, network.abort)
                return {}
            crew = LeadCrew(shared, mesh, fellows, network.abort)
            for first in range(0, steps, schedule.steps):
                crew.run(schedule, tasks[first : first + schedule.steps])
            crew.collect()
            crew.end()
        finally:
            fellows.close()
        if openings is not None and number == 0:
            openings.extend(p.openings)
        return {f"{layer}.{key}": value.data for (layer, key), value in secrets(chain.layers).items()}

    with ThreadPoolExecutor(len(chains)) as pool:
        results = dict(zip(chains, pool.map(process, chains), strict=True))
    return [results[party, 0] for party in range(count)]
