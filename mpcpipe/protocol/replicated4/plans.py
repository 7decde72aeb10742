"""replicated4: who sends what to whom when values that two parties know are shared. One plan serves all uses of a kind.

    a and b know v, c and d do not.  Component c comes from the stream of a, b, d;  component d is v - stream.
    So only c lacks something:      a ── v - stream ──> c,       and b is the witness.
    For the second half of the elements the roles of c and d, and of a and b, are exchanged: b sends to d.

A plan is one party's: what it knows of each value, as rows of tensors that are given with each use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import torch

from mpcpipe.protocol.replicated4.evidence import Route
from mpcpipe.protocol.replicated4.roles import CROSSING, PAIRS, RECEIVERS, Pair, knowing, others, stands

Row = tuple[int, int]
"""Which of the tensors given, and which row of it."""


@dataclass(frozen=True)
class Value:
    """How a value is made of rows a, b ...: "copy" a; "minus" -a; "product" a b (of bits a & b); "chosen" a + b where c
    is 1; "cross" a (b - 2 c) + d (e - 2 f).
    """

    operation: str
    rows: tuple[Row, ...]

    def made(self, sources: tuple[torch.Tensor, ...], start: int, numel: int, xored: bool = False) -> torch.Tensor:
        """Elements `start` to start + numel."""
        chosen = [sources[at] if sources[at].dim() == 1 else sources[at][row] for at, row in self.rows]
        a, *more = (tensor[start : start + numel] for tensor in chosen)
        match self.operation:
            case "copy":
                return a
            case "minus":
                return -a
            case "product":
                return a & more[0] if xored else a * more[0]
            case "cross":
                b, c, d, e, f = more
                return (a * torch.sub(b, c, alpha=2)).addcmul_(d, torch.sub(e, f, alpha=2))
            case _:
                return (a + more[0]).bitwise_and_(-more[1])


@dataclass(frozen=True)
class Term:
    """One value, or the half of one, and its message: value = mask + rest, the rest is sent.

    suffix, tag_suffix: what the names of the mask and of the tag's key have after the use's label. mask_at, rest_at:
    components of a share, as they stand at this party, to which mask and rest are added. value: where it knows it.
    """

    sender: int
    witness: int
    receiver: int
    half: int
    suffix: str
    tag_suffix: str
    mask_at: int | None
    rest_at: int | None
    value: Value | None = None

    @property
    def route(self) -> Route:
        """Who sends, vouches and receives."""
        return self.sender, self.witness, self.receiver

    @property
    def holders(self) -> tuple[int, ...]:
        """Who draws the mask: all but the receiver."""
        return others(self.receiver)


@dataclass(frozen=True, eq=False)
class Plan:
    """All terms of one kind of use, as `party` sees them: what it masks, and of that what it sends and vouches for; and
    what it receives.
    """

    party: int
    terms: tuple[Term, ...]
    masked: tuple[Term, ...] = field(init=False)
    sent: tuple[Term, ...] = field(init=False)
    vouched: tuple[Term, ...] = field(init=False)
    received: tuple[Term, ...] = field(init=False)

    def __post_init__(self) -> None:
        party, terms = self.party, self.terms
        for name, chosen in (
            ("masked", [term for term in terms if term.receiver != party]),
            ("sent", [term for term in terms if term.sender == party]),
            ("vouched", [term for term in terms if term.witness == party]),
            ("received", [term for term in terms if term.receiver == party]),
        ):
            object.__setattr__(self, name, tuple(chosen))


def _shared(party: int, number: int, known: list[tuple[str, Pair, Value | None]]) -> Plan:
    """Values of pairs by name. The first of a pair sends the first half. number: of the values in their round."""
    terms = []
    for half in (0, 1):
        for name, pair, value in known:
            sender, witness = pair if half == 0 else (pair[1], pair[0])
            receiver = RECEIVERS[pair][half]
            rest_of = RECEIVERS[pair][1 - half]  # the component of the rest; the mask's is the receiver's number
            terms.append(
                Term(
                    *(sender, witness, receiver, half),
                    f"/{name}{min(pair)}{max(pair)}",
                    f"/tag{number}.{sender}{receiver}",
                    None if party == receiver else stands(party, receiver),
                    None if party == rest_of else stands(party, rest_of),
                    value,
                )
            )
    return Plan(party, tuple(terms))


def _summand(party: int, a: int, b: int, signed: bool = True) -> Value | None:
    """Of a partial (3, n) the summand of parties a and b. Parties two apart have it with the other sign, in `signed`
    ones: see `linear`.
    """
    if party not in (a, b):
        return None
    operation = "minus" if signed and (a - b) % 4 == 2 else "copy"
    return Value(operation, ((0, stands(party, b if party == a else a)),))


@cache
def summands(party: int, signed: bool = True) -> Plan:
    """Of a partial (3, n), of elements if `signed` and else of bits, the summand of each pair of parties."""
    return _shared(party, 0, [("", (a, b), _summand(party, a, b, signed)) for a, b in PAIRS])


@cache
def halves(party: int, name: str, operation: str = "copy", number: int = 0) -> Plan:
    """The half of a value that this party knows, and the other two's half. Given is the value itself (n,); or for
    "chosen" a share (3, n) and bits (n,) that say where its half is taken.

    Parties 1 and 3 send the larger parts here: where products of summands cannot be cut evenly, 0 and 2 do.
    """
    known: list[tuple[str, Pair, Value | None]] = []
    for pair, (i, j) in (((3, 2), (0, 1)), ((1, 0), (2, 3))):
        value = None
        if party in pair:
            rows: tuple[Row, ...] = ((0, 0),)
            if operation == "chosen":
                rows = ((0, stands(party, i)), (0, stands(party, j)), (1, 0))
            value = Value(operation, rows)
        known.append((name, pair, value))
    return _shared(party, number, known)


@cache
def crossing(party: int, name: str, operation: str, second: int = 0) -> Plan:
    """The four products of components of different halves. Given are shares (3, n): for "product" s_i t_j, t being the
    second if that is 1, else s; for "cross" s, x, y make s_i (x_j - 2 y_j) + s_j (x_i - 2 y_i); for "copy" the
    products, as `own_crossing` has them.
    """
    known: list[tuple[str, Pair, Value | None]] = []
    own = own_crossing(party)
    for i, j in CROSSING:
        value = None
        if (i, j) in own:
            at_i, at_j = stands(party, i), stands(party, j)
            rows: dict[str, tuple[Row, ...]] = {
                "copy": ((own.index((i, j)), 0),),
                "product": ((0, at_i), (second, at_j)),
                "cross": ((0, at_i), (1, at_j), (2, at_j), (0, at_j), (1, at_i), (2, at_i)),
            }
            value = Value(operation, rows[operation])
        known.append((name, knowing(i, j), value))
    return _shared(party, 0, known)


@cache
def own_crossing(party: int) -> tuple[Pair, ...]:
    """Of `CROSSING` the pairs of components that this party has both of."""
    return tuple(pair for pair in CROSSING if party not in pair)
