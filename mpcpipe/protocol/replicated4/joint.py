"""replicated4: messages that two parties know, and how a value that two parties know becomes a sharing.

    a and b know v, c and d do not.  Component c comes from the stream of a, b, d;  component d is v - stream.
    So only c lacks something:      a ── v - stream ──> c,       and b is the witness.
    For the second half of the elements the roles of c and d, and of a and b, are exchanged: b sends to d.

One element is sent for each element shared, whatever the receiver gets is masked by a stream that it does not know, and
every message has a witness. All operations are made of this.

Source: Dalskov, Escudero and Keller, Fantastic Four, USENIX Security 2021 (joint message passing, and inputs known to
two parties).
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.replicated4 import cost
from mpcpipe.protocol.replicated4.evidence import Journal, Route
from mpcpipe.protocol.replicated4.kinds import Kind
from mpcpipe.protocol.replicated4.roles import CROSSING, Pair, Roles, knowing, others
from mpcpipe.protocol.rounds import Round
from mpcpipe.random.mac import KEY_BYTES, tag
from mpcpipe.ring.bilinear import Shape


@dataclass(eq=False)
class Message:
    """One flat tensor from `sender` to `receiver`; `value` where it is known: at the receiver once it has come.

    same: the witness knows it as this other message, which it receives in the same round.
    """

    sender: int
    witness: int | None
    receiver: int
    part: Part
    value: torch.Tensor | None
    same: Message | None = None

    def known(self) -> torch.Tensor:
        """The value; only for who knows it."""
        value = self.value if self.value is not None else self.same.value if self.same else None
        if value is None:
            raise ValueError("this party does not know the message")
        return value


@dataclass(frozen=True)
class Known:
    """A value that the two parties of `pair` know (None at the others), to be shared. name: of its streams."""

    name: str
    pair: Pair
    value: torch.Tensor | None
    shape: Shape
    kind: Kind


Pieces = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""By component, those that this party holds: its first and second half along the last dimension."""


class Joint(Roles, ABC):
    """Rounds of witnessed messages. `lane`: see `evidence`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.journal = Journal()
        self.lane_number = 0

    async def exchange(self, label: str, messages: Sequence[Message]) -> None:
        """One round of messages; the receivers' values are filled in, and all that needs a witness is written down."""
        send: dict[int, list[torch.Tensor]] = {}
        receive: dict[int, list[Part]] = {}
        messages = [message for message in messages if message.part.numel]
        for message in messages:
            if message.sender == self.party:
                send.setdefault(message.receiver, []).append(message.known())
            elif message.receiver == self.party:
                receive.setdefault(message.sender, []).append(message.part)
        received = await Round(label, send, receive)
        taken = dict.fromkeys(receive, 0)
        for message in messages:
            if message.receiver == self.party:
                message.value = received[message.sender][taken[message.sender]]
                taken[message.sender] += 1
        # After the round, so that at every party this comes at the same place of its program.
        routes: dict[Route, list[torch.Tensor]] = {}
        for message in messages:
            if message.witness is not None and self.party in (message.witness, message.receiver):
                route = (message.sender, message.witness, message.receiver)
                routes.setdefault(route, []).append(message.known())
        self.journal.record(
            self.lane_number,
            {route: self.tag_of(route, label, parts) for route, parts in routes.items() if not parts[0].is_meta},
        )

    def tag_of(self, route: Route, label: str, parts: Sequence[torch.Tensor]) -> int:
        """The tag of what goes along `route`, at its witness and its receiver."""
        sender, witness, receiver = route
        holders = (min(witness, receiver), max(witness, receiver))
        return tag(self.tape.planes(holders, f"{label}/tag{sender}{receiver}", 1, 8 * KEY_BYTES), parts)

    async def reshare(self, label: str, values: Sequence[Known]) -> list[Pieces]:
        """Sharings of values that two parties know: the components that this party holds, two of each. 1 round.

        Security: what a party receives is masked by a stream of the three others. Cost: an element an element.
        """
        messages: list[Message] = []
        found: list[Pieces | Callable[[], Pieces]] = [self._prepare(label, known, messages) for known in values]
        await self.exchange(label, messages)
        return [pieces() if callable(pieces) else pieces for pieces in found]

    def _prepare(self, label: str, known: Known, messages: list[Message]) -> Pieces | Callable[[], Pieces]:
        (a, b), (c, d) = known.pair, others(*known.pair)
        kind, tape, name = known.kind, self.tape, f"{label}/{known.name}{a}{b}"
        *lead, n = known.shape
        n1, n2 = cost.halves(n)
        shape1, shape2 = (*lead, n1), (*lead, n2)
        first = Message(a, b, c, kind.part(shape1), None)
        second = Message(b, a, d, kind.part(shape2), None)
        messages += (first, second)
        mask1 = kind.mask(tape, self.without(c), name, shape1) if self.party != c else None
        mask2 = kind.mask(tape, self.without(d), name, shape2) if self.party != d else None
        if known.value is not None:
            assert mask1 is not None and mask2 is not None
            rest1 = kind.minus(known.value[..., :n1], mask1)
            rest2 = kind.minus(known.value[..., n1:], mask2)
            first.value, second.value = kind.to_wire(rest1), kind.to_wire(rest2)
            return {c: (mask1, rest2), d: (rest1, mask2)}

        def received() -> Pieces:
            mine, shape = (first, shape1) if self.party == c else (second, shape2)
            if mine.value is None:
                rest = (mask2 if mask1 is None else mask1).new_empty(shape)  # type: ignore[union-attr]
            else:
                rest = kind.from_wire(mine.value, shape)
            if mask1 is None:
                assert mask2 is not None
                return {d: (rest, mask2)}
            return {c: (mask1, rest)}

        return received

    def collect(self, out: torch.Tensor, pieces: Pieces, kind: Kind) -> None:
        """Add a sharing to the share `out` (3, ...)."""
        for component, (first, second) in pieces.items():
            target = out[self.index(component)]
            n1 = first.shape[-1]
            kind.add(target[..., :n1], first)
            kind.add(target[..., n1:], second)

    def halves(self, name: str, own: torch.Tensor, kind: Kind) -> list[Known]:
        """The half of a value that this party knows, and the other two's half, to be shared."""
        shape = tuple(own.shape)
        low = self.party < 2
        return [
            Known(name, (2, 3), None if low else own, shape, kind),
            Known(name, (0, 1), own if low else None, shape, kind),
        ]

    def joined(self, pieces: Sequence[Pieces], like: torch.Tensor) -> torch.Tensor:
        """The shares (3, *like.shape) of components 0 and 1 of one half, and 2 and 3 of the other."""
        out = like.new_empty((3, *like.shape))
        for half in pieces:
            for component, (first, second) in half.items():
                torch.cat((first, second), dim=-1, out=out[self.index(component)])
        return out

    def crossing(self, name: str, product: Callable[[int, int], torch.Tensor], shape: Shape, kind: Kind) -> list[Known]:
        """The four products of components of different halves; product(i, j), i and j as in a share of this party."""
        values = []
        for i, j in CROSSING:
            pair = knowing(i, j)
            value = product(self.index(i), self.index(j)) if self.party in pair else None
            values.append(Known(name, pair, value, shape, kind))
        return values
