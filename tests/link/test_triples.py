"""Keys of three parties: the same at their holders, nobody else's, fresh; who tells two things is found out."""

from __future__ import annotations

from itertools import combinations

import pytest
from link_parties import networks

from mpcpipe.errors import AuthError
from mpcpipe.link.handshake import Handshake, Session
from mpcpipe.link.triples import TripleKeys, triples

NAMES = ["alice", "bob", "carol", "dave"]


def sessions(names: list[str] = NAMES) -> list[Session]:
    handshakes = [Handshake(party, names, 1, {}) for party in range(len(names))]
    for one in handshakes:
        for other in handshakes:
            if other is not one:
                one.meet(other.hello)
    return [handshake.finish() for handshake in handshakes]


def agreed(found: list[Session]) -> list[TripleKeys]:
    parts = [session.triples for session in found]
    for one in parts:
        for other in parts:
            if other is not one:
                one.take(other.party, other.sealed(one.party), NAMES)
    return parts


def test_four_parties_have_one_key_for_every_two_and_every_three_of_them() -> None:
    with networks(4, names=NAMES) as first, networks(4, names=NAMES) as again:
        everybody = [holders for size in (2, 3) for holders in combinations(range(4), size)]
        for party, network in enumerate(first):
            assert sorted(network.keys) == sorted([(party,), *(h for h in everybody if party in h)])
        for holders in everybody:
            assert len({first[party].keys[holders] for party in holders}) == 1
        values = [key for network in (first[0], again[0]) for key in network.keys.values()]
        assert len(set(values)) == len(values)


def test_fewer_parties_need_none() -> None:
    assert triples(3) == []
    assert not any(session.triples for session in sessions(NAMES[:3]))


def test_what_is_sealed_for_one_party_is_nothing_to_the_others() -> None:
    alice, bob, carol, _ = [session.triples for session in sessions()]
    sealed = alice.sealed(1)
    for wrong in (sealed[:-2], sealed[:-2] + ("00" if sealed[-2:] != "00" else "01"), bob.sealed(0), None, "no hex"):
        with pytest.raises(AuthError, match="bob cannot read its part of the keys from alice"):
            bob.take(0, wrong, NAMES)
    with pytest.raises(AuthError, match="carol cannot read"):
        carol.take(0, sealed, NAMES)
    bob.take(0, sealed, NAMES)


def test_a_party_that_tells_two_others_different_things_is_found_out_by_them() -> None:
    found = sessions()
    parts = agreed(found)
    for one, other in combinations(parts, 2):
        one.check(other.party, other.digest(one.party), NAMES)
        other.check(one.party, one.digest(other.party), NAMES)
    liar = TripleKeys(0, 4, found[0].triples._seals, found[0].identity, b"")
    parts[2].take(0, liar.sealed(2), NAMES)
    with pytest.raises(AuthError, match="bob and carol were given different keys"):
        parts[1].check(2, parts[2].digest(1), NAMES)
    for wrong in (None, "", 7, "ä"):
        with pytest.raises(AuthError, match="different keys"):
            parts[1].check(3, wrong, NAMES)


def test_a_key_is_of_its_session_and_its_parties() -> None:
    keys = agreed(sessions())[3].keys()
    assert sorted(keys) == [(0, 1, 3), (0, 2, 3), (1, 2, 3)]
    assert len(set(keys.values())) == 3
    assert all(len(key) == 32 for key in keys.values())
    assert not set(keys.values()) & set(agreed(sessions())[3].keys().values())
    assert not any(key.hex() in repr(part) for part in agreed(sessions()) for key in part.keys().values())
