"""A small secure computation, all parties as threads, beside the same in the clear: for `mpcpipe doctor`."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import torch

from mpcpipe.link.memory import MemoryNetwork
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.registry import protocol_named
from mpcpipe.protocol.rounds import run
from mpcpipe.random.keys import own_key
from mpcpipe.random.prg import fill
from mpcpipe.random.tape import PrgTape
from mpcpipe.ring.bilinear import MatMul
from mpcpipe.ring.fixed import FixedPoint
from mpcpipe.ring.ring import Ring

FRACTION_BITS = 16
DEADLINE_S = 30.0


def secure_self_test(name: str = "replicated3", size: int = 64) -> tuple[float, float]:
    """(largest error in units of the last fraction bit, seconds) of ReLU(x w), x and w secret of (size, size).

    Right is an error of 1 unit at most: a product is rounded to one of its two neighbours, ReLU is exact.
    """
    kind = protocol_named(name)
    parties = kind.party_counts[-1]
    ring = Ring(64)
    fixed = FixedPoint(ring, FRACTION_BITS)
    generator = torch.Generator().manual_seed(1)
    x, w = (fixed.encode(torch.randn(size, size, generator=generator), which) for which in ("x", "w"))
    keys = {pair: own_key() for pair in _holders(parties)}
    network = MemoryNetwork(parties, deadline_s=DEADLINE_S)

    async def product_and_relu(p: Protocol) -> torch.Tensor | None:
        mine = p.party == 0
        secret_x = await p.at("x").share(x if mine else None, 0, tuple(x.shape))
        secret_w = await p.at("w").share(w if mine else None, 0, tuple(w.shape))
        y = await p.at("product").product(MatMul(), secret_x, secret_w, FRACTION_BITS)
        positive = await p.at("sign").nonnegative(y)
        chosen, _ = await p.at("relu").select(positive, y)
        return await p.at("result").reveal(chosen, None, "self-test")

    def one(party: int) -> torch.Tensor | None:
        own = {pair: key for pair, key in keys.items() if party in pair}
        p = kind(party=party, ring=ring, tape=PrgTape(own), compare_bits=40, parties=parties)
        try:
            return run(product_and_relu(p), network.mesh(party))
        except BaseException as error:
            network.abort(error)
            raise

    began = time.perf_counter()
    with ThreadPoolExecutor(parties) as pool:
        opened = list(pool.map(one, range(parties)))
    seconds = time.perf_counter() - began
    expected = (fixed.decode(x) @ fixed.decode(w)).relu()
    errors = [float((fixed.decode(y) - expected).abs().max()) / fixed.unit for y in opened if y is not None]
    learning = parties - (kind.dealer is not None)
    return (max(errors) if len(errors) == learning else float("inf")), seconds


def _holders(parties: int) -> list[tuple[int, ...]]:
    """Who shares a key with whom: every set of parties."""
    return [held for size in range(parties) for held in itertools.combinations(range(parties), size + 1)]


def generator_bytes_per_s(nbytes: int = 1 << 24) -> float:
    """How fast masks are drawn (AES-128-CTR) by one core: the best of three."""
    out = torch.empty(nbytes, dtype=torch.uint8)
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        fill(bytes(16), out)
        best = min(best, time.perf_counter() - began)
    return nbytes / best
