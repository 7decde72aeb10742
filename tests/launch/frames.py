"""Two ranks that say to each other what frames must and must not be. Each prints `rank N right`.

    mpirun -n 2 python tests/launch/frames.py mpi        torchrun --nproc-per-node 2 tests/launch/frames.py torch
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from mpcpipe.errors import FrameError, PeerLost
from mpcpipe.link.base import Link, Part
from mpcpipe.link.fabric import Fabric
from mpcpipe.link.frame import Route

SESSION = b"sessions"
MANY = 300
LARGE = 4 << 20  # elements: 32 MB, far more than is ever under way
DEADLINE_S = 20.0
RIGHT = 42


def meeting(kind: str) -> Any:
    if kind == "mpi":
        from mpcpipe.link.mpi import Mpi

        return Mpi()
    from mpcpipe.launch.environment import launched
    from mpcpipe.link.distributed import Store

    found = launched(os.environ)
    assert found is not None and found.meeting is not None
    return Store(*found.meeting, found.rank, found.world, DEADLINE_S, found.rank == 0 and not found.store)


def fabric(kind: str, met: Any) -> Fabric:
    if kind == "mpi":
        found: Fabric = met.fabric([0, 1])
        return found
    from mpcpipe.link.distributed import TorchFabric

    return TorchFabric(met, [0, 1], DEADLINE_S)


def numbers(count: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int64).mul_(2654435761).to(dtype)


def good(link: Link, other: Link) -> None:
    """What is sent arrives, in order, whatever its size; both ways at once, for two workers."""
    cases: Sequence[tuple[str, list[torch.Tensor]]] = [
        ("nothing", []),
        ("empty", [torch.empty(0, dtype=torch.int64)]),
        ("one", [numbers(1)]),
        ("a block and a bit", [numbers(200), numbers(3, torch.int32), numbers(5, torch.uint8)]),
        ("many", [numbers(7)] * MANY),
        ("many and large", [numbers(70_000), torch.empty(0, dtype=torch.int32), *[numbers(9, torch.int32)] * MANY]),
        ("large", [numbers(LARGE)]),
        ("last", [numbers(2)]),
    ]
    for turn, (label, parts) in enumerate(cases):
        link.send(label, parts, turn)
        other.send(f"other {label}", parts, 2 * turn)
    for turn, (label, parts) in enumerate(cases):
        expected = [Part(part.dtype, part.numel()) for part in parts]
        for one, name, clock in ((link, label, turn), (other, f"other {label}", 2 * turn)):
            received, stamp = one.receive(name, expected)
            assert stamp == clock and len(received) == len(parts), name
            assert all(torch.equal(got, part) for got, part in zip(received, parts, strict=True)), name
    assert link.traffic.sent_payload_bytes == link.traffic.received_payload_bytes > 8 * LARGE


def wrong(link: Link, rank: int, label: str, sent: list[torch.Tensor], expected: list[Part], says: str) -> None:
    """Rank 0 sends what rank 1 does not expect."""
    if rank == 0:
        link.send("said", sent)
        return
    try:
        link.receive(label, expected)
    except FrameError as error:
        assert says in str(error), error
    else:
        raise AssertionError(f"{says}: not noticed")


def main() -> None:
    kind = sys.argv[1]
    met = meeting(kind)
    assert met.exchange(f"rank {met.rank} with ä") == ["rank 0 with ä", "rank 1 with ä"]
    made, me = fabric(kind, met), met.rank

    def link(worker: int, incoming_worker: int | None = None, deadline_s: float = DEADLINE_S) -> Link:
        other = worker if incoming_worker is None else incoming_worker
        routes = Route(SESSION, me, worker), Route(SESSION, 1 - me, other)
        return made.link(1 - me, f"party {1 - me}", *routes, deadline_s, lambda: None)

    first, second = link(0), link(1)
    good(first, second)
    cases: list[tuple[str, list[torch.Tensor], list[Part], str]] = [
        ("expected", [numbers(3)], [Part(torch.int64, 3)], "another label"),
        ("said", [numbers(3)], [Part(torch.int32, 3)], "12 payload bytes expected, it announces 24"),
        ("said", [numbers(4)], [Part(torch.int32, 8)], "8 elements of int32 expected, 4 elements of int64 came"),
        ("said", [numbers(3)], [Part(torch.int64, 4)], "32 payload bytes expected, it announces 24"),
        ("said", [numbers(3)], [Part(torch.int64, 3)] * 2, "2 parts expected, it has 1"),
        ("said", [numbers(LARGE)], [Part(torch.int64, 5)], "40 payload bytes expected"),
        ("said", [numbers(5)], [Part(torch.int64, LARGE)], f"{8 * LARGE} payload bytes expected, it announces 40"),
        ("said", [numbers(1)] * MANY, [Part(torch.int64, 1)], f"1 parts expected, it has {MANY}"),
    ]
    bad = []
    for worker, (label, sent, expected, says) in enumerate(cases, 10):
        bad.append(link(worker))
        wrong(bad[-1], me, label, sent, expected, says)
    silent = link(50, deadline_s=0.3)
    began = time.monotonic()
    try:
        silent.receive("never", [Part(torch.int64, 1)])
    except PeerLost as error:
        assert "did not send 'never' within 0.3 s" in str(error)
        assert time.monotonic() - began > 0.25
    else:
        raise AssertionError("a silent peer was not noticed")
    met.exchange("all seen")
    for one in (first, second):
        one.close()
        one.close()
    print(f"rank {me} right", flush=True)
    met.exchange("done")
    # Frames that nobody took are left, so that there is no orderly end: a code of its own says that all was right.
    os._exit(RIGHT if kind == "mpi" else 0)


if __name__ == "__main__":
    main()
