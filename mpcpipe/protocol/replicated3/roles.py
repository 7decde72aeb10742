"""Who plays which role for which part of a tensor.

Party p holds (x_p, x_{p+1}) of x = x_0 + x_1 + x_2. Protocols with three different roles cut a flat tensor into three
chunks and rotate: for chunk c, party c plays role 0, party c+1 role 1, party c+2 role 2, so every party sends the same.

    role 0 holds (s0, s1)          s0 is known to roles 0 and 2
    role 1 holds (s1, s2)          s1 is known to roles 0 and 1
    role 2 holds (s2, s0)          s2 is known to roles 1 and 2

Seen from a party: as role 0 the next party is role 1 and the previous role 2; and so on around.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import torch

from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.replicated3.cost import thirds
from mpcpipe.random.tape import Holders
from mpcpipe.ring.native.abi import Chunks as ChunksStruct
from mpcpipe.ring.native.steps3 import chunks_struct
from mpcpipe.ring.ops import words
from mpcpipe.ring.ring import Ring


@dataclass(frozen=True)
class Chunks:
    """Of a flat tensor of n elements: the slice for which a party plays role 0, 1 and 2."""

    slices: tuple[slice, slice, slice]
    words: tuple[slice, slice, slice]
    total_words: int
    numels: tuple[int, int, int]
    order: tuple[int, int, int]
    """The role played in the first, second and third chunk."""

    @cached_property
    def native(self) -> ChunksStruct:
        """The same for native passes."""
        starts, word_starts = ([section.start for section in group] for group in (self.slices, self.words))
        words = [section.stop - section.start for section in self.words]
        return chunks_struct(self.numels, starts, words, word_starts)

    @cached_property
    def numel_of_all(self) -> int:
        """Elements in all."""
        return sum(self.numels)

    def numel(self, role: int) -> int:
        """Elements for which this party plays `role`."""
        return self.numels[role]

    def joined(self, first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> torch.Tensor:
        """A share (2, n) from its components' flat parts, as role 0, 1 and 2."""
        parts = [component[role] for component in (first, second) for role in self.order]
        return torch.cat(parts).view(2, -1)


def _slices(sizes: list[int], party: int) -> tuple[slice, slice, slice]:
    starts = [0, sizes[0], sizes[0] + sizes[1]]
    by_chunk = [slice(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    return by_chunk[party % 3], by_chunk[(party - 1) % 3], by_chunk[(party - 2) % 3]


@lru_cache(maxsize=1024)
def _chunks(sizes: tuple[int, int, int], party: int) -> Chunks:
    packed = [words(size) for size in sizes]
    first, second, third = ((party - role) % 3 for role in range(3))  # the chunk of each role, and the other way round
    return Chunks(
        _slices(list(sizes), party),
        _slices(packed, party),
        sum(packed),
        (sizes[first], sizes[second], sizes[third]),
        (first, second, third),
    )


@lru_cache(maxsize=64)
def _pair_holders(party: int, pair: str, role: int) -> Holders:
    other = int(pair.replace(str(role), ""))
    peer = (party + other - role) % 3
    return (party, peer) if party < peer else (peer, party)


class Roles(Protocol, ABC):
    """What the replicated3 operations have in common: neighbours, chunks, and the streams of each pair of roles."""

    name: ClassVar[str] = "replicated3"
    party_counts: ClassVar[tuple[int, ...]] = (3,)
    components: ClassVar[int] = 2
    promise: ClassVar[str] = "3 parties, semi-honest, any one of them may be curious"

    @property
    def next(self) -> int:
        """The party after this one."""
        return (self.party + 1) % 3

    @property
    def prev(self) -> int:
        """The party before this one."""
        return (self.party + 2) % 3

    def chunks(self, numel: int) -> Chunks:
        """Which elements, and which words of packed bits, this party handles in each role."""
        first, second, third = thirds(numel)
        return _chunks((first, second, third), self.party)

    def with_next(self) -> Holders:
        """This party and the next, as holders of a stream."""
        return (self.party, self.next) if self.party < self.next else (self.next, self.party)

    def with_prev(self) -> Holders:
        """This party and the previous, as holders of a stream."""
        return (self.party, self.prev) if self.party < self.prev else (self.prev, self.party)

    # Streams by the pair of roles that know them. A pair of parties plays each pair of roles in exactly one chunk, so
    # the pair's name in the label keeps the chunks apart.

    def elements(self, pair: str, role: int, label: str, n: int, ring: Ring | None = None) -> torch.Tensor:
        """n ring elements that the roles of `pair` ("01", "02" or "12") know, drawn by `role`."""
        return self.tape.elements(_pair_holders(self.party, pair, role), f"{label}/{pair}", n, ring or self.ring)

    def planes(self, pair: str, role: int, label: str, count: int, n: int) -> torch.Tensor:
        """`count` planes of n bits that the roles of `pair` know, drawn by `role`."""
        return self.tape.planes(_pair_holders(self.party, pair, role), f"{label}/{pair}", count, n)
