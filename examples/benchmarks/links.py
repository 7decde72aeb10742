"""How fast a link is, with TLS and without: two processes of this machine, real links, over loopback.

    python examples/benchmarks/links.py

One way, both ways at once over one connection, and both ways with a connection for each direction: whether a second
connection would help. And the round trip of a small frame.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mpcpipe.launch.identity import new
from mpcpipe.link.base import Mesh, Part
from mpcpipe.link.identity import load
from mpcpipe.link.mesh import connect

NAMES = ["alice", "bob"]
ELEMENTS = 1 << 20  # 8 MB a frame
SMALL = 64


def one_way(party: int, first: Mesh, second: Mesh, frames: int) -> float:
    """Alice sends, Bob takes. MB/s."""
    return _timed(lambda: _send(first, 1, frames) if party == 0 else _take(first, 0, frames), first, party, frames)


def both_ways(party: int, first: Mesh, second: Mesh, frames: int) -> float:
    """Both send and take, over one connection. MB/s each way."""

    def work() -> None:
        _send(first, 1 - party, frames)
        _take(first, 1 - party, frames)

    return _timed(work, first, party, frames)


def both_ways_over_two(party: int, first: Mesh, second: Mesh, frames: int) -> float:
    """Both send and take, each direction over a connection of its own. MB/s each way."""
    outgoing, incoming = (first, second) if party == 0 else (second, first)

    def work() -> None:
        _send(outgoing, 1 - party, frames)
        _take(incoming, 1 - party, frames)

    return _timed(work, first, party, frames)


def round_trip(party: int, first: Mesh, second: Mesh, frames: int) -> float:
    """A small frame there and back. Microseconds."""
    value, part, peer = torch.arange(SMALL), [Part(torch.int64, SMALL)], 1 - party
    took = []
    for _ in range(100 * frames):
        began = time.perf_counter()
        if party == 0:
            first.send("ping", {peer: [value]})
            first.receive("pong", {peer: part})
        else:
            first.receive("ping", {peer: part})
            first.send("pong", {peer: [value]})
        took.append(time.perf_counter() - began)
    return 1e6 * statistics.median(took)


WORKS: dict[str, Callable[[int, Mesh, Mesh, int], float]] = {
    "one way, MB/s": one_way,
    "both ways, MB/s each": both_ways,
    "both ways over two connections, MB/s each": both_ways_over_two,
    "round trip, us": round_trip,
}


def _send(mesh: Mesh, peer: int, frames: int) -> None:
    values = torch.arange(ELEMENTS)
    for _ in range(frames):
        mesh.send("data", {peer: [values]})


def _take(mesh: Mesh, peer: int, frames: int) -> None:
    for _ in range(frames):
        mesh.receive("data", {peer: [Part(torch.int64, ELEMENTS)]})


def _timed(work: Callable[[], None], mesh: Mesh, party: int, frames: int) -> float:
    """From a common start until both are done."""
    _meet(mesh, party)
    began = time.perf_counter()
    work()
    _meet(mesh, party)
    return frames * 8 * ELEMENTS / 1e6 / (time.perf_counter() - began)


def _meet(mesh: Mesh, party: int) -> None:
    mesh.send("here", {1 - party: [torch.zeros(1)]})
    mesh.receive("here", {1 - party: [Part(torch.float32, 1)]})


def run(party: int, ports: list[int], keys: str | None, frames: int, turns: int, out: Any) -> None:
    torch.set_num_threads(1)
    own, pins = None, []
    if keys is not None:
        from mpcpipe.launch.identity import show

        own = load(f"{keys}/{NAMES[party]}.crt", f"{keys}/{NAMES[party]}.key")
        pins = [show(Path(keys, f"{name}.crt")) for name in NAMES]
    places = [("127.0.0.1", port) for port in ports]
    with connect(party, places, workers=2, names=NAMES, identity=own, pins=pins) as network:
        first, second = network.mesh(0), network.mesh(1)
        found = {
            name: statistics.median(work(party, first, second, frames) for _ in range(turns))
            for name, work in WORKS.items()
        }
        if party == 0:
            out.put(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    import socket

    results = {}
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            new(name, Path(folder))
        for what, keys in (("plaintext", None), ("TLS", folder)):
            listeners = [socket.create_server(("127.0.0.1", 0)) for _ in NAMES]
            ports = [listener.getsockname()[1] for listener in listeners]
            for listener in listeners:
                listener.close()
            out = context.Queue()
            both = [
                context.Process(target=run, args=(i, ports, keys, options.frames, options.turns, out)) for i in (0, 1)
            ]
            for process in both:
                process.start()
            results[what] = out.get(timeout=110)
            for process in both:
                process.join()
    print(
        json.dumps(
            {what: {name: round(value) for name, value in found.items()} for what, found in results.items()}, indent=2
        )
    )


if __name__ == "__main__":
    main()
