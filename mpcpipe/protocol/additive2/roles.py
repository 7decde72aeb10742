"""Who does what in additive2: two parties compute, a dealer hands them correlated randomness.

    party 0  <── what is opened, masked ──>  party 1  <── corrections ──  dealer (party 2)
       └──────── stream with the dealer             └──── stream with the dealer

The dealer runs the same program as the others over shapes alone: its shares are tensors without values (torch's `meta`
device), and in each round it sends the correction that belongs to it. It receives nothing, so it runs ahead of the
others as far as the links let it.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import ClassVar

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.additive2.offline import Needs
from mpcpipe.protocol.base import Protocol, Share
from mpcpipe.protocol.rounds import Round
from mpcpipe.random.tape import Holders
from mpcpipe.ring.ring import Ring

DEALER = 2


class Roles(Protocol, ABC):
    """What the operations of additive2 have in common: masks that the dealer knows, and the one kind of round."""

    name: ClassVar[str] = "additive2"
    party_counts: ClassVar[tuple[int, ...]] = (3,)
    components: ClassVar[int] = 1
    dealer: ClassVar[int | None] = DEALER
    promise: ClassVar[str] = (
        "2 parties and a dealer without data (the last one), semi-honest, any one of the three may be curious"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.needs = Needs()

    @property
    def deals(self) -> bool:
        """Whether this is the dealer."""
        return self.party == DEALER

    @property
    def other(self) -> int:
        """The other of the two that compute."""
        return 1 - self.party

    def blank(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """What stands at the dealer for a tensor that it must not know."""
        return torch.empty(shape, dtype=dtype or self.ring.dtype, device="meta")

    def zeros(self, shape: Sequence[int], device: torch.device | str = "cpu") -> Share:
        """Shares of zeros. Local."""
        return self.blank(1, *shape) if self.deals else super().zeros(shape, device)

    # Masks. A computing party draws its own part, and the dealer both.

    def _with_dealer(self, party: int) -> Holders:
        return (party, DEALER)

    def mask(self, label: str, numel: int) -> torch.Tensor:
        """At a party its summand of a uniform mask (numel,), at the dealer the mask."""
        if not self.deals:
            return self.tape.elements(self._with_dealer(self.party), label, numel, self.ring)
        mask = self.tape.elements(self._with_dealer(0), label, numel, self.ring)
        return self.ring.wrap(mask.add_(self.tape.elements(self._with_dealer(1), label, numel, self.ring)))

    def mask_planes(self, label: str, count: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The parts (count, words) of both parties of an XOR mask: at the dealer both, at a party its own twice."""
        if not self.deals:
            own = self.tape.planes(self._with_dealer(self.party), label, count, n)
            return own, own
        first, second = (self.tape.planes(self._with_dealer(party), label, count, n) for party in (0, 1))
        return first, second

    def own(self, label: str, numel: int, ring: Ring | None = None) -> torch.Tensor:
        """Party 0's summand of something dealt, at party 0 and the dealer."""
        return self.tape.elements(self._with_dealer(0), label, numel, ring or self.ring)

    def own_planes(self, label: str, count: int, n: int) -> torch.Tensor:
        """Party 0's XOR share of dealt planes, at party 0 and the dealer."""
        return self.tape.planes(self._with_dealer(0), label, count, n)

    # The one kind of round

    async def deal(self, label: str, *corrections: torch.Tensor) -> None:
        """At the dealer: party 1's parts of what is dealt."""
        await Round(label, {1: list(corrections)} if corrections else {}, {})

    async def exchange(
        self, label: str, shown: Sequence[torch.Tensor], dealt: Sequence[Part]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """At a computing party: show flat tensors to the other, and get its tensors of the same kind; at party 1 also
        what the dealer sends.
        """
        receive: dict[int, list[Part]] = {self.other: [Part(tensor.dtype, tensor.numel()) for tensor in shown]}
        if self.party == 1 and dealt:
            receive[DEALER] = list(dealt)
        received = await Round(label, {self.other: list(shown)}, receive)
        return received[self.other], received.get(DEALER, [])
