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
from mpcpipe.protocol.replicated4.evidence import Journal, Route
from mpcpipe.protocol.replicated4.kinds import Kind
from mpcpipe.protocol.replicated4.roles import CROSSING, PAIRS, RECEIVERS, Pair, Roles, knowing
from mpcpipe.protocol.replicated4.terms import Term, Value, masked, received, tag_of
from mpcpipe.protocol.rounds import Round
from mpcpipe.random.mac import MODULUS


@dataclass(eq=False)
class Message:
    """One flat tensor from `sender` to `receiver`; `value` where it is known: at the receiver once it has come.

    same: the witness knows it as this other message, which it receives in the same round. tag: at the witness, where
    the message is not at hand any more.
    """

    sender: int
    witness: int | None
    receiver: int
    part: Part
    value: torch.Tensor | None
    same: Message | None = None
    tag_label: str = ""
    tag: int | None = None

    def known(self) -> torch.Tensor:
        """The value; only for who knows it."""
        value = self.value if self.value is not None else self.same.value if self.same else None
        if value is None:
            raise ValueError("this party does not know the message")
        return value

    @property
    def route(self) -> Route:
        """Who sends, vouches and receives; only of what has a witness."""
        assert self.witness is not None
        return self.sender, self.witness, self.receiver


@dataclass(frozen=True)
class Known:
    """A value that the two parties of `pair` know, to be shared; None at the others. name: of its streams.

    The first of the pair sends the first half.
    """

    name: str
    pair: Pair
    value: Value | None


@dataclass(frozen=True)
class Values:
    """Values of one kind, numel elements each, that are shared in one round; their sharings are added up.

    into: a share (3, numel) that they are added to, times 2^up: in place, so it must be the operation's own.
    """

    kind: Kind
    numel: int
    known: Sequence[Known]
    into: torch.Tensor | None = None
    up: int = 0


@dataclass(frozen=True)
class _Begun:
    values: Values
    terms: list[Term]
    messages: list[Message]
    out: torch.Tensor


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
        arrived = await Round(label, send, receive)
        taken = dict.fromkeys(receive, 0)
        for message in messages:
            if message.receiver == self.party:
                message.value = arrived[message.sender][taken[message.sender]]
                taken[message.sender] += 1
        # After the round, so that at every party this comes at the same place of its program.
        tags: dict[Route, int] = {}
        for message in messages:
            if message.witness is not None and self.party in (message.witness, message.receiver):
                found = message.tag
                if found is None:
                    found = tag_of(self.tape, message.route, message.tag_label, message.known())
                if found is not None:
                    tags[message.route] = (tags.get(message.route, 0) + found) % MODULUS
        self.journal.record(self.lane_number, tags)

    async def reshare(self, label: str, *groups: Values) -> list[torch.Tensor]:
        """For each group the share (3, numel) of its sum, not reduced to the ring's range. 1 round.

        Security: what a party receives is masked by a stream of the three others. Cost: an element an element.
        """
        begun = [self._begin(label, number, values) for number, values in enumerate(groups)]
        await self.exchange(label, [message for group in begun for message in group.messages])
        return [self._finish(group) for group in begun]

    def _begin(self, label: str, number: int, values: Values) -> _Begun:
        kind, into = values.kind, values.into
        like = next((known.value.tensors[0] for known in values.known if known.value is not None), into)
        assert like is not None, "of the six pairs every party is in three, of each half's in one"
        out = into
        if out is None:
            out = torch.empty((3, values.numel), dtype=kind.dtype, device=like.device)
        terms: list[Term] = []
        start = 0
        for half, numel in enumerate(kind.halves(values.numel)):
            of_half = [self._term(label, number, known, half, start, numel) for known in values.known] if numel else []
            if of_half:
                masked(self.tape, self.party, kind, of_half, into, out, values.up)
            terms += of_half
            start += numel
        return _Begun(values, terms, [message_of(term, kind) for term in terms], out)

    def _term(self, label: str, number: int, known: Known, half: int, start: int, numel: int) -> Term:
        """a ── rest ──> c for the first half, b ── rest ──> d for the second, as this party sees it."""
        sender, witness = known.pair if half == 0 else (known.pair[1], known.pair[0])
        receiver = RECEIVERS[known.pair][half]
        rest_of = RECEIVERS[known.pair][1 - half]  # the component of the rest; the mask's is the receiver's number
        return Term(
            sender,
            witness,
            receiver,
            f"{label}/{known.name}{min(known.pair)}{max(known.pair)}",
            start,
            numel,
            None if self.party == receiver else self.index(receiver),
            None if self.party == rest_of else self.index(rest_of),
            known.value,
            tag_label=f"{label}/tag{number}.{sender}{receiver}",
        )

    def _finish(self, begun: _Begun) -> torch.Tensor:
        for term, message in zip(begun.terms, begun.messages, strict=True):
            if term.receiver == self.party:
                term.wire = message.value
                received(self.tape, begun.values.kind, term, begun.out, begun.values.up)
        return begun.out

    def summands(self, z: torch.Tensor) -> list[Known]:
        """Of a partial (3, n) the summand of each pair of parties, to be shared."""
        values = []
        for a, b in PAIRS:
            peer = {a: b, b: a}.get(self.party)
            value = None if peer is None else Value("copy", (z[self.stands(peer)],))
            values.append(Known("", (a, b), value))
        return values

    def halves(self, name: str, value: Value) -> list[Known]:
        """The half of a value that this party knows, and the other two's half, to be shared.

        Parties 1 and 3 send the larger parts here: where products of summands cannot be cut evenly, 0 and 2 do.
        """
        low = self.party < 2
        return [Known(name, (3, 2), None if low else value), Known(name, (1, 0), value if low else None)]

    def crossing(self, name: str, product: Callable[[int, int], Value]) -> list[Known]:
        """The four products of components of different halves; product(i, j), i and j as in a share of this party."""
        values = []
        for i, j in CROSSING:
            pair = knowing(i, j)
            value = product(self.index(i), self.index(j)) if self.party in pair else None
            values.append(Known(name, pair, value))
        return values


def message_of(term: Term, kind: Kind) -> Message:
    """What is sent of a term, and by whom."""
    return Message(
        term.sender, term.witness, term.receiver, kind.part(term.numel), term.wire, None, term.tag_label, term.tag
    )
