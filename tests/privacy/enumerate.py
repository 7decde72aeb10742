"""Views, exhaustively: real protocol code over a tiny ring, every value of all randomness, every secret.

Elementwise operations treat the elements of a tensor independently, so *one* run over N = 2^r lanes enumerates all r
bits of randomness: lane i draws, for each draw, bits of the number i that no other draw has. All lanes are put into one
chunk, so that each party plays one role; a test runs every chunk. A party's view of a lane is what it held, drew and
received there. For every secret the multiset of views over all lanes must be the same: that is perfect privacy against
that party, for this operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.replicated3 import Replicated3, roles
from mpcpipe.protocol.rounds import Operation
from mpcpipe.ring import ops
from mpcpipe.ring.ring import Ring
from tests.simulate import lockstep

Key = tuple[tuple[int, ...], str]
Operate = Callable[[Any, list[torch.Tensor]], Operation[Any]]


class Lanes:
    """Which bits of the lane number each draw gets, the same at every holder."""

    def __init__(self, bits: int, removed: Key | None = None) -> None:
        self.bits, self.removed = bits, removed
        self.taken: dict[Key, int] = {}
        self.used = 0

    @property
    def count(self) -> int:
        return 1 << self.bits

    def digit(self, key: Key, width: int) -> torch.Tensor:
        if key not in self.taken:
            self.taken[key] = self.used
            self.used += width
            assert self.used <= self.bits, f"{key} is past the {self.bits} bits of this enumeration"
        if key == self.removed:
            return torch.zeros(self.count, dtype=torch.int64)
        return (torch.arange(self.count) >> self.taken[key]) & ((1 << width) - 1)


class EnumerateTape:
    """One party's tape of an enumeration. Keeps what it drew: (values, width in bits)."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.drawn: list[tuple[torch.Tensor, int]] = []

    def elements(self, holders: tuple[int, ...], label: str, numel: int, ring: Ring) -> torch.Tensor:
        if numel == 0:
            return torch.empty(0, dtype=ring.dtype)
        digit = self.lanes.digit((holders, label), ring.bits)
        self.drawn.append((digit, ring.bits))
        return ring.wrap(digit.to(ring.dtype))

    def planes(self, holders: tuple[int, ...], label: str, count: int, n: int) -> torch.Tensor:
        if n == 0:
            return torch.empty((count, 0), dtype=torch.int64)
        digit = self.lanes.digit((holders, label), count)
        self.drawn.append((digit, count))
        return ops.bit_planes(digit, count)


def _columns(received: torch.Tensor, lanes: int, ring: Ring) -> list[tuple[torch.Tensor, int]]:
    """A received part as (values a lane, width in bits). Elements are int32 in a tiny ring, packed bits int64."""
    if received.numel() == 0:
        return []
    if received.dtype == torch.uint8:
        return [(received.view(lanes, -1)[:, 0].to(torch.int64), 8)]
    if received.dtype == torch.int64:
        return [(ops.unpack_bits(plane, lanes, torch.int64), 1) for plane in received.view(-1, ops.words(lanes))]
    return [(received.to(torch.int64) & ((1 << ring.bits) - 1), ring.bits)]


def _histogram(columns: Sequence[tuple[torch.Tensor, int]]) -> torch.Tensor:
    """All lanes' views, sorted: equal exactly if the multisets of views are equal. A constant column is kept as is."""
    key, rows, width = torch.zeros_like(columns[0][0]), [], 0
    for values, bits in columns:
        if width + bits > 62:
            rows.append(key)
            key, width = torch.zeros_like(key), 0
        key, width = (key << bits) | values, width + bits
    rows.append(key)
    if len(rows) == 1:
        return key.sort().values
    uniques, counts = torch.unique(torch.stack(rows), dim=1, return_counts=True)
    return torch.cat((uniques.flatten(), counts))


@dataclass(frozen=True)
class Setting:
    """What an enumeration has to know of a protocol.

    summands: of a secret; held: a party's share, given all of them; one_chunk: while it lasts, all lanes are in chunk
    number so and so of every tensor; sees: whether a message of this label and dtype belongs to the view.
    """

    kind: type[Protocol]
    parties: int
    summands: int
    held: Callable[[torch.Tensor, int], torch.Tensor]
    one_chunk: Callable[[int], AbstractContextManager[object]]
    tape: type[EnumerateTape] = EnumerateTape
    sees: Callable[[str, torch.Tensor], bool] = lambda label, part: True


REPLICATED3 = Setting(
    Replicated3,
    3,
    3,
    lambda summands, i: summands[[i, (i + 1) % 3]],
    lambda chunk: mock.patch.object(roles, "thirds", lambda n: [n * (c == chunk) for c in range(3)]),
)


def views(
    operate: Operate,
    secrets: Sequence[int],
    *,
    k: int,
    lane_bits: int,
    chunk: int,
    compare_bits: int = 2,
    removed: Key | None = None,
    setting: Setting = REPLICATED3,
) -> tuple[list[torch.Tensor], Lanes]:
    """Each party's view histogram of `operate` on secrets that were shared uniformly; and which draws there were."""
    lanes, ring, numbers = Lanes(lane_bits, removed), Ring(k), range(setting.parties)
    shares: list[torch.Tensor] = []
    for index, secret in enumerate(secrets):
        drawn = [lanes.digit(((), f"secret {index}.{i}"), k) for i in range(setting.summands - 1)]
        summands = [*drawn, secret - sum(drawn)]
        shares.append(torch.stack([ring.wrap(s.to(ring.dtype)) for s in summands]))
    tapes = [setting.tape(lanes) for _ in numbers]
    # Bits need no ring that compares; a protocol made for one does.
    parties = [setting.kind(party=i, ring=Ring(max(k, 2)), tape=tapes[i], compare_bits=compare_bits) for i in numbers]
    for p in parties:
        p.ring = ring
    held = [[setting.held(s, i) for s in shares] for i in numbers]
    with setting.one_chunk(chunk):
        outcome = lockstep([operate(p, held[p.party]) for p in parties])
    mask = (1 << k) - 1
    histograms = []
    for i in numbers:
        columns = [(component.to(torch.int64) & mask, k) for share in held[i] for component in share]
        columns += tapes[i].drawn
        for label, _, part in outcome.seen[i]:
            columns += _columns(part, lanes.count, ring) if setting.sees(label, part) else []
        histograms.append(_histogram(columns))
    return histograms, lanes
