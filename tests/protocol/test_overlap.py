"""Overlap: one operation computes while another's messages travel; same results, same rounds, frames in one order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from mpcpipe.errors import PlanError
from mpcpipe.link.base import Mesh, Part
from mpcpipe.link.memory import MemoryNetwork
from mpcpipe.protocol.rounds import Operation, Overlap, Round, gather, run


class Noting(Mesh):
    """A mesh that writes down what it does."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__(mesh.party, mesh.parties, mesh.links)
        self.log: list[str] = []

    def send(self, label: str, outgoing: Mapping[int, Sequence[torch.Tensor]]) -> None:
        self.log.append(f"> {label}")
        super().send(label, outgoing)

    def receive(self, label: str, incoming: Mapping[int, Sequence[Part]]) -> dict[int, list[torch.Tensor]]:
        self.log.append(f"< {label}")
        return super().receive(label, incoming)


async def doubling(name: str, rounds: int, start: int, peer: int) -> int:
    """Each round sends a number; the other party's comes back, and is added."""
    value = torch.tensor([start])
    for number in range(rounds):
        received = await Round(f"{name}{number}", {peer: [value]}, {peer: [Part(torch.int64, 1)]})
        value = value + received[peer][0]
    return int(value)


def both(make: object, parties: int = 2) -> tuple[list[object], list[Noting]]:
    network = MemoryNetwork(parties, 1, deadline_s=20)
    meshes = [Noting(network.mesh(number)) for number in range(parties)]
    with ThreadPoolExecutor(parties) as pool:
        found = list(pool.map(lambda number: run(make(number), meshes[number]), range(parties)))  # type: ignore[operator]
    return found, meshes


async def overlapped(party: int) -> list[int]:
    return await Overlap([doubling("a", 3, 1 + party, 1 - party), doubling("b", 2, 10 + party, 1 - party)])


async def gathered(party: int) -> list[int]:
    return await gather(doubling("a", 3, 1 + party, 1 - party), doubling("b", 2, 10 + party, 1 - party))


def test_same_results_and_rounds_as_gather() -> None:
    (one, _), meshes = both(overlapped)
    (other, _), joined = both(gathered)
    assert one == other == [12, 42]
    assert [mesh.clock for mesh in meshes] == [mesh.clock for mesh in joined] == [3, 3]


def test_each_sends_before_anyone_waits() -> None:
    _, meshes = both(overlapped)
    assert meshes[0].log == ["> a0", "> b0", "< a0", "> a1", "< b0", "> b1", "< a1", "> a2", "< b1", "< a2"]
    assert meshes[1].log == meshes[0].log


def test_beside_other_operations() -> None:
    """In a gather, the others go as far as they can first; then it is alone."""

    async def mixed(party: int) -> list[object]:
        return await gather(doubling("c", 1, 5, 1 - party), overlapped(party), doubling("d", 2, 7, 1 - party))

    (found, _), meshes = both(mixed)
    assert found == [10, [12, 42], 28]
    assert meshes[0].log[:4] == ["> c0+d0", "< c0+d0", "> d1", "< d1"]
    assert meshes[0].clock == 5


def test_one_that_fails_ends_all() -> None:
    closed = []

    async def waits() -> None:
        try:
            await Round("never", {}, {1: [Part(torch.int64, 1)]})
        finally:
            closed.append("waits")

    async def fails() -> None:
        raise PlanError("planted")

    async def operation() -> list[None]:
        return await Overlap([waits(), fails()])

    with pytest.raises(PlanError, match="planted"):
        run(operation(), MemoryNetwork(2, 1, deadline_s=20).mesh(0))
    assert closed == ["waits"]


def test_nothing_to_do() -> None:
    async def nothing() -> Operation[list[None]]:
        return await Overlap([])  # type: ignore[return-value]

    assert run(nothing(), MemoryNetwork(2, 1, deadline_s=20).mesh(0)) == []
