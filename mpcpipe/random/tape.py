"""Tapes: where protocols draw all of their randomness from.

A draw names its *holders* (the parties that share the key, in rising order; one party alone for private randomness) and
a label. The label says what the randomness is for (step, layer, micro-batch, operation), not when it is drawn, so the result
of a run does not depend on how workers interleave or where the model is cut. A label is used once.
"""

from __future__ import annotations

from typing import Protocol

import torch

from mpcpipe.ring.ring import Ring

Holders = tuple[int, ...]


class Tape(Protocol):
    """A source of uniform randomness, the same for every holder that names the same label."""

    def elements(self, holders: Holders, label: str, numel: int, ring: Ring) -> torch.Tensor:
        """`numel` uniform elements of `ring`, in its dtype and range, flat."""
        ...

    def planes(self, holders: Holders, label: str, count: int, n: int) -> torch.Tensor:
        """`count` rows of n uniform bits, packed: int64 (count, words(n)). Bits past n of a row are unspecified."""
        ...
