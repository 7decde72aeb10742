"""Tapes: where protocols draw all of their randomness from.

A draw names its *holders* (the parties that share the key, in rising order; one party alone for private randomness) and
a label. The label says what the randomness is for (step, layer, micro-batch, operation), not when it is drawn, so the
result of a run does not depend on how workers interleave or where the model is cut. A label is used once.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Mapping
from typing import Protocol

import torch

from mpcpipe.random.prg import GENERATORS, native_draws
from mpcpipe.ring.native import NativeLibrary
from mpcpipe.ring.ops import words
from mpcpipe.ring.ring import Ring

Holders = tuple[int, ...]

_WORD = Ring(64)


class Tape(Protocol):
    """A source of uniform randomness, the same for every holder that names the same label."""

    def elements(self, holders: Holders, label: str, numel: int, ring: Ring) -> torch.Tensor:
        """`numel` uniform elements of `ring`, in its dtype and range, flat."""
        ...

    def planes(self, holders: Holders, label: str, count: int, n: int) -> torch.Tensor:
        """`count` rows of n uniform bits, packed: int64 (count, words(n)). Bits past n of a row are unspecified."""
        ...


class PrgTape:
    """A tape whose draws are pseudo-random streams, one a label.

    The stream of a label is keyed by HMAC-SHA256(the holders' key, label), so the holders of a key agree on every draw
    without a message, and nobody else can tell it from uniform bits. `keys` must be fresh in every session
    (`mpcpipe.random.keys`).

    Security: as strong as the generator and HMAC-SHA256 as pseudo-random functions. A label used twice would give the
    same mask twice, which is a hole; `audit=True` finds it, for the price of keeping every label.
    """

    def __init__(
        self,
        keys: Mapping[Holders, bytes],
        generator: str = "aes128-ctr",
        device: str | torch.device = "cpu",
        audit: bool = False,
    ) -> None:
        if generator not in GENERATORS:
            raise ValueError(f"there is no generator {generator!r}; there are {', '.join(sorted(GENERATORS))}")
        self.generator = generator
        self.device = torch.device(device)
        self._keys = dict(keys)
        self._key_bytes, self._fill = GENERATORS[generator]
        self._library = native_draws(generator, self._keys.values())
        self._elsewhere = self.device.type != "cpu"
        self._seen: set[tuple[Holders, str]] | None = set() if audit else None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"PrgTape({self.generator}, device={self.device}, holders={sorted(self._keys)})"

    def elements(self, holders: Holders, label: str, numel: int, ring: Ring) -> torch.Tensor:
        """`numel` uniform elements of `ring`, in its dtype and range, flat."""
        return self._drawn(holders, label, torch.empty(numel, dtype=ring.dtype), ring)

    def planes(self, holders: Holders, label: str, count: int, n: int) -> torch.Tensor:
        """`count` rows of n uniform bits, packed: int64 (count, words(n))."""
        return self._drawn(holders, label, torch.empty((count, words(n)), dtype=torch.int64), _WORD)

    @property
    def library(self) -> NativeLibrary | None:
        """What makes this tape's streams inside of a native pass, from `key_for`; None if this tape draws otherwise."""
        return None if self._elsewhere else self._library

    @property
    def audits(self) -> bool:
        """Must every label be named to `key_for`? Otherwise a key may be kept for all of its labels."""
        return self._seen is not None

    def key_for(self, holders: Holders, label: str) -> bytes:
        """The key under which a native pass draws what belongs to `label`, which is used up, as by a draw."""
        return self._key(holders, label)

    def key_of(self, holders: Holders) -> bytes:
        """The holders' key, for a native pass that draws under many labels, each of which `key_for` is told if this
        tape audits.
        """
        return self._held(holders)

    def _drawn(self, holders: Holders, label: str, out: torch.Tensor, ring: Ring) -> torch.Tensor:
        key = self._key(holders, label)
        if self._library is not None:  # the same in one call: there are hundreds of draws in a step
            self._library.draw(key, label.encode(), out, ring.bits)
        else:
            self._fill(hmac.digest(key, label.encode(), "sha256")[: self._key_bytes], out, 0)
            out = ring.wrap(out)
        return out.to(self.device) if self._elsewhere else out

    def _key(self, holders: Holders, label: str) -> bytes:
        """The holders' key; the label is used up."""
        key = self._held(holders)
        if self._seen is not None:
            with self._lock:
                if (holders, label) in self._seen:
                    raise ValueError(
                        f"the label {label!r} was already drawn by the holders {holders}: a mask would be used twice"
                    )
                self._seen.add((holders, label))
        return key

    def _held(self, holders: Holders) -> bytes:
        key = self._keys.get(holders)
        if key is None:
            raise ValueError(f"this party has no key shared by the parties {holders}; it has {sorted(self._keys)}")
        return key
