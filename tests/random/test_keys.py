"""Key agreement: the standards' vectors, and what a key depends on."""

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from mpcpipe.errors import AuthError
from mpcpipe.random.keys import KeyPair, bind, hkdf, new_nonce, own_key


def test_hkdf_is_rfc_5869() -> None:
    # Appendix A, test cases 1, 2 and 3.
    assert hkdf(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)), 42) == bytes.fromhex(
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )
    assert hkdf(bytes(range(0x50)), bytes(range(0x60, 0xB0)), bytes(range(0xB0, 0x100)), 82) == bytes.fromhex(
        "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09"
        "da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87"
    )
    assert hkdf(b"\x0b" * 22, b"", b"", 42) == bytes.fromhex(
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    )


def test_agreement_is_rfc_7748() -> None:
    # Section 6.1: Bob's private key and Alice's public key.
    bob = KeyPair()
    bob._private = X25519PrivateKey.from_private_bytes(
        bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    )
    alice_public = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    assert bob.agree(alice_public).hex() == "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"


def test_two_parties_agree_and_a_third_does_not() -> None:
    alice, bob, carol = KeyPair(), KeyPair(), KeyPair()
    assert alice.agree(bob.public) == bob.agree(alice.public)
    assert alice.agree(carol.public) != alice.agree(bob.public)


def test_a_key_depends_on_session_parties_job_and_purpose() -> None:
    base = ("tape", (0, 1), b"s" * 32, b"d" * 32)
    changed = [
        ("proof", *base[1:]),
        ("tape", (0, 2), *base[2:]),
        (*base[:2], b"t" * 32, base[3]),
        (*base[:3], b"e" * 32),
    ]
    keys = {bind(b"x" * 32, *values) for values in [base, *changed]}
    assert len(keys) == 5 and {len(key) for key in keys} == {32}
    assert bind(b"x" * 32, *base) == bind(b"x" * 32, *base)


def test_fresh_values_are_fresh() -> None:
    assert len({new_nonce() for _ in range(50)} | {own_key() for _ in range(50)}) == 100


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(32)], ids=["empty", "short", "zero point"])
def test_a_bad_public_key_is_an_auth_error(public: bytes) -> None:
    with pytest.raises(AuthError, match="public key"):
        KeyPair().agree(public)


def test_a_key_pair_shows_no_private_key() -> None:
    pair = KeyPair()
    assert pair._private.private_bytes_raw().hex() not in repr(pair)
