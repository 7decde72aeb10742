"""The interface that every protocol fulfils: what can be computed on shares, and what it declares to cost.

    values                                     held as
    Share     secret ring elements             torch tensor (components, *shape), int32 or int64
    Partial   a product before resharing       torch tensor (components', *shape): local, additive, not masked yet
    Bits      secret bits, packed              Bits(data (components, words), shape)
    Selector  bits ready to multiply values    opaque, the protocol's own

Operations that talk to the other parties are coroutines over rounds (`protocol.rounds`); the others are local. A
protocol never touches a socket: the driver does. Addition, subtraction, negation and products with *public integers*
are torch's own on shares and on partials.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch

from mpcpipe.random.tape import Tape
from mpcpipe.ring.bilinear import Bilinear, Shape
from mpcpipe.ring.ring import Ring

Share = torch.Tensor
Partial = torch.Tensor


@dataclass(frozen=True)
class Cost:
    """What an operation costs: dependent rounds, payload bytes that all parties send, multiply-adds of one party."""

    rounds: int = 0
    sent_bytes: int = 0
    macs: int = 0

    def __add__(self, other: Cost) -> Cost:
        """One after the other."""
        return Cost(self.rounds + other.rounds, self.sent_bytes + other.sent_bytes, self.macs + other.macs)

    def __or__(self, other: Cost) -> Cost:
        """Side by side, as `gather` does it."""
        return Cost(max(self.rounds, other.rounds), self.sent_bytes + other.sent_bytes, self.macs + other.macs)


@dataclass(frozen=True)
class Bits:
    """Secret bits, one for each element of `shape`, packed as the protocol likes: data (components, words)."""

    data: torch.Tensor
    shape: Shape

    @property
    def numel(self) -> int:
        """Number of bits."""
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class Opening:
    """One value that a run makes known: why, to whom (None: to all parties), and its shape."""

    why: str
    to: int | None
    shape: Shape


class Costs(ABC):
    """What a protocol's operations cost, by number of elements: one method for each operation, with its name.

    Exact, payload only; the conformance tests measure every one of them.
    """

    @abstractmethod
    def share(self, numel: int) -> Cost:
        """`Protocol.share` of numel elements."""

    @abstractmethod
    def reveal(self, numel: int, to_all: bool) -> Cost:
        """`Protocol.reveal` of numel elements, to one party or to all."""

    @abstractmethod
    def multiply(self, op: Bilinear, x: Shape, y: Shape) -> Cost:
        """`Protocol.multiply` of arguments of these shapes."""

    @abstractmethod
    def reduce(self, numel: int, truncate: int = 0) -> Cost:
        """`Protocol.reduce` of numel elements."""

    @abstractmethod
    def truncate(self, numel: int, bits: int) -> Cost:
        """`Protocol.truncate` of numel elements."""

    @abstractmethod
    def nonnegative(self, numel: int) -> Cost:
        """`Protocol.nonnegative` of numel elements."""

    @abstractmethod
    def to_ring(self, numel: int) -> Cost:
        """`Protocol.to_ring` of numel bits."""

    @abstractmethod
    def select(self, numel: int) -> Cost:
        """`Protocol.select` of numel elements."""

    @abstractmethod
    def select_again(self, numel: int) -> Cost:
        """`Protocol.select_again` of numel elements."""


@dataclass(eq=False)
class Protocol(ABC):
    """One party's side of a protocol. Give every use a scope of its own with `at`: masks are addressed by it.

    party: this party's number of `parties`; ring: Z_2^k; tape: where masks come from; compare_bits: comparisons are
    exact for |x| < 2^(compare_bits - 1) units, at most k.

    absent: parties that have no process in this run: a dealer that dealt beforehand, or those for whom it deals.

    dealer: the party that holds no data and learns nothing, if the protocol has one. Its shares have no values (they
    are on torch's `meta` device), and what is revealed to all is not revealed to it.
    """

    name: ClassVar[str]
    party_counts: ClassVar[tuple[int, ...]]
    components: ClassVar[int]
    promise: ClassVar[str]
    dealer: ClassVar[int | None] = None

    party: int
    ring: Ring
    tape: Tape
    compare_bits: int
    parties: int = 0
    openings: list[Opening] = field(default_factory=list)
    absent: frozenset[int] = frozenset()
    scope: str = ""
    _count: int = 0

    def __post_init__(self) -> None:
        self.parties = self.parties or self.party_counts[0]
        if self.parties not in self.party_counts:
            raise ValueError(f"{self.name} is for {self.party_counts} parties, not {self.parties}")
        if not 2 <= self.compare_bits <= self.ring.bits:
            raise ValueError(
                f"compare_bits is {self.compare_bits}; a ring of {self.ring.bits} bits allows 2 to {self.ring.bits}"
            )

    @property
    def present(self) -> list[int]:
        """The parties that take part in this run, rising."""
        return [party for party in range(self.parties) if party not in self.absent]

    @property
    def peers(self) -> list[int]:
        """The others among them."""
        return [party for party in self.present if party != self.party]

    def at(self, scope: str) -> Self:
        """The same party in `scope` (step, layer, micro-batch), which names its masks. No scope is used twice."""
        view = copy.copy(self)
        view.scope, view._count = scope, 0
        return view

    def label(self, operation: str) -> str:
        """A label that this scope has not used yet."""
        self._count += 1
        return f"{self.scope}#{self._count}.{operation}"

    @property
    @abstractmethod
    def costs(self) -> Costs:
        """What each operation costs."""

    # sharing and opening

    @abstractmethod
    async def share(self, value: torch.Tensor | None, owner: int, shape: Shape) -> Share:
        """Secret-share `value` (ring elements of `shape`), which only party `owner` gives; the others give None."""

    @abstractmethod
    async def reveal(self, x: Share, to: int | None, why: str) -> torch.Tensor | None:
        """Open x to party `to`, or to all if None, and write that down. None at parties that do not learn it."""

    @abstractmethod
    def public(self, value: torch.Tensor) -> Share:
        """A value that all parties know, as a share. Local."""

    def zeros(self, shape: Sequence[int], device: torch.device | str = "cpu") -> Share:
        """Shares of zeros. Local."""
        return torch.zeros((self.components, *shape), dtype=self.ring.dtype, device=device)

    # finding out who deviates, where the protocol promises that

    async def check(self) -> None:
        """Check everything so far that other parties sent; before a reveal it happens by itself. IntegrityError."""
        return None

    def lane(self, number: int) -> Self:
        """The same party as worker `number` (from 1; 0 is who runs alone), each of which has a pace of its own."""
        return self

    def evidence(self) -> Any:
        """What goes along with a value that is handed to another worker, for `learn`."""
        return None

    def learn(self, evidence: Any) -> None:
        """This worker goes on with values that came with this evidence."""
        return None

    # products

    def keep(self, x: Share) -> Share:
        """x, to be used in several products: a protocol that shows arguments masked shows this one only once. Local.

        The result is used by one worker at a time, and not written to.
        """
        return x

    async def show(self, x: Share) -> Share:
        """As `keep`, but what has to be shown is shown now: from now on every worker may use the result."""
        return x

    @abstractmethod
    async def multiply(self, op: Bilinear, x: Share, y: Share) -> Partial:
        """op(x, y) as a partial: sums of partials, and their products with public integers, cost nothing until
        `reduce`.
        """

    @abstractmethod
    def partial(self, x: Share) -> Partial:
        """x as a partial, to be added to products before they are reduced. Local."""

    @abstractmethod
    async def reduce(self, z: Partial, truncate: int = 0) -> Share:
        """z as a share again; divided by 2^truncate, rounded at random to one of the two neighbours with the right
        mean.

        Exact for |z| < 2^(k-2), when truncating: there is no big error.
        """

    async def product(self, op: Bilinear, x: Share, y: Share, truncate: int = 0) -> Share:
        """op(x, y) / 2^truncate."""
        return await self.reduce(await self.multiply(op, x, y), truncate)

    @abstractmethod
    async def truncate(self, x: Share, bits: int) -> Share:
        """x / 2^bits, rounded as in `reduce`; |x| < 2^(k-2)."""

    async def refresh(self, x: Share) -> Share:
        """x in new shares, in new tensors.

        Security: uniform and independent of the old ones: an old share of one party and a new one of another say
        nothing together that each does not say alone. Cost: as `reduce`.
        """
        return await self.reduce(self.partial(x))

    # comparisons

    @abstractmethod
    async def nonnegative(self, x: Share) -> Bits:
        """1 where x >= 0 (the derivative of ReLU, also known as DReLU); exact for |x| < 2^(compare_bits - 1) units."""

    @abstractmethod
    async def to_ring(self, bits: Bits) -> Share:
        """Bits as ring elements 0 and 1."""

    @abstractmethod
    async def select(self, bits: Bits, x: Share) -> tuple[Share, Any]:
        """x where the bit is 1, else 0; and a selector with which the same bits select again, cheaper."""

    @abstractmethod
    async def select_again(self, selector: Any, x: Share) -> Share:
        """x where the selector's bit is 1, else 0."""
