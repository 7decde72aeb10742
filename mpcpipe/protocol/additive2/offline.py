"""What the dealer hands out, counted: how much correlated randomness a program needs.

The dealer's side of a program runs on shapes alone, so it can be run before there are any data, or any other party:
`Additive2.needs` at the dealer then says what the real run will take.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Need:
    """uses: operations; numel: results of a kind; nbytes: what the dealer sends for them, to party 1."""

    uses: int = 0
    numel: int = 0
    nbytes: int = 0

    def __add__(self, other: Need) -> Need:
        """Both."""
        return Need(self.uses + other.uses, self.numel + other.numel, self.nbytes + other.nbytes)


@dataclass
class Needs:
    """By kind: "products" (a triple for each bilinear operation), "bit products" (a bit triple for each of numel bits),
    "truncations", "bits" (a bit in both sharings), "selections" (a product of such a bit).
    """

    kinds: dict[str, Need] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, kind: str, numel: int, nbytes: int) -> None:
        """One operation more."""
        with self._lock:
            self.kinds[kind] = self.kinds.get(kind, Need()) + Need(1, numel, nbytes)

    @property
    def nbytes(self) -> int:
        """All that the dealer sends."""
        return sum(need.nbytes for need in self.kinds.values())
