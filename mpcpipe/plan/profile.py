"""This machine's rates, measured in seconds and kept in the user's cache folder.

Products and streams are timed by themselves. What element-by-element operations reach depends on the mix that protocols
make of them, so a small network is driven through a step (`measure`) and its rate is what explains the rest.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from mpcpipe.link.base import Link, Part
from mpcpipe.link.frame import Route
from mpcpipe.link.tcp import TcpLink, prepare
from mpcpipe.nn.convert import convert
from mpcpipe.nn.loss import MeanSquaredError
from mpcpipe.nn.optim import SGD
from mpcpipe.plan.cost import chain_costs
from mpcpipe.plan.drive import Setting
from mpcpipe.plan.machine import Machine
from mpcpipe.plan.measure import one_thread, timing
from mpcpipe.plan.trace import Work
from mpcpipe.protocol.replicated3 import Replicated3
from mpcpipe.random.prg import fill
from mpcpipe.ring import native, ops

_REPEATS = 5
_STREAM_BYTES = 1 << 21


def cache_folder() -> Path:
    """Where measurements are kept: XDG_CACHE_HOME/mpcpipe, for its user only."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "mpcpipe"


def cached(what: str, key: Mapping[str, Any], make: Callable[[], dict[str, Any]], folder: Path | None = None) -> Any:
    """What `make` returns, from the cache if it was made for the same `key` on the same machine before.

    A file that cannot be read is made again; a folder that cannot be written is no error.
    """
    full = {"what": what, **key, **machine_key()}
    digest = hashlib.sha256(json.dumps(full, sort_keys=True).encode()).hexdigest()
    path = (folder or cache_folder()) / f"{what}-{digest[:16]}.json"
    try:
        found = json.loads(path.read_text())
        if found["key"] == full:
            return found["value"]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not there, or damaged: measured again
    value = make()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", delete=False) as file:
            json.dump({"key": full, "value": value}, file)
        Path(file.name).replace(path)
    except OSError:
        pass  # a cache is a convenience
    return value


def machine_key() -> dict[str, Any]:
    """What rates depend on: the processor, the native library, torch."""
    library = native.load()
    path = None if library is None else library.path
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "library": "" if library is None else _digest_of(path),
        "torch": torch.__version__,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _digest_of(path: Path | None) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path is not None else "there"
    except OSError:
        return "there"


def this_machine(folder: Path | None = None) -> Machine:
    """This machine's rates, measured in about a second the first time."""
    key = {"link": "tcp, cold", "clock": "processor"}
    return Machine(**cached("rates", key, lambda: dataclasses.asdict(calibrate()), folder))


def calibrate() -> Machine:
    """Measure this machine now."""
    with one_thread():
        a = torch.arange(256 * 256).reshape(256, 256)
        macs_per_s = 256**3 / _seconds(lambda: ops.matmul(a, a))
        stream = torch.empty(_STREAM_BYTES // 8, dtype=torch.int64)
        drawn_bytes_per_s = _STREAM_BYTES / _seconds(lambda: fill(bytes(16), stream))
        touched_bytes_per_s, call_s = _mix(macs_per_s, drawn_bytes_per_s)
        round_s, wire_bytes_per_s = _link_rates()
    cores = float(os.cpu_count() or 1)
    return Machine(
        _processor(), macs_per_s, touched_bytes_per_s, drawn_bytes_per_s, call_s, round_s, wire_bytes_per_s, cores
    )


def _mix(macs_per_s: float, drawn_bytes_per_s: float) -> tuple[float, float]:
    """Bytes a second of element-by-element operations, and seconds of an operation without any, in their usual mix."""
    nn = torch.nn
    chain = convert(nn.Sequential(nn.Linear(8, 512), nn.ReLU(), nn.Linear(512, 8)), (8,))
    setting = Setting(Replicated3, MeanSquaredError, SGD, classes=8, batch_size=256)
    found = []
    for rows in (1, 256):
        layers = chain_costs(chain, setting, rows).layers
        work = sum((s.work for r in layers for d, t in r.traces.items() if d != "U" for s in t), Work())
        runs = timing(chain, setting, (rows,), _REPEATS).seconds[0]
        took = sum(sum(pieces) for key, pieces in runs.items() if not key.endswith("/U"))
        found.append((work, took - work.macs / macs_per_s - work.drawn_bytes / drawn_bytes_per_s))
    (little, little_s), (much, much_s) = found
    call_s = max(1e-9, little_s / little.calls)
    return much.touched_bytes / max(1e-9, much_s - call_s * much.calls), call_s


def _seconds(work: Callable[[], object]) -> float:
    """The median of a few times, in processor seconds, after one that does not count."""
    work()
    took = []
    for _ in range(_REPEATS):
        began = time.thread_time()
        work()
        took.append(time.thread_time() - began)
    return statistics.median(took)


def _link_rates() -> tuple[float, float]:
    """Computing time of a round, and bytes a second of computing time that a link takes to send and receive."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        left, right = socket.socket(), None
        try:
            prepare(left)
            left.connect(server.getsockname())
            right, _ = server.accept()
        except OSError:
            left.close()
            raise
    routes = Route(b"profiled", 0), Route(b"profiled", 1)
    ends = (TcpLink(1, "right", left, *routes), TcpLink(0, "left", right, *routes[::-1]))
    try:
        rounds, size = 100, 1 << 17
        none_s = _exchange(ends, rounds, 1) / rounds
        large_s = _exchange(ends, 10, size) / 10
    finally:
        for end in ends:
            end.close()
    return none_s, 8 * size / max(1e-9, large_s - none_s)


def _exchange(ends: tuple[Link, Link], rounds: int, numel: int) -> float:
    """Computing time of one party for `rounds` rounds in which both ends send `numel` elements.

    Between them each does other work, which is not counted but leaves cold caches, as in a training step.
    """
    value, others_s = torch.arange(numel), [0.0, 0.0]

    def party(number: int) -> None:
        end, other_work = ends[number], torch.zeros(_STREAM_BYTES // 8, dtype=torch.int64)
        for count in range(rounds):
            began = time.thread_time()
            other_work.add_(1)
            others_s[number] += time.thread_time() - began
            end.send(f"{count}", [value])
            end.receive(f"{count}", [Part(torch.int64, numel)])

    began = time.process_time()
    other = threading.Thread(target=party, args=(1,))
    other.start()
    party(0)
    other.join()
    return (time.process_time() - began - sum(others_s)) / 2
