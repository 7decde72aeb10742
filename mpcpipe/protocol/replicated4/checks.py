"""replicated4: what everybody has recorded is compared, and nobody learns more from that than whether all is equal.

Once somebody has deviated, what honest parties compute differs by products of the deviation and of secrets. So neither
what they say of tags, nor which of them agree, nor who stops first may depend on more than that somebody has deviated:

    round 1   witness x ── its sum + a stream of x and y ──> receiver     of what x and y know in parts (see `told`)
    round 2   each two of the others ── digests of what both know ──> each      they add up to 0 if all are equal
    round 3   who found that ── streams that add up to 0 ──> everybody          who did not: random numbers

A digest is under a key of two parties, who have it stand with different signs in what they send to the third or the
fourth. So it is a mask as well: the numbers that somebody receives are uniform but for their sum, and wherever a pair
disagrees, all of them are. A deviation always makes one pair of honest parties disagree: the receiver and the witness
of the message. So in round 2 who deviates sees uniform numbers, whatever else it has caused; the third honest party,
which hears of that pair, is not content; and in round 3 everybody sees uniform numbers, and stops, with the same words.
Nobody can make a sum 0 that is not, for nobody knows what an honest party has added to it.

Source: that a check must not tell what a deviation makes of secrets is known from additive attacks (Genkin et al., STOC
2014). docs/protocols.md, "Checks".
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping

import torch

from mpcpipe.errors import IntegrityError
from mpcpipe.link.base import Part
from mpcpipe.protocol.replicated4.evidence import Recorded
from mpcpipe.protocol.replicated4.joint import Joint
from mpcpipe.protocol.replicated4.roles import others
from mpcpipe.protocol.rounds import Round
from mpcpipe.random.mac import KEY_BYTES, MODULUS, TAG_BYTES, digest, number, packed, unpacked

Totals = Mapping[Recorded, int]
Numbers = dict[int, int]
"""By peer."""
Rests = dict[Recorded, int]
"""Of what a receiver is told, the part of its second witness: by the two, who both work it out."""


class Checks(Joint, ABC):
    """check."""

    async def check(self) -> None:
        """Compare all that this lane knows of. IntegrityError, at everybody.

        Security: numbers that are uniform but for their sum, which says whether all is equal. Who goes on knows of
        everybody that it found so. Cost: 3 rounds, 448 bytes of all parties together.
        """
        await self._check(self.label("check"))

    async def _check(self, label: str) -> None:
        totals = self.journal.totals(self.lane_number)
        rests = await self._rests(label, totals)
        digests = dict.fromkeys(others(self.party), 0)
        for peer in others(self.party):
            known = self._known(peer, totals, rests)
            for third in others(self.party, peer):
                key = self._drawn(self._pair(peer), f"{label}/tag/to{third}")
                digests[third] += self._signed(peer, digest(key, known)) if key is not None else 0
        content = await self._adds_up(f"{label}/check", digests)

        verdicts: Numbers = {}
        for peer in others(self.party):
            if content:
                streams = {other: self._number(self._pair(other), f"{label}/tag/yes{peer}") for other in digests}
                verdicts[peer] = sum(self._signed(other, streams[other]) for other in others(self.party, peer))
            else:
                verdicts[peer] = self._number((self.party,), f"{label}/tag/no{peer}")
        # Also who is not content has to come so far: that it stops earlier would tell what it has found.
        agreed = await self._adds_up(f"{label}/agreed", verdicts)
        if not (content and agreed):
            raise self._deviation(label)
        self.journal.last_check[self.lane_number] = label

    async def _rests(self, label: str, totals: Totals) -> Rests:
        """Of two witnesses x < y that know parts of what the other two are told, x shows its sum, blinded. 1 round."""
        x, y = told = others(self.party, self.partner)
        blinds = {receiver: self._number(self._pair(self.partner), f"{label}/tag/less{receiver}") for receiver in told}
        sums = {receiver: totals.get((receiver ^ 1, receiver), 0) for receiver in told}
        first = self.party < self.partner
        send = {receiver: sums[receiver] + blinds[receiver] for receiver in told} if first else {}
        said = await self._exchange(f"{label}/parts/check", send, (x,))
        rests: Rests = {(self.party, y): totals.get((self.partner, self.party), 0) - said.get(x, 0)}
        if not first:
            rests |= {(receiver, self.party): sums[receiver] - blinds[receiver] for receiver in told}
        return rests

    def _known(self, peer: int, totals: Totals, rests: Rests) -> list[int]:
        """What this party and `peer` must have the same: of what either of the two others has sent one of both."""
        low, high = self._pair(peer)
        routes = [(sender, *pair) for sender in others(low, high) for pair in ((low, high), (high, low))]
        sums = [totals.get(route, 0) for route in routes]
        return sums + [rests.get(pair, 0) % MODULUS for pair in ((low, high), (high, low))]

    def _drawn(self, holders: tuple[int, ...], label: str) -> torch.Tensor | None:
        """A key; None if there are no values."""
        key = self.tape.planes(holders, label, 1, 8 * KEY_BYTES)
        return None if key.is_meta else key

    def _number(self, holders: tuple[int, ...], label: str) -> int:
        key = self._drawn(holders, label)
        return 0 if key is None else number(key)

    def _pair(self, peer: int) -> tuple[int, int]:
        return min(self.party, peer), max(self.party, peer)

    def _signed(self, peer: int, value: int) -> int:
        """So that what this party and `peer` add is nothing together."""
        return value if self.party < peer else -value

    async def _adds_up(self, label: str, numbers: Numbers) -> bool:
        """One number to everybody else. Is the sum of what comes 0? 1 round."""
        said = await self._exchange(label, numbers, others(self.party))
        return sum(said.values()) % MODULUS == 0

    async def _exchange(self, label: str, numbers: Numbers, senders: tuple[int, ...]) -> Numbers:
        """What `senders` said, by peer; nothing if there are no values."""
        received = await Round(
            label,
            {peer: [packed([value % MODULUS])] for peer, value in numbers.items()},
            {peer: [Part(torch.uint8, TAG_BYTES)] for peer in senders},
        )
        return {peer: unpacked(data)[0] for peer, (data,) in received.items() if not data.is_meta}

    def _deviation(self, label: str) -> IntegrityError:
        since = self.journal.last_check.get(self.lane_number)
        after = f"after {since!r}" if since else "since the session began"
        return IntegrityError(
            f"party {self.party} noticed at {label!r}: what the parties have sent each other {after} does not agree. "
            "One of them deviates from the protocol, or a memory or a network is faulty; which one, no party may know, "
            "for that would tell who deviates about secrets. Nothing that depends on it was opened. Find the cause, "
            "start again"
        )
