"""What protocols rely on: holders agree, labels are independent, ranges are right, reuse is found."""

import hashlib
import hmac

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from mpcpipe.random.tape import PrgTape
from mpcpipe.ring.ring import Ring

KEY = bytes(range(32))


@pytest.mark.parametrize("generator", ["aes128-ctr", "chacha20"])
def test_holders_agree_and_labels_differ(generator: str) -> None:
    alice = PrgTape({(0,): b"a" * 32, (0, 1): KEY}, generator)
    bob = PrgTape({(1,): b"b" * 32, (0, 1): KEY}, generator)
    ring = Ring(64)
    mask = alice.elements((0, 1), "step 3/conv1/mask", 1000, ring)
    assert torch.equal(mask, bob.elements((0, 1), "step 3/conv1/mask", 1000, ring))
    assert not torch.equal(mask, bob.elements((0, 1), "step 4/conv1/mask", 1000, ring))
    assert not torch.equal(alice.elements((0,), "x", 100, ring), bob.elements((1,), "x", 100, ring))


def test_the_stream_is_what_the_documentation_says() -> None:
    # Written out with the standard library's hmac and a plain encryption of zeros.
    key = hmac.new(KEY, b"some label", hashlib.sha256).digest()[:16]
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * 50))
    words = [int.from_bytes(stream[8 * i : 8 * i + 8], "little", signed=True) for i in range(50)]
    assert PrgTape({(0, 1): KEY}).elements((0, 1), "some label", 50, Ring(64)).tolist() == words
    planes = PrgTape({(0, 1): KEY}).planes((0, 1), "some label", 5, 640)
    assert planes.tolist() == [words[10 * i : 10 * i + 10] for i in range(5)]


@pytest.mark.parametrize("bits", [1, 2, 8, 31, 32, 33, 63, 64])
def test_elements_lie_in_the_rings_range_and_fill_it(bits: int) -> None:
    ring = Ring(bits)
    drawn = PrgTape({(2,): KEY}).elements((2,), "x", 20_000, ring)
    assert drawn.dtype == ring.dtype and drawn.shape == (20_000,)
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    assert drawn.min() >= low and drawn.max() <= high
    # Each quarter of the range has a quarter of the draws, within seven standard deviations.
    if bits >= 2:
        quarters = torch.bincount(((drawn >> (bits - 2)) & 3).long(), minlength=4)
        assert (quarters - 5000).abs().max() < 7 * (20_000 * 3 / 16) ** 0.5


def test_planes_have_whole_words() -> None:
    tape = PrgTape({(0, 2): KEY})
    assert tape.planes((0, 2), "a", 3, 65).shape == (3, 2)
    assert tape.planes((0, 2), "b", 3, 64).shape == (3, 1)
    assert tape.planes((0, 2), "c", 0, 64).shape == (0, 1)
    assert tape.elements((0, 2), "d", 0, Ring(32)).shape == (0,)


def test_audit_finds_a_label_used_twice() -> None:
    tape = PrgTape({(0, 1): KEY, (0,): KEY}, audit=True)
    tape.elements((0, 1), "x", 4, Ring())
    tape.elements((0,), "x", 4, Ring())
    tape.elements((0, 1), "y", 4, Ring())
    with pytest.raises(ValueError, match="'x' was already drawn"):
        tape.planes((0, 1), "x", 1, 64)


def test_a_tape_shows_no_key() -> None:
    key = b"\x41" * 32
    tape = PrgTape({(0, 1): key})
    assert "A" * 4 not in repr(tape) and key.hex() not in repr(tape)


def test_misuse_is_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"no key shared by the parties \(1, 2\)"):
        PrgTape({(0, 1): KEY}).elements((1, 2), "x", 1, Ring())
    with pytest.raises(ValueError, match="aes128-ctr, chacha20"):
        PrgTape({}, "aes")
