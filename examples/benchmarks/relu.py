"""ReLU of a million secret numbers, forward: three processes over TCP, with the package's own interface.

    python examples/benchmarks/relu.py [--elements N] [--steps N] [--json FILE]

One step is the comparison with 0 and the selection by it; the numbers are shared beforehand. With --party I and
--hosts H0,H1,H2 this process is one of the parties; without, all three run here.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from mpcpipe.link.base import Mesh, Part
from mpcpipe.link.mesh import connect
from mpcpipe.protocol.base import Protocol, Share
from mpcpipe.protocol.replicated3 import Replicated3
from mpcpipe.protocol.rounds import Round, run
from mpcpipe.random.tape import PrgTape
from mpcpipe.ring.fixed import FixedPoint
from mpcpipe.ring.ring import Ring
from mpcpipe.runtime.memory import keep_freed_memory, peak_rss_bytes

FRACTION_BITS, COMPARE_BITS, PARTIES, PORT = 16, 32, 3, 17350


def others(p: Protocol) -> list[int]:
    return [party for party in range(p.parties) if party != p.party]


async def mean_over_parties(p: Protocol, value: int) -> float:
    """The mean of a public number that every party has."""
    message, part = [torch.tensor([value])], [Part(torch.int64, 1)]
    received = await Round(
        p.label("mean"), {party: message for party in others(p)}, {party: part for party in others(p)}
    )
    return (value + sum(int(received[party][0]) for party in others(p))) / p.parties


async def relu(p: Protocol, x: Share) -> Share:
    positive = await p.nonnegative(x)
    y, _ = await p.select(positive, x)
    return y


def party(number: int, addresses: list[tuple[str, int]], elements: int, steps: int, file: Path | None) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    ring = Ring(64)
    fixed = FixedPoint(ring, FRACTION_BITS)
    x = torch.randn(elements, generator=torch.Generator().manual_seed(1))
    own = fixed.encode(x, "x") if number == 0 else None
    with connect(number, addresses, insecure_plaintext=True) as network:  # the numbers are random
        mesh = network.mesh()
        p = Replicated3(party=number, ring=ring, tape=PrgTape(network.keys), compare_bits=COMPARE_BITS)
        shared = run(p.at("x").share(own, 0, (elements,)), mesh)
        seconds, sent, rounds = [], [], []
        for step in range(1 + steps):  # the first is not counted
            start, bytes_before, clock_before = time.perf_counter(), sent_bytes(mesh), mesh.clock
            y = run(relu(p.at(f"step {step}"), shared), mesh)
            seconds.append(time.perf_counter() - start)
            sent.append(sent_bytes(mesh) - bytes_before)
            rounds.append(mesh.clock - clock_before)
        mean_sent = run(mean_over_parties(p.at("sent"), sent[-1]), mesh)
        opened = run(p.at("result").reveal(y, None, "to check it"), mesh)
    assert opened is not None
    error = float((fixed.decode(opened) - x.relu()).abs().max())
    if error > fixed.unit:
        raise SystemExit(f"the result is wrong, by up to {error:g}")
    if number == 0:
        result = {
            "step_s": statistics.median(seconds[1:]),
            "steps_s": seconds[1:],
            "sent_mb": mean_sent / 1e6,
            "rounds": rounds[-1],
            "peak_mb": peak_rss_bytes() / 1e6,
        }
        line = json.dumps(result) + "\n"
        print(line, end="") if file is None else file.write_text(line)


def sent_bytes(mesh: Mesh) -> int:
    return sum(link.traffic.sent_wire_bytes for link in mesh.links.values())


def all_here(elements: int, steps: int, file: Path | None) -> None:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(PARTIES)]
    addresses = [listener.getsockname() for listener in held]
    for listener in held:
        listener.close()
    start = multiprocessing.get_context("spawn").Process
    parties = [start(target=party, args=(number, addresses, elements, steps, file)) for number in range(PARTIES)]
    for process in parties:
        process.start()
    for process in parties:
        process.join()
    if any(process.exitcode for process in parties):
        raise SystemExit("a party failed; its message is above")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=5, help="steps that are timed, after one that is not")
    parser.add_argument("--json", type=Path, help="write the result there, not to the standard output")
    parser.add_argument("--party", type=int, help="be only this party")
    parser.add_argument("--hosts", help="where the parties are: H0,H1,H2")
    options = parser.parse_args()
    if options.party is None:
        all_here(options.elements, options.steps, options.json)
    else:
        addresses = [(host, PORT + number) for number, host in enumerate(options.hosts.split(","))]
        party(options.party, addresses, options.elements, options.steps, options.json)


if __name__ == "__main__":
    main()
