"""replicated4: what becomes of a value that two parties know, at any one party: mask, rest and what goes over the wire.

    value = mask + rest        the mask is a stream of all but the receiver, the rest is sent to the receiver

One *term* is one such value (or the half of one) and one message. Terms of one kind are worked off together, in one
native pass where the library draws this tape's streams, else one after the other; both give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mpcpipe.protocol.replicated4.evidence import Route
from mpcpipe.protocol.replicated4.kinds import Kind
from mpcpipe.protocol.replicated4.roles import others
from mpcpipe.random.mac import KEY_BYTES, tag
from mpcpipe.random.tape import PrgTape, Tape
from mpcpipe.ring.native.steps4 import JointTerm


@dataclass(frozen=True)
class Value:
    """A value as it is made of flat tensors: "copy" a; "product" a b; "cross" a b + c d; "chosen" a + b where c is 1.

    Of packed bits a product is a & b.
    """

    operation: str
    tensors: tuple[torch.Tensor, ...]

    def part(self, start: int, numel: int) -> torch.Tensor:
        """Elements `start` to start + numel."""
        a, *more = (tensor[start : start + numel] for tensor in self.tensors)
        match self.operation:
            case "copy":
                return a
            case "product":
                return a * more[0]
            case "and":
                return a & more[0]
            case "cross":
                return (a * more[0]).addcmul_(more[1], more[2])
            case _:
                return (a + more[0]).bitwise_and_(-more[1])


@dataclass(eq=False)
class Term:
    """mask_at, rest_at: components of a share, as they stand at this party, to which mask and rest are added.

    value: where this party knows it. wire: the rest as a message; at the sender, or once it has come. tag: of the wire,
    under the key of `tag_label`; at the witness.
    """

    sender: int
    witness: int
    receiver: int
    label: str
    start: int
    numel: int
    mask_at: int | None
    rest_at: int | None
    value: Value | None = None
    wire: torch.Tensor | None = None
    tag_label: str = ""
    tag: int | None = None

    @property
    def route(self) -> Route:
        """Who sends, vouches and receives."""
        return self.sender, self.witness, self.receiver


def library_of(tape: Tape, like: torch.Tensor) -> PrgTape | None:
    """The tape, if the native library draws its streams inside of its own passes over tensors such as `like`."""
    return tape if isinstance(tape, PrgTape) and tape.library is not None and like.is_cpu else None


def masked(
    tape: Tape, party: int, kind: Kind, terms: Sequence[Term], base: torch.Tensor | None, out: torch.Tensor, up: int
) -> None:
    """out = base (or 0) + all that this party knows of `terms`, times 2^up; fills in the wires of what it sends or
    vouches for. All terms are of the same elements, which are the only ones of `out` (components, n) written.
    """
    start, numel = terms[0].start, terms[0].numel
    native = library_of(tape, out)
    if native is None:
        return _masked(tape, party, kind, terms, base, out, up)
    assert native.library is not None
    known = []
    for term in terms:
        if party != term.receiver:
            if party == term.sender:
                part = kind.part(numel)
                term.wire = torch.empty(part.numel, dtype=part.dtype)
            known.append((term, _native(native, party, term)))
    given = [joint for _, joint in known]
    tags = native.library.joint(given, kind.dtype, kind.bits, kind.wire_bytes, base, out, start, numel, up)
    for (term, _), found in zip(known, tags, strict=True):
        term.tag = found


def _native(tape: PrgTape, party: int, term: Term) -> JointTerm:
    value, mask_at, rest_at = term.value, term.mask_at, term.rest_at
    return JointTerm(
        tape.key_for(holders(term), term.label),
        term.label.encode(),
        -1 if mask_at is None else mask_at,
        -1 if rest_at is None else rest_at,
        None if value is None else "product" if value.operation == "and" else value.operation,
        () if value is None else value.tensors,
        term.wire,
        tape.key_for(tag_holders(term.route), term.tag_label) if party == term.witness else None,
        term.tag_label.encode(),
    )


def _masked(
    tape: Tape, party: int, kind: Kind, terms: Sequence[Term], base: torch.Tensor | None, out: torch.Tensor, up: int
) -> None:
    start, numel = terms[0].start, terms[0].numel
    target = out[:, start : start + numel]
    if base is None:
        target.zero_()
    elif base is not out:
        target.copy_(base[:, start : start + numel])
    for term in terms:
        if party == term.receiver:
            continue
        mask = kind.mask(tape, holders(term), term.label, numel)
        if term.mask_at is not None:
            kind.add(target[term.mask_at], mask, up)
        if term.value is not None:
            rest = kind.minus(term.value.part(start, numel), mask)
            wire = kind.to_wire(rest)
            if party == term.sender or wire.is_meta:  # what has no values has no tag yet: `tag_of` counts it
                term.wire = wire
            else:
                term.tag = tag_of(tape, term.route, term.tag_label, wire)
            if term.rest_at is not None:
                kind.add(target[term.rest_at], rest, up)


def received(tape: Tape, kind: Kind, term: Term, out: torch.Tensor, up: int) -> None:
    """At the receiver: out += the rest that has come, times 2^up."""
    if term.wire is None or term.rest_at is None:
        return
    target = out[term.rest_at, term.start : term.start + term.numel]
    native = library_of(tape, out)
    if native is not None and kind.narrow:
        assert native.library is not None and kind.wire_bytes is not None
        native.library.add_bytes(term.wire, kind.wire_bytes, target, up)
    else:
        kind.add(target, kind.from_wire(term.wire), up)


def tag_holders(route: Route) -> tuple[int, int]:
    """Who has the keys of a route's tags: witness and receiver, and not the sender."""
    _, witness, receiver = route
    return min(witness, receiver), max(witness, receiver)


def tag_of(tape: Tape, route: Route, label: str, wire: torch.Tensor) -> int | None:
    """The tag of what goes along `route`, at its witness and its receiver; None of what has no values."""
    native = library_of(tape, wire)
    if native is not None:
        assert native.library is not None
        return native.library.tag(native.key_for(tag_holders(route), label), label.encode(), wire)
    key = tape.planes(tag_holders(route), label, 1, 8 * KEY_BYTES)
    return None if wire.is_meta else tag(key, [wire])


def holders(term: Term) -> tuple[int, ...]:
    """Who draws the mask: all but the receiver."""
    return others(term.receiver)
