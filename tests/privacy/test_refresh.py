"""New shares by `refresh`: an old share of one party and the new one of another, together, depend on no secret. Exact,
over all randomness of a tiny ring; and they do tell everything where nothing was refreshed.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch

from mpcpipe.protocol.additive2 import Additive2
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.plaintext import Plaintext
from mpcpipe.protocol.replicated3 import Replicated3
from mpcpipe.protocol.replicated4 import Replicated4, cost
from mpcpipe.ring.ring import Ring
from tests.privacy.enumerate import EnumerateTape, Lanes
from tests.simulate import computing, lockstep, parties, reveal, share, together


class Untagged(EnumerateTape):
    """What tags are keyed with hides nothing."""

    def planes(self, holders: tuple[int, ...], label: str, count: int, n: int) -> torch.Tensor:
        return torch.zeros((count, -(-n // 64)), dtype=torch.int64)


# Protocol, summands of a secret, who holds which of them, ring, bits of randomness.
CASES: dict[str, tuple[type[Protocol], int, Any, int, int]] = {
    "replicated3": (Replicated3, 3, lambda s, i: s[[i, (i + 1) % 3]], 2, 10),
    "additive2": (Additive2, 2, lambda s, i: s[[i]], 4, 8),
    "replicated4": (Replicated4, 4, lambda s, i: s[[(i + step) % 4 for step in (1, 2, 3)]], 1, 15),
}


def old_and_new(name: str, secret: int) -> tuple[list[torch.Tensor], list[torch.Tensor], int, Ring]:
    """Shares before and after, a lane for each value of all randomness."""
    kind, summands, held, k, bits = CASES[name]
    lanes, ring = Lanes(bits), Ring(k)
    drawn = [lanes.digit(((), f"{i}"), k) for i in range(summands - 1)]
    shares = torch.stack([ring.wrap(s.to(ring.dtype)) for s in (*drawn, secret - sum(drawn))])
    ps = [
        kind(party=i, ring=Ring(max(k, 2)), tape=Untagged(lanes), compare_bits=2, parties=kind.party_counts[0])
        for i in range(kind.party_counts[0])
    ]
    for p in ps:
        p.ring = ring
    old = [p.zeros((lanes.count,)) if p.party == p.dealer else held(shares, p.party) for p in ps]
    with mock.patch.object(cost, "halves", lambda n: (n, 0)):  # all lanes in one half, where there are halves
        outcome = lockstep([p.refresh(old[p.party]) for p in ps])
    return [old[i] for i in computing(ps)], [outcome.results[i] for i in computing(ps)], k, ring


def seen(shares: list[torch.Tensor], k: int) -> torch.Tensor:
    """How often each combination of components occurs, over all lanes."""
    key = torch.zeros(shares[0].shape[1], dtype=torch.int64)
    for component in torch.cat(shares):
        key = (key << k) | (component.to(torch.int64) & ((1 << k) - 1))
    return key.sort().values


@pytest.mark.parametrize("name", CASES)
def test_two_points_in_time_do_not_add_up(name: str) -> None:
    k = CASES[name][3]
    made = {secret: old_and_new(name, secret) for secret in range(1 << k)}
    count = len(made[0][0])
    for one in range(count):
        for other in range(count):
            views = [seen([old[one], new[other]], k) for old, new, _, _ in made.values()]
            assert all(torch.equal(views[0], view) for view in views[1:]), (one, other)
            if one != other:  # without a refresh they tell
                views = [seen([old[one], old[other]], k) for old, _, _, _ in made.values()]
                assert not all(torch.equal(views[0], view) for view in views[1:])


@pytest.mark.parametrize("kind", [Replicated3, Additive2, Replicated4, Plaintext], ids=lambda kind: kind.name)
@pytest.mark.parametrize("k", [64, 32])
def test_the_value_stays_and_it_costs_a_reduction(kind: type[Protocol], k: int) -> None:
    ps = parties(kind, k)
    x = torch.arange(-6, 6, dtype=ps[0].ring.dtype).reshape(3, 4) << (k - 5)
    before = share(ps, x)
    outcome = together(ps, lambda p: p.at("refresh 1").refresh(before[p.party]))
    assert torch.equal(reveal([p.at("after") for p in ps], outcome.results), x)
    if kind is not Plaintext:
        assert all((before[i] != outcome.results[i]).all() for i in computing(ps))
    free = kind is Additive2
    cost = ps[0].costs.reduce(x.numel())
    assert (outcome.rounds, sum(outcome.sent_bytes)) == ((0, 0) if free else (cost.rounds, cost.sent_bytes))
