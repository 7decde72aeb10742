"""Keys that three parties hold, for protocols among four or more: agreed on over the keys of pairs, before any share.

    each of the three ── 32 random bytes, sealed under the pair's key ──> each of the two others
    key = HKDF(the three contributions | session, parties, job)
    each two compare a digest of it (in `confirm`)

Security: the contributions are encrypted and authenticated (AES-256-GCM, one message a key and direction), so who is
not one of the three learns nothing, also where the connection itself is in the clear. One honest contribution makes
the key uniform and new. Who tells its two peers different things is found out when they compare.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from itertools import combinations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mpcpipe.errors import AuthError
from mpcpipe.random.keys import KEY_BYTES, bind
from mpcpipe.random.tape import Holders


def triples(parties: int) -> list[Holders]:
    """The sets of three parties that need a key: all, among four or more."""
    return list(combinations(range(parties), 3)) if parties > 3 else []


class TripleKeys:
    """One party's part in the agreement. seals: for each peer a key that only the two have, for this use alone."""

    def __init__(self, party: int, parties: int, seals: Mapping[int, bytes], session: bytes, job_digest: bytes) -> None:
        self.party = party
        self._seals, self._session, self._job_digest = dict(seals), session, job_digest
        self._given: dict[Holders, dict[int, bytes]] = {
            holders: {party: secrets.token_bytes(KEY_BYTES)} for holders in triples(parties) if party in holders
        }

    def __repr__(self) -> str:
        return f"TripleKeys(party={self.party}, holders={sorted(self._given)})"

    def __bool__(self) -> bool:
        return bool(self._given)

    def _common(self, peer: int) -> list[Holders]:
        return [holders for holders in self._given if peer in holders]

    def sealed(self, peer: int) -> str:
        """This party's contributions to the keys that `peer` holds too; hex, for `peer` only."""
        plain = b"".join(self._given[holders][self.party] for holders in self._common(peer))
        return AESGCM(self._seals[peer]).encrypt(_nonce(self.party), plain, b"triples").hex()

    def take(self, peer: int, sealed: object, names: list[str]) -> None:
        """The peer's contributions. AuthError if they are not from it, for this session."""
        common = self._common(peer)
        try:
            plain = AESGCM(self._seals[peer]).decrypt(_nonce(peer), bytes.fromhex(str(sealed)), b"triples")
        except (ValueError, InvalidTag):
            plain = b""
        if len(plain) != KEY_BYTES * len(common):
            raise AuthError(f"{names[self.party]} cannot read its part of the keys from {names[peer]}: start all again")
        for index, holders in enumerate(common):
            self._given[holders][peer] = plain[index * KEY_BYTES : (index + 1) * KEY_BYTES]

    def _bound(self, purpose: str, holders: Holders) -> bytes:
        secret = b"".join(self._given[holders][party] for party in holders)
        return bind(secret, purpose, holders, self._session, self._job_digest)

    def keys(self) -> dict[Holders, bytes]:
        """The keys, once every peer's contributions were taken."""
        return {holders: self._bound("tape", holders) for holders in self._given}

    def digest(self, peer: int) -> str:
        """What two parties compare: of all keys that both hold; hex. It tells nobody else anything."""
        bound = b"".join(self._bound("triple digest", holders) for holders in self._common(peer))
        return hmac.digest(bound, self._session, "sha256").hex() if bound else ""

    def check(self, peer: int, digest: object, names: list[str]) -> None:
        """AuthError unless the peer has the same keys."""
        if self and not (isinstance(digest, str) and hmac.compare_digest(digest.encode(), self.digest(peer).encode())):
            raise AuthError(
                f"{names[self.party]} and {names[peer]} were given different keys: a party told them different things. "
                "Find out which before you start again"
            )


def _nonce(sender: int) -> bytes:
    return sender.to_bytes(12, "big")
