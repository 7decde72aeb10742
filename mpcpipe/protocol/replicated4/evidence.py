"""What a party knows of messages that it has to vouch for, or that somebody else has to vouch for: sums of tags.

    sender ── message ──> receiver         the witness knows the message too: both it and the receiver add the tag of
                             │             the message, under a key that they share and the sender does not have, to
    witness ─ ─ sum of tags ─┘             their sums, which are compared before anything is opened (`checks`)

Workers of a pipeline run at their own pace, so at one moment they are not at the same place at all parties. Each worker
has a *lane*. What a lane has recorded at a place in its program is the same everywhere, so what a worker hands over
carries the evidence of all that went into it: a snapshot a lane (a vector clock, with the sums). A check covers exactly
what the checking lane has recorded or learned, the same set at all parties.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from mpcpipe.random.mac import MODULUS

Route = tuple[int, int, int]
"""Sender, witness, receiver."""
Told = tuple[int, int]
"""Sender and receiver of what two witnesses know in parts (see `told`): each sums up its own, the receiver both."""
Recorded = Route | Told


@dataclass(frozen=True)
class Snapshot:
    """One lane's first `count` records: the sum of tags for each."""

    count: int = 0
    sums: Mapping[Recorded, int] = field(default_factory=dict, repr=False)


Evidence = Mapping[int, Snapshot]
"""By lane."""


class Journal:
    """One party's records, for all of its lanes."""

    def __init__(self) -> None:
        self._known: dict[int, dict[int, Snapshot]] = {}
        self._lock = threading.Lock()
        self.last_check: dict[int, str] = {}
        """By lane, where everything was last found to be right."""

    def record(self, lane: int, tags: Mapping[Recorded, int]) -> None:
        """Tags of one round, in `lane`."""
        own = self._lane(lane)
        before = own.get(lane, Snapshot())
        sums = dict(before.sums)
        for route, value in tags.items():
            sums[route] = (sums.get(route, 0) + value) % MODULUS
        own[lane] = Snapshot(before.count + 1, sums)

    def evidence(self, lane: int) -> Evidence:
        """All that `lane` has recorded and learned so far."""
        return dict(self._lane(lane))

    def learn(self, lane: int, evidence: Evidence) -> None:
        """`lane` goes on with values of which this is the evidence."""
        own = self._lane(lane)
        for other, snapshot in evidence.items():
            if snapshot.count > own.get(other, Snapshot()).count:
                own[other] = snapshot

    def totals(self, lane: int) -> dict[Recorded, int]:
        """For each route the sum over all lanes of which `lane` has evidence."""
        totals: dict[Recorded, int] = {}
        for snapshot in self._lane(lane).values():
            for route, value in snapshot.sums.items():
                totals[route] = (totals.get(route, 0) + value) % MODULUS
        return totals

    def _lane(self, lane: int) -> dict[int, Snapshot]:
        with self._lock:
            return self._known.setdefault(lane, {})
