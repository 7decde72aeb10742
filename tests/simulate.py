"""All parties of an operation in one thread, in lockstep: real protocol code, no links, every message seen."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.rounds import Operation, Round
from mpcpipe.ring.ops import words
from mpcpipe.ring.ring import Ring


class HashTape:
    """A tape for tests: same label and holders, same uniform values; no label may be used twice by one party."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.used: set[tuple[tuple[int, ...], str]] = set()

    def _generator(self, holders: tuple[int, ...], label: str) -> torch.Generator:
        assert (holders, label) not in self.used, f"{label} drawn twice"
        self.used.add((holders, label))
        digest = hashlib.blake2b(f"{self.seed}|{holders}|{label}".encode(), digest_size=7).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest, "big"))

    def elements(self, holders: tuple[int, ...], label: str, numel: int, ring: Ring) -> torch.Tensor:
        half = 1 << (ring.bits - 1)
        if ring.bits == 64:
            raw = torch.empty(numel, dtype=torch.int64)
            return raw.random_(-(1 << 63), None, generator=self._generator(holders, label))
        return torch.randint(-half, half, (numel,), dtype=ring.dtype, generator=self._generator(holders, label))

    def planes(self, holders: tuple[int, ...], label: str, count: int, n: int) -> torch.Tensor:
        raw = torch.empty((count, words(n)), dtype=torch.int64)
        return raw.random_(-(1 << 63), None, generator=self._generator(holders, label))


@dataclass
class Outcome:
    """What each party returned, and what went over the wire."""

    results: list[Any]
    rounds: int
    sent_bytes: list[int]
    seen: list[list[tuple[str, int, torch.Tensor]]] = field(default_factory=list)


Tamper = Callable[[str, int, int, int, torch.Tensor], None]
"""Given label, sender, receiver, the part's number in its frame, and a copy of it: may change the copy on its way."""


def lockstep(operations: Sequence[Operation[Any]], tamper: Tamper | None = None) -> Outcome:
    """Drive one operation a party. Each received tensor must be of the dtype and length that the receiver asks for."""
    try:
        return _drive(operations, tamper)
    finally:
        for operation in operations:
            operation.close()


def _drive(operations: Sequence[Operation[Any]], tamper: Tamper | None) -> Outcome:
    n = len(operations)
    results: list[Any] = [None] * n
    seen: list[list[tuple[str, int, torch.Tensor]]] = [[] for _ in range(n)]
    sent = [0] * n
    rounds = 0
    inbox: list[Any] = [None] * n
    running = set(range(n))
    while running:
        steps: dict[int, Round] = {}
        for i in sorted(running):
            try:
                steps[i] = operations[i].send(inbox[i])
            except StopIteration as finished:
                results[i] = finished.value
        running = set(steps)
        if not steps:
            break
        assert len(steps) == n and len({s.label for s in steps.values()}) == 1, [s.label for s in steps.values()]
        moved = False
        received: list[dict[int, list[torch.Tensor]]] = [{} for _ in range(n)]
        for i, step in steps.items():
            for peer, parts in step.receive.items():
                given = list(steps[peer].send.get(i, []))
                assert [Part(t.dtype, t.numel()) for t in given] == list(parts), (step.label, i, peer, parts, given)
                received[i][peer] = [t.clone() for t in given]
                for part, copied in enumerate(received[i][peer] if tamper else []):
                    tamper(step.label, peer, i, part, copied)
                seen[i] += [(step.label, peer, t.clone()) for t in given]
            for peer, tensors in step.send.items():
                assert all(t.dim() == 1 and t.is_contiguous() for t in tensors), step.label
                nbytes = sum(t.numel() * t.element_size() for t in tensors)
                assert nbytes == sum(p.nbytes for p in steps[peer].receive.get(i, [])), f"{step.label}: not expected"
                sent[i] += nbytes
                moved = moved or nbytes > 0
        rounds += moved
        inbox = list(received)
    return Outcome(results, rounds, sent, seen)


def parties(kind: type[Protocol], k: int = 64, compare_bits: int | None = None, seed: int = 0) -> list[Protocol]:
    """One protocol instance a party, on one ring, with fresh tapes."""
    ring = Ring(k)
    n = kind.party_counts[-1] if kind.party_counts[0] > 1 else 3
    return [
        kind(party=i, ring=ring, tape=HashTape(seed), compare_bits=compare_bits or min(k, 32), parties=n)
        for i in range(n)
    ]


def computing(ps: Sequence[Protocol]) -> list[int]:
    """The numbers of the parties that hold shares: all but a dealer."""
    return [p.party for p in ps if p.party != p.dealer]


def together(
    ps: Sequence[Protocol], operation: Callable[[Protocol], Operation[Any]], tamper: Tamper | None = None
) -> Outcome:
    """Run `operation(p)` at every party."""
    return lockstep([operation(p) for p in ps], tamper)


def share(ps: Sequence[Protocol], value: torch.Tensor, owner: int = 0) -> list[torch.Tensor]:
    """Shares of `value`, one a party."""
    return together(ps, lambda p: p.share(value if p.party == owner else None, owner, tuple(value.shape))).results


def reveal(ps: Sequence[Protocol], shares: Sequence[torch.Tensor]) -> torch.Tensor:
    """The value, the same at every party that computes; a dealer learns nothing."""
    results = together(ps, lambda p: p.reveal(shares[p.party], None, "test")).results
    assert all((result is None) == (p.party == p.dealer) for p, result in zip(ps, results, strict=True))
    values = [results[party] for party in computing(ps)]
    assert all(torch.equal(values[0], v) for v in values)
    return values[0]
