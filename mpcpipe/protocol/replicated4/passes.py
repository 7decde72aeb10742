"""replicated4: what a party computes between two rounds by a plan: masks, messages, shares, and tags of messages.

In one native pass where the library draws this tape's streams, else one step after the other; both give the same bits.
"""

from __future__ import annotations

import torch

from mpcpipe.protocol.replicated4.evidence import Route
from mpcpipe.protocol.replicated4.kinds import Kind, Planes
from mpcpipe.protocol.replicated4.plans import Plan, Term
from mpcpipe.random.mac import KEY_BYTES, tag
from mpcpipe.random.tape import PrgTape, Tape
from mpcpipe.ring.native.steps4 import JointPlan, JointTerm

Sources = tuple[torch.Tensor, ...]


class Passes:
    """Those of one tape's party. Keeps what the library makes of a plan."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._plans: dict[Plan, JointPlan] = {}

    def masked(
        self,
        plan: Plan,
        label: str,
        kind: Kind,
        sources: Sources,
        halves: tuple[int, int],
        base: torch.Tensor | None,
        out: torch.Tensor,
        up: int = 0,
    ) -> tuple[list[torch.Tensor], dict[Route, int]]:
        """out (components, n) = base (or 0) + all that this party knows of the plan's terms, times 2^up.

        base: may be out itself, if no source is a part of it. Returns what is sent, as in plan.sent, and the tags of
        what this party vouches for, none of what has no elements or no values.
        """
        native = library_of(self.tape, out)
        if native is None:
            return self._step_by_step(plan, label, kind, sources, halves, base, out, up)
        assert native.library is not None
        wires = []
        for term in plan.sent:
            part = kind.part(halves[term.half])
            wires.append(torch.empty(part.numel, dtype=part.dtype))
        if native.audits:
            for term in plan.masked:
                native.key_for(term.holders, label + term.suffix)
            for term in plan.vouched:
                native.key_for(tag_holders(term.route), label + term.tag_suffix)
        packed = self._plans.get(plan) or self._packed(native, plan)
        tags = native.library.joint(
            *(packed, label.encode(), sources, wires, kind.dtype, kind.bits, kind.wire_bytes),
            *(base, out, halves, up),
        )
        return wires, {term.route: value for term, value in zip(plan.vouched, tags, strict=True) if halves[term.half]}

    def _packed(self, tape: PrgTape, plan: Plan) -> JointPlan:
        """Keys are those of all labels, so they are asked for under none."""
        terms = []
        for term in plan.masked:
            value, vouched = term.value, term.witness == plan.party
            terms.append(
                JointTerm(
                    term.half,
                    tape.key_of(term.holders),
                    term.suffix.encode(),
                    -1 if term.mask_at is None else term.mask_at,
                    -1 if term.rest_at is None else term.rest_at,
                    None if value is None else value.operation,
                    () if value is None else value.rows,
                    plan.sent.index(term) if term.sender == plan.party else -1,
                    tape.key_of(tag_holders(term.route)) if vouched else None,
                    term.tag_suffix.encode(),
                )
            )
        return self._plans.setdefault(plan, JointPlan(terms))

    def _step_by_step(
        self,
        plan: Plan,
        label: str,
        kind: Kind,
        sources: Sources,
        halves: tuple[int, int],
        base: torch.Tensor | None,
        out: torch.Tensor,
        up: int,
    ) -> tuple[list[torch.Tensor], dict[Route, int]]:
        if base is None:
            out.zero_()
        elif base is not out:
            out.copy_(base)
        wires, tags = [], {}
        for term in plan.masked:
            start, numel = term.half * halves[0], halves[term.half]
            target = out[:, start : start + numel]
            if not numel:
                if term.sender == plan.party:
                    wires.append(torch.empty(0, dtype=kind.part(0).dtype, device=out.device))
                continue
            mask = kind.mask(self.tape, term.holders, label + term.suffix, numel)
            if term.mask_at is not None:
                kind.add(target[term.mask_at], mask, up)
            if term.value is None:
                continue
            rest = kind.minus(term.value.made(sources, start, numel, isinstance(kind, Planes)), mask)
            wire = kind.to_wire(rest)
            if term.sender == plan.party:
                wires.append(wire)
            else:
                found = self.tag(term.route, label, term.tag_suffix, wire)
                if found is not None:
                    tags[term.route] = found
            if term.rest_at is not None:
                kind.add(target[term.rest_at], rest, up)
        return wires, tags

    def received(
        self, term: Term, label: str, kind: Kind, wire: torch.Tensor, out: torch.Tensor, up: int = 0
    ) -> int | None:
        """out (n,) += what has come, times 2^up; and its tag, if it has values."""
        native = library_of(self.tape, out)
        if native is None:
            kind.add(out, kind.from_wire(wire), up)
            return self.tag(term.route, label, term.tag_suffix, wire)
        assert native.library is not None
        key = native.key_for(tag_holders(term.route), label + term.tag_suffix)
        xored = kind.wire_bytes is None
        return native.library.take(key, label.encode(), term.tag_suffix.encode(), wire, out, up, xored)

    def tag(self, route: Route, label: str, suffix: str, wire: torch.Tensor) -> int | None:
        """The tag of what goes along `route`, at its witness and its receiver; None of what has no values."""
        native = library_of(self.tape, wire)
        if native is not None:
            assert native.library is not None
            key = native.key_for(tag_holders(route), label + suffix)
            return native.library.tag(key, label.encode(), suffix.encode(), wire)
        drawn = self.tape.planes(tag_holders(route), label + suffix, 1, 8 * KEY_BYTES)
        return None if wire.is_meta else tag(drawn, [wire])


def library_of(tape: Tape, like: torch.Tensor) -> PrgTape | None:
    """The tape, if the native library draws its streams inside of its own passes over tensors such as `like`."""
    return tape if isinstance(tape, PrgTape) and tape.library is not None and like.is_cpu else None


def tag_holders(route: Route) -> tuple[int, int]:
    """Who has the keys of a route's tags: witness and receiver, and not the sender."""
    _, witness, receiver = route
    return min(witness, receiver), max(witness, receiver)
