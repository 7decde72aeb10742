"""Interaction as values: an operation is a coroutine that awaits rounds, and a driver that carries them out.

    async def open_twice(p, x, y):                  gather: both send, then both wait: one round, one frame a peer
        return await gather(p.reveal(x), p.reveal(y))

A `Round` says what this party sends to whom and what it expects from whom. `run` drives a coroutine over a mesh;
`gather` advances several in lockstep and joins their rounds, so that independent operations cost the rounds of the
longest and small messages leave in one frame. `Overlap` has each send as soon as it can, so that one computes while
another's messages travel. All parties run the same coroutines, so all agree on rounds, labels, lengths and their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch

from mpcpipe.link.base import Mesh, Part

T = TypeVar("T")
Received = Mapping[int, list[torch.Tensor]]
Operation = Coroutine["Round | Overlap", Any, T]


@dataclass(frozen=True)
class Round:
    """One exchange of this party: flat tensors to send to, and parts to expect from, each other party."""

    label: str
    send: Mapping[int, Sequence[torch.Tensor]]
    receive: Mapping[int, Sequence[Part]]

    def __await__(self) -> Generator[Round, Received, Received]:
        return (yield self)


@dataclass(frozen=True)
class Overlap:
    """Independent operations, one of which computes while another's messages travel. `await` it for their results.

        compute  a1 b1 a2 b2 a3 b3            with gather:  a1+b1       a2+b2       a3+b3
        line        a1 b1 a2 b2 a3 b3                            a1+b1       a2+b2       a3+b3

    They are taken up in turn, whatever arrives first, so that frames leave in the same order at all parties. Rounds:
    those of the longest, as with `gather`; a frame for each of them, not one for all. Only `run` carries it out.
    """

    operations: Sequence[Operation[Any]]

    def __await__(self) -> Generator[Overlap, list[Any], list[Any]]:
        return (yield self)


def run(operation: Operation[T], mesh: Mesh) -> T:
    """Carry out `operation`, round by round, over `mesh`; returns its result."""
    try:
        step = operation.send(None)
        while True:
            if isinstance(step, Overlap):
                step = operation.send(_overlapped(step.operations, mesh))
            else:
                mesh.send(step.label, step.send)
                step = operation.send(mesh.receive(step.label, step.receive))
    except StopIteration as finished:
        return cast(T, finished.value)
    finally:
        operation.close()


def _overlapped(operations: Sequence[Operation[Any]], mesh: Mesh) -> list[Any]:
    results: list[Any] = [None] * len(operations)
    sent: deque[tuple[int, Round]] = deque()

    def advance(index: int, received: Received | None) -> None:
        try:
            step = operations[index].send(received)
        except StopIteration as finished:
            results[index] = finished.value
            return
        assert isinstance(step, Round), "one Overlap inside another"
        mesh.send(step.label, step.send)
        sent.append((index, step))

    try:
        for index in range(len(operations)):
            advance(index, None)
        while sent:
            index, step = sent.popleft()
            advance(index, mesh.receive(step.label, step.receive))
    finally:
        for operation in operations:
            operation.close()
    return results


def _join(rounds: Sequence[Round]) -> Round:
    send: dict[int, list[torch.Tensor]] = {}
    receive: dict[int, list[Part]] = {}
    for step in rounds:
        for peer, tensors in step.send.items():
            send.setdefault(peer, []).extend(tensors)
        for peer, parts in step.receive.items():
            receive.setdefault(peer, []).extend(parts)
    return Round("+".join(step.label for step in rounds), send, receive)


def _part(step: Round, received: Received, taken: dict[int, int]) -> Received:
    own = {}
    for peer, parts in step.receive.items():
        start = taken.get(peer, 0)
        taken[peer] = start + len(parts)
        own[peer] = received[peer][start : taken[peer]]
    return own


async def gather(*operations: Operation[Any]) -> list[Any]:
    """Run independent operations side by side; returns their results in order. Rounds: those of the longest.

    One that wants an `Overlap` gets it once all others want one, too, or are done.
    """
    results: list[Any] = [None] * len(operations)
    waiting: dict[int, Round | Overlap] = {}

    def advance(index: int, received: Any) -> None:
        try:
            waiting[index] = operations[index].send(received)
        except StopIteration as finished:
            waiting.pop(index, None)
            results[index] = finished.value

    try:
        for index in range(len(operations)):
            advance(index, None)
        while waiting:
            now = [(index, step) for index, step in waiting.items() if isinstance(step, Round)]
            if len(now) <= 1:
                index, alone = now[0] if now else next(iter(waiting.items()))
                advance(index, await alone)
                continue
            received = await _join([step for _, step in now])
            taken: dict[int, int] = {}
            for index, own in [(index, _part(step, received, taken)) for index, step in now]:
                advance(index, own)
    finally:
        for operation in operations:
            operation.close()
    return results
