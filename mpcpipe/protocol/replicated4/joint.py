"""replicated4: rounds of witnessed messages. All operations are made of values that two parties know and share.

One element is sent for each element shared, whatever the receiver gets is masked by a stream that it does not know, and
every message has a witness: who sends what is `plans`, what is computed is `passes`.

Source: Dalskov, Escudero and Keller, Fantastic Four, USENIX Security 2021 (joint message passing, and inputs known to
two parties).
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.replicated4.evidence import Journal, Recorded
from mpcpipe.protocol.replicated4.kinds import Kind
from mpcpipe.protocol.replicated4.passes import Passes, Sources
from mpcpipe.protocol.replicated4.plans import Plan
from mpcpipe.protocol.replicated4.roles import Roles
from mpcpipe.protocol.rounds import Round
from mpcpipe.random.mac import MODULUS


@dataclass(frozen=True)
class Values:
    """Values of one kind, numel elements each, that are shared in one round by `plan`; their sharings are added up.

    sources: what the plan's values are made of. into: a share (3, numel) that they are added to, times 2^up: in place
    if it is the operation's own, which it is unless `keep`.
    """

    kind: Kind
    numel: int
    plan: Plan
    sources: Sources
    into: torch.Tensor | None = None
    up: int = 0
    keep: bool = False


class Messages:
    """One round of this party: what it sends, what it expects, and the tags that go with it."""

    def __init__(self) -> None:
        self.send: dict[int, list[torch.Tensor]] = {}
        self.receive: dict[int, list[Part]] = {}
        self.tags: dict[Recorded, int] = {}

    def expect(self, plan: Plan, kind: Kind, halves: tuple[int, int], wires: Sequence[torch.Tensor]) -> None:
        """The messages of one plan, of which `wires` leave from here."""
        for term, wire in zip(plan.sent, wires, strict=True):
            if halves[term.half]:
                self.send.setdefault(term.receiver, []).append(wire)
        for term in plan.received:
            if halves[term.half]:
                self.receive.setdefault(term.sender, []).append(kind.part(halves[term.half]))

    def add_tag(self, route: Recorded, tag: int | None) -> None:
        """Of one message; None of one without values."""
        if tag is not None:
            self.tags[route] = (self.tags.get(route, 0) + tag) % MODULUS


class Joint(Roles, ABC):
    """Rounds of witnessed messages. `lane`: see `evidence`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.journal = Journal()
        self.lane_number = 0
        self.passes = Passes(self.tape)

    async def reshare(self, label: str, *groups: Values) -> list[torch.Tensor]:
        """For each group the share (3, numel) of its sum, not reduced to the ring's range. 1 round.

        Security: what a party receives is masked by a stream of the three others. Cost: an element an element.
        """
        messages, outs, sizes = Messages(), [], []
        for values in groups:
            kind, into = values.kind, values.into
            halves = kind.halves(values.numel)
            out = into
            if out is None or values.keep:
                dtype = kind.dtype if into is None else into.dtype
                out = torch.empty((3, values.numel), dtype=dtype, device=values.sources[0].device)
            leaving, tags = self.passes.masked(values.plan, label, kind, values.sources, halves, into, out, values.up)
            messages.expect(values.plan, kind, halves, leaving)
            for route, tag in tags.items():
                messages.add_tag(route, tag)
            outs.append(out)
            sizes.append(halves)
        arrived = await Round(label, messages.send, messages.receive)
        wires = {peer: iter(tensors) for peer, tensors in arrived.items()}
        for values, out, halves in zip(groups, outs, sizes, strict=True):
            for term in values.plan.received:
                start, numel = term.half * halves[0], halves[term.half]
                if numel:
                    assert term.rest_at is not None, "its receiver lacks the mask"
                    target = out[term.rest_at, start : start + numel]
                    wire = next(wires[term.sender])
                    found = self.passes.received(term, label, values.kind, wire, target, values.up)
                    messages.add_tag(term.route, found)
        # After the round, so that at every party this comes at the same place of its program.
        self.journal.record(self.lane_number, messages.tags)
        return outs
