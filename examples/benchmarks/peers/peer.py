"""What the scripts of the peers share: the works as data, and one process a party.

Needs nothing but Python, for each peer lives in a virtual environment of its own. A script's `step(work, party)` is a
generator: it sets up, yields once, and then does one training step for every `next`, yielding the bytes sent in it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEARNING_RATE = 0.01
PORT = 17400

# conv: in, out, kernel, stride, padding; pool: kernel, stride; linear: in, out
Layer = tuple[Any, ...]


@dataclass(frozen=True)
class Work:
    """One step: layers, the shape of an example, and the examples in a batch. Without weights it is forward only."""

    layers: tuple[Layer, ...]
    shape: tuple[int, int, int]
    batch: int
    classes: int = 10

    @property
    def trains(self) -> bool:
        """Whether there are weights."""
        return any(kind in ("conv", "linear") for kind, *_ in self.layers)


def lenet(pool: str) -> tuple[Layer, ...]:
    first = (("conv", 1, 20, 5, 1, 0), ("relu",), (pool, 2, 2))
    second = (("conv", 20, 50, 5, 1, 0), ("relu",), (pool, 2, 2))
    return (*first, *second, ("flatten",), ("linear", 800, 500), ("relu",), ("linear", 500, 10))


def head(inputs: int) -> tuple[Layer, ...]:
    return (("flatten",), ("linear", inputs, 256), ("relu",), ("linear", 256, 256), ("relu",), ("linear", 256, 10))


def vgg16() -> tuple[Layer, ...]:
    layers: list[Layer] = []
    channels = 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for i in range(depth):
            layers += [("conv", channels, width, 3, 1, 1), *([("avg", 2, 2)] if i == depth - 1 else []), ("relu",)]
            channels = width
    return (*layers, *head(512))


MLP: tuple[Layer, ...] = (
    *(("flatten",), ("linear", 784, 128), ("relu",)),
    *(("linear", 128, 128), ("relu",), ("linear", 128, 10)),
)
ALEXNET: tuple[Layer, ...] = (
    *(("conv", 3, 96, 11, 4, 9), ("avg", 3, 2), ("relu",)),
    *(("conv", 96, 256, 5, 1, 1), ("avg", 2, 1), ("relu",)),
    *(("conv", 256, 384, 3, 1, 1), ("relu",), ("conv", 384, 384, 3, 1, 1), ("relu",)),
    *(("conv", 384, 256, 3, 1, 1), ("relu",), *head(256)),
)
WORKS = {
    "w1": Work(MLP, (1, 28, 28), 128),
    "w2avg": Work(lenet("avg"), (1, 28, 28), 128),
    "w2max": Work(lenet("max"), (1, 28, 28), 128),
    "w3": Work(ALEXNET, (3, 32, 32), 32),
    "w4": Work(vgg16(), (3, 32, 32), 8),
    "relu": Work((("relu",),), (1, 1000, 1000), 1),  # forward only
}


@dataclass(frozen=True)
class Party:
    """Which party this process is, and where each one listens (HOST:PORT)."""

    number: int
    addresses: tuple[str, ...]


Steps = Callable[[Work, Party], Generator[int]]


def run(peer: str, parties: int, steps_of: Steps) -> None:
    """The command line of a peer's script: all parties on this machine, or one of them with --party and --hosts."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--steps", type=int, default=2, help="steps that are timed, after one that is not")
    parser.add_argument("--json", type=Path, help="write the line there, not to the standard output")
    parser.add_argument("--party", type=int, help="be only this party")
    parser.add_argument("--hosts", help="where the parties are, separated by commas")
    options = parser.parse_args()
    if options.party is None:
        _run_all(parties)
        return
    hosts = options.hosts.split(",")
    addresses = tuple(host if ":" in host else f"{host}:{PORT + number}" for number, host in enumerate(hosts))
    stepping = steps_of(WORKS[options.work], Party(options.party, addresses))
    next(stepping)
    seconds, sent = [], []
    for _ in range(1 + options.steps):
        start = time.perf_counter()
        sent.append(next(stepping))
        seconds.append(time.perf_counter() - start)
    stepping.close()
    result = {
        "peer": peer,
        "work": options.work,
        "step_s": statistics.median(seconds[1:]),
        "steps_s": seconds[1:],
        "sent_mb": statistics.median(sent[1:]) / 1e6,
    }
    if options.party == 0:
        line = json.dumps(result) + "\n"
        if options.json:
            options.json.write_text(line)
        else:
            sys.stdout.write(line)
    sys.stdout.flush()


def _run_all(parties: int) -> None:
    """Start this script again for every party; end all when one fails."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(parties)]
    hosts = ",".join(f"127.0.0.1:{held_one.getsockname()[1]}" for held_one in held)
    for held_one in held:
        held_one.close()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *sys.argv, "--hosts", hosts, "--party"]
    running = [subprocess.Popen([*command, str(number)], env=environment) for number in range(parties)]
    try:
        while any(process.poll() is None for process in running) and not any(p.returncode for p in running):
            time.sleep(0.1)
    finally:
        for process in running:
            process.kill()
            process.wait()
    sys.exit(next((f"party {n} failed" for n, process in enumerate(running) if process.returncode), 0))
