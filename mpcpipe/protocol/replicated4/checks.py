"""replicated4: what everybody has recorded is compared, and nobody learns more from that than whether it is equal.

Nobody is shown a sum of tags whose keys it has: once somebody has deviated, what honest parties compute differs by a
product of the deviation and a secret, and the tag of one beside the message of another would tell it. So digests go,
under a key of receiver and witness, to the fourth party, which is not the sender:

    receiver, witness ── digest of their sums of tags ──> the fourth

Of what two witnesses x < y know in parts (see `told`), the receiver's sum less that of x must be that of y. x compares:

    round 1   x ── sum + a stream of x and y ──> receiver
    round 2   receiver, y ── digest of y's sum less the stream ──> x

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
Numbers = dict[int, list[int]]
"""By peer."""


class Checks(Joint, ABC):
    """check."""

    async def check(self) -> None:
        """Compare all that this lane knows of. IntegrityError, at the one who notices.

        Security: a digest says whether two sums are equal, to who has not its key. Who goes on has heard from everybody
        that they were. Cost: 3 rounds, 588 bytes of all parties together.
        """
        await self._check(self.label("check"))

    async def _check(self, label: str) -> None:
        """Of two witnesses that know parts of what the other two are told, parties 0 and 2 are the first, `x`."""
        totals, told = self.journal.totals(self.lane_number), others(self.party, self.partner)
        first = self.party % 2 == 0
        sums = self._digests(label, totals)
        if first:
            for peer in told:
                sums[peer].append((totals.get((peer ^ 1, peer), 0) + self._blind(label, peer)) % MODULUS)
        expected = {peer: 3 if peer == told[0] else 2 for peer in others(self.party)}
        said = await self._exchange(f"{label}/check", sums, expected)
        self._compare(label, said)

        x, y = told
        less = said[x].pop() if said else 0
        own = (totals.get((self.partner, self.party), 0) - less) % MODULUS
        rests: Numbers = {x: [self._digest(label, y, f"told{self.party}", own)]}
        if not first:
            rests[self.partner] = []
            for peer in told:
                rest = (totals.get((peer ^ 1, peer), 0) - self._blind(label, peer)) % MODULUS
                rests[self.partner].append(self._digest(label, peer, f"told{peer}", rest))
        expected = {**{peer: 1 for peer in told}, self.partner: 2} if first else {}
        said = await self._exchange(f"{label}/parts/check", rests, expected)
        for at, peer in enumerate(told if first and said else ()):
            if said[peer][0] != said[self.partner][at]:
                known = f"parties {self.party} and {self.partner} together know"
                raise self._deviation(label, peer ^ 1, f"party {peer}", known)

        await self._everybody_is_content(f"{label}/agreed")
        self.journal.last_check[self.lane_number] = label

    def _digests(self, label: str, totals: Totals) -> Numbers:
        """For each peer two: with either of the others, of what the last one sent to one of both."""
        sums: Numbers = {}
        for peer in others(self.party):
            sums[peer] = []
            for other in others(self.party, peer):
                (sender,) = others(self.party, peer, other)
                low, high = min(self.party, other), max(self.party, other)
                both = (totals.get((sender, low, high), 0), totals.get((sender, high, low), 0))
                sums[peer].append(self._digest(label, other, f"of{sender}", *both))
        return sums

    def _compare(self, label: str, said: Numbers) -> None:
        """What two others have said about the third's messages."""
        found: dict[tuple[int, int], int] = {}
        for peer, numbers in said.items():
            for other, value in zip(others(self.party, peer), numbers, strict=False):
                pair = min(peer, other), max(peer, other)
                if found.setdefault(pair, value) != value:
                    (sender,) = others(self.party, *pair)
                    raise self._deviation(label, sender, f"one of parties {pair[0]} and {pair[1]}", "the other knows")

    def _digest(self, label: str, peer: int, about: str, *sums: int) -> int:
        key = self.tape.planes(self._pair(peer), f"{label}/tag/{about}", 1, 8 * KEY_BYTES)
        return 0 if key.is_meta else digest(key, sums)

    def _blind(self, label: str, receiver: int) -> int:
        """What this party and its partner add to what the receiver sees, and take from what they compare."""
        key = self.tape.planes(self._pair(self.partner), f"{label}/tag/less{receiver}", 1, 8 * KEY_BYTES)
        return 0 if key.is_meta else number(key)

    def _pair(self, peer: int) -> tuple[int, int]:
        return min(self.party, peer), max(self.party, peer)

    async def _exchange(self, label: str, numbers: Numbers, expected: Mapping[int, int]) -> Numbers:
        """What the others said, by peer; nothing if there are no values."""
        received = await Round(
            label,
            {peer: [packed(values)] for peer, values in numbers.items()},
            {peer: [Part(torch.uint8, TAG_BYTES * count)] for peer, count in expected.items()},
        )
        said = {peer: data for peer, (data,) in received.items() if peer in expected}
        return {peer: unpacked(data) for peer, data in said.items() if not data.is_meta}

    async def _everybody_is_content(self, label: str) -> None:
        yes = torch.ones(1, dtype=torch.uint8)
        everybody = others(self.party)
        received = await Round(
            label, {peer: [yes] for peer in everybody}, {peer: [Part(torch.uint8, 1)] for peer in everybody}
        )
        for peer in everybody:
            (said,) = received[peer]
            if not said.is_meta and said.item() != 1:
                raise IntegrityError(f"party {self.party} at {label!r}: party {peer} does not say that all was right")

    def _deviation(self, label: str, sender: int, receiver: str, known: str) -> IntegrityError:
        since = self.journal.last_check.get(self.lane_number)
        after = f"after {since!r}" if since else "since the session began"
        return IntegrityError(
            f"party {self.party} noticed at {label!r}: what party {sender} sent {receiver} {after} is not what "
            f"{known} it should be. One of them deviates from the protocol, or somebody who sent it something before, "
            "or a memory or a network is faulty. Nothing that depends on it was opened. Find the cause, start again"
        )
