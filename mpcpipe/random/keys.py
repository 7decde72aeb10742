"""Where a tape's keys come from: X25519 between two parties, HKDF-SHA256 bound to the session, the parties and the job.

    secret = X25519(own private key, peer's public key)
    key    = HKDF-SHA256(secret, salt = session id, info = purpose | digest of the job | party numbers)

The session id is made of a fresh nonce of every party, and the private keys live for one session only. So no key, and
no mask, is ever seen twice: not in a second run of the same job, and not in a resumed one.

Security: X25519 alone does not say who the peer is. That is the channel's part (TLS with pinned certificates), as is
keeping an active attacker out; against one who only listens the keys are safe without it.
"""

from __future__ import annotations

import secrets

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from mpcpipe.errors import AuthError
from mpcpipe.random.tape import Holders

KEY_BYTES = 32
NONCE_BYTES = 32


def new_nonce() -> bytes:
    """A party's part of a session id."""
    return secrets.token_bytes(NONCE_BYTES)


def own_key() -> bytes:
    """A fresh key that no other party has, for a party's private randomness."""
    return secrets.token_bytes(KEY_BYTES)


def hkdf(secret: bytes, salt: bytes, info: bytes, nbytes: int = KEY_BYTES) -> bytes:
    """HKDF with SHA-256 (RFC 5869): `nbytes` of key from a secret that need not be uniform."""
    return HKDF(SHA256(), nbytes, salt, info).derive(secret)


def bind(secret: bytes, purpose: str, holders: Holders, session: bytes, job_digest: bytes) -> bytes:
    """The key for one purpose of the parties `holders` in one session of one job."""
    info = b"\0".join([b"mpcpipe", purpose.encode(), job_digest.hex().encode(), ",".join(map(str, holders)).encode()])
    return hkdf(secret, session, info)


class KeyPair:
    """One party's X25519 key pair, for one session."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public.hex()})"

    def agree(self, peer_public: bytes) -> bytes:
        """The secret shared with the owner of `peer_public` (32 bytes). AuthError if that is no usable public key."""
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(peer_public))
        except ValueError:
            raise AuthError("a party sent a public key that is none; it may not be running mpcpipe") from None
