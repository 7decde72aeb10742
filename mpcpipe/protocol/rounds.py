"""Interaction as values: an operation is a coroutine that awaits rounds, and a driver that carries them out.

    async def open_twice(p, x, y):                  gather: both send, then both wait: one round, one frame a peer
        return await gather(p.reveal(x), p.reveal(y))

A `Round` says what this party sends to whom and what it expects from whom. `run` drives a coroutine over a mesh;
`gather` advances several in lockstep and joins their rounds, so that independent operations cost the rounds of the
longest and small messages leave in one frame. All parties run the same coroutines, so all agree on rounds, labels and
lengths.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch

from mpcpipe.link.base import Mesh, Part

T = TypeVar("T")
Received = Mapping[int, list[torch.Tensor]]
Operation = Coroutine["Round", Received, T]


@dataclass(frozen=True)
class Round:
    """One exchange of this party: flat tensors to send to, and parts to expect from, each other party."""

    label: str
    send: Mapping[int, Sequence[torch.Tensor]]
    receive: Mapping[int, Sequence[Part]]

    def __await__(self) -> Generator[Round, Received, Received]:
        return (yield self)


def run(operation: Operation[T], mesh: Mesh) -> T:
    """Carry out `operation`, round by round, over `mesh`; returns its result."""
    try:
        step = operation.send(cast(Received, None))
        while True:
            mesh.send(step.label, step.send)
            received = mesh.receive(step.label, step.receive)
            step = operation.send(received)
    except StopIteration as finished:
        return cast(T, finished.value)
    finally:
        operation.close()


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
    """Run independent operations side by side; returns their results in order. Rounds: those of the longest."""
    results: list[Any] = [None] * len(operations)
    waiting: dict[int, Round] = {}

    def advance(index: int, received: Received | None) -> None:
        try:
            waiting[index] = operations[index].send(cast(Received, received))
        except StopIteration as finished:
            waiting.pop(index, None)
            results[index] = finished.value

    try:
        for index in range(len(operations)):
            advance(index, None)
        while waiting:
            now = list(waiting.items())
            if len(now) == 1:
                index, step = now[0]
                advance(index, await step)
                continue
            received = await _join([step for _, step in now])
            taken: dict[int, int] = {}
            for index, own in [(index, _part(step, received, taken)) for index, step in now]:
                advance(index, own)
    finally:
        for operation in operations:
            operation.close()
    return results
