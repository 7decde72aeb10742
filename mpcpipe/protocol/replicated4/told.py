"""replicated4: a pair of parties is told the rest of a value by one message each, which two witnesses know in parts.

Of a value's six summands (see `linear`) party p lacks three. Its partner q has two of them in common with x and with y:

    q ── X + Y ──> p        X = z_qx - mask        Y = z_qy - mask        x and y know one part and both masks

Then p and q know z_pq + both messages, x and y know z_xy + all four masks: together the value. The witnesses' tags
have to add up to the message's. Modulo 2^k no safe tag does, but as a whole number X + Y has one: the sum over all
elements of r (X + Y) modulo 2^128, with coefficients r that x, y and p know, and q does not. So q says besides where
X + Y is 2^k or more, a bit each. p may know X and Y, which have masks of their own, so the bit tells it nothing.

Source: docs/protocols.md, "replicated4". What q adds up saves one of two messages, each witnessed as in Fantastic Four.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.replicated4.evidence import Told
from mpcpipe.protocol.replicated4.passes import library_of
from mpcpipe.protocol.replicated4.roles import others, stands
from mpcpipe.random.mac import weighted
from mpcpipe.random.tape import Holders, PrgTape, Tape
from mpcpipe.ring import ops
from mpcpipe.ring.ring import Ring

_COEFFICIENTS = Ring(64)
Stream = tuple[Holders, str]


@dataclass(frozen=True)
class Telling:
    """What one tape's party computes before and after such messages, of partials (3, n). Natively, or step by step."""

    tape: Tape
    party: int
    ring: Ring

    def parts(self, numel: int) -> list[Part]:
        """What is expected for so many elements."""
        return [Part(self.ring.dtype, numel), Part(torch.int64, ops.words(numel))]

    def tell(self, z: torch.Tensor, label: str, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """X + Y for the partner, and where it carries; out (n,) is what this party knows of its own pair's half."""
        partner = self.party ^ 1
        witnesses = others(self.party, partner)
        values, minus = zip(*(self._summand(z, witness) for witness in witnesses), strict=True)
        masks = [self._mask(label, partner, witness) for witness in witnesses]
        base = z[stands(self.party, partner)]
        native = library_of(self.tape, out)
        if native is not None:
            assert native.library is not None
            return native.library.tell(values, minus, _keys(native, masks), self.ring.bits, base, out)
        n = out.numel()
        x, y = (self._part(v, m, self._drawn(mask, n)) for v, m, mask in zip(values, minus, masks, strict=True))
        wire = self.ring.wrap(x + y)
        top = -1 << (self.ring.bits - 1)  # signed numbers stand in the order of unsigned ones with this bit flipped
        carried = self.ring.wrap(wire ^ top) < self.ring.wrap(x ^ top)
        torch.add(base, wire, out=out)
        return wire, ops.bit_planes(carried.to(torch.int32), 1)[0]

    def vouch(self, z: torch.Tensor, label: str, out: torch.Tensor) -> Iterator[tuple[Told, int | None]]:
        """The tags of the parts of what the two others tell each other; out (n,) is this party's pair's half."""
        told = others(self.party, self.party ^ 1)
        values, minus = zip(*(self._summand(z, receiver ^ 1) for receiver in told), strict=True)
        masks = [self._mask(label, receiver, self.party) for receiver in told]
        masks += [self._mask(label, receiver, self.party ^ 1) for receiver in told]
        coefficients = [self._coefficients(label, receiver) for receiver in told]
        base = z[stands(self.party, self.party ^ 1)]
        native = library_of(self.tape, out)
        tags: tuple[int | None, ...]
        if native is not None:
            assert native.library is not None
            keys = _keys(native, masks), _keys(native, coefficients)
            tags = native.library.vouch(values, minus, *keys, self.ring.bits, base, out)
        else:
            drawn = [self._drawn(mask, out.numel()) for mask in masks]
            torch.add(base, torch.stack(drawn).sum(0, dtype=out.dtype), out=out)
            tags = tuple(
                self._tag(stream, self._part(v, m, mask))
                for v, m, mask, stream in zip(values, minus, drawn[:2], coefficients, strict=True)
            )
        yield from (((receiver ^ 1, receiver), tag) for receiver, tag in zip(told, tags, strict=True))

    def told(self, wire: torch.Tensor, carries: torch.Tensor, label: str, out: torch.Tensor) -> int | None:
        """out (n,) += what has come, and its tag."""
        stream = self._coefficients(label, self.party)
        native = library_of(self.tape, out)
        if native is not None:
            assert native.library is not None
            (key,) = _keys(native, [stream])
            return native.library.told(wire, carries, key, self.ring.bits, out)
        out.add_(wire)
        return self._tag(stream, wire, ops.unpack_bits(carries, wire.numel(), torch.int64))

    def _summand(self, z: torch.Tensor, peer: int) -> tuple[torch.Tensor, bool]:
        """The summand that this party and `peer` know, and whether it stands in `z` with the other sign."""
        return z[stands(self.party, peer)], (self.party - peer) % 4 == 2

    def _part(self, value: torch.Tensor, minus: bool, mask: torch.Tensor) -> torch.Tensor:
        return self.ring.wrap((-value if minus else value) - mask)

    def _tag(self, stream: Stream, values: torch.Tensor, carries: torch.Tensor | None = None) -> int | None:
        coefficients = self.tape.elements(*stream, values.numel(), _COEFFICIENTS)
        return None if values.is_meta else weighted(coefficients, values, self.ring.bits, carries)

    def _drawn(self, stream: Stream, numel: int) -> torch.Tensor:
        return self.tape.elements(*stream, numel, self.ring)

    @staticmethod
    def _mask(label: str, receiver: int, witness: int) -> Stream:
        """All but the receiver draw it."""
        return others(receiver), f"{label}/half{receiver}{witness}"

    @staticmethod
    def _coefficients(label: str, receiver: int) -> Stream:
        """All but the sender draw them."""
        return others(receiver ^ 1), f"{label}/tag{receiver}"


def _keys(tape: PrgTape, streams: list[Stream]) -> list[tuple[bytes, bytes]]:
    return [(tape.key_for(holders, label), label.encode()) for holders, label in streams]
