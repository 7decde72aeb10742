"""What this machine takes for a network's layers, measured: the real coroutines of one party, on real tensors.

What a party computes does not depend on values, so the other parties' messages are stand-ins (`drive`). Every piece
between two rounds is timed by itself, for two numbers of rows; other numbers lie on the line through both
(`stages.between`). Seconds are those of the processor, which are nearly the same while others use the machine.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from mpcpipe.nn.chain import Chain
from mpcpipe.plan.cost import ChainCosts
from mpcpipe.plan.drive import Setting, Solo, drive_step
from mpcpipe.plan.machine import Machine, Node
from mpcpipe.protocol.rounds import Round
from mpcpipe.random.keys import own_key
from mpcpipe.random.tape import Holders, PrgTape

_STAND_IN = 0x1234_5678
Seconds = Mapping[str, tuple[float, ...]]
"""By `layer/direction`: seconds of each piece."""


@dataclass(frozen=True)
class Timing:
    """Seconds of every piece for each of two numbers of rows (or one)."""

    rows: tuple[int, ...]
    seconds: tuple[Seconds, ...]

    def nodes(self, costs: ChainCosts, machine: Machine) -> tuple[Node, ...]:
        """Layers in seconds, for one of the numbers of rows: computing as measured, rounds as the machine's rates say.

        An update does not depend on rows, so the best of all measurements counts.
        """
        mine = self.seconds[self.rows.index(costs.rows)]
        found = []
        for layer in costs.layers:
            traces = {}
            for direction, trace in layer.traces.items():
                key = f"{layer.name}/{direction}"
                of_updates = [seconds[key] for seconds in self.seconds] if direction == "U" else [mine[key]]
                pieces = [min(took) for took in zip(*of_updates, strict=True)]
                both = zip(trace, pieces, strict=True)
                traces[direction] = tuple(machine.timed(segment, seconds) for segment, seconds in both)
            found.append(Node(layer.name, traces, layer.row_numel))
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"rows": list(self.rows), "seconds": [{k: list(v) for k, v in s.items()} for s in self.seconds]}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Timing:
        """The inverse."""
        return cls(tuple(given["rows"]), tuple({k: tuple(v) for k, v in s.items()} for s in given["seconds"]))


@dataclass
class _Stopwatch:
    """Times pieces; what it takes to make the others' messages is not counted."""

    found: dict[str, list[float]] = field(default_factory=dict)
    key: str = ""
    began_s: float = 0.0

    def enter(self, name: str, direction: str) -> None:
        self.key = f"{name}/{direction}"
        self.found.setdefault(self.key, [])
        self.began_s = time.thread_time()

    def watch(self, step: Round | None) -> None:
        self.found[self.key].append(time.thread_time() - self.began_s)
        self.began_s = time.thread_time()

    def make(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        value = torch.full(shape, _STAND_IN if dtype.itemsize >= 4 else 1, dtype=dtype)
        self.began_s = time.thread_time()
        return value


def timing(chain: Chain, setting: Setting, rows: tuple[int, ...], repeats: int = 2) -> Timing:
    """Measure every layer for each number of rows, on one thread; the best of `repeats`. Takes about three steps."""
    with one_thread():
        return Timing(rows, tuple(_best([_once(chain, setting, n) for _ in range(repeats)]) for n in rows))


def _best(runs: list[dict[str, list[float]]]) -> Seconds:
    return {key: tuple(min(pieces) for pieces in zip(*[run[key] for run in runs], strict=True)) for key in runs[0]}


def _once(chain: Chain, setting: Setting, rows: int) -> dict[str, list[float]]:
    watch = _Stopwatch()
    keys: dict[Holders, bytes] = {(i,): own_key() for i in range(setting.parties)}
    for size in (2, 3):
        keys |= {held: own_key() for held in itertools.combinations(range(setting.parties), size)}
    drive_step(chain, setting, setting.party(0, PrgTape(keys)), rows, Solo(watch.make, watch.watch), watch.enter)
    return {key: pieces for key, pieces in watch.found.items() if not key.endswith("/")}


@contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread, as a worker has it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
