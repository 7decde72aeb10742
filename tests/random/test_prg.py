"""Streams against the standards' vectors, and against slices of themselves."""

import pytest
import torch

from mpcpipe.random import prg
from mpcpipe.random.prg import GENERATORS, fill, fill_chacha20


@pytest.fixture(autouse=True, params=["native", "cryptography"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test once with the native library's AES (where it was built), once with the cryptography package's."""
    if request.param == "cryptography":
        monkeypatch.setattr(prg, "_native_aes", lambda: None)
    elif prg._native_aes() is None:
        pytest.skip("there is no native AES here")


def stream(name: str, key: bytes, nbytes: int, offset: int = 0) -> bytes:
    out = torch.empty(nbytes, dtype=torch.uint8)
    GENERATORS[name][1](key, out, offset)
    return bytes(out.numpy())


def xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def test_aes_ctr_is_nist_sp_800_38a() -> None:
    # F.5.1 starts its counter at f0f1...ff, a random access far into our stream, which starts at 0.
    key = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
    start = int.from_bytes(bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"), "big")
    plain = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    cipher = bytes.fromhex(
        "874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff"
        "5ae4df3edbd5d35e5b4f09020db03eab1e031dda2fbe03d1792170a0f3009cee"
    )
    assert xor(stream("aes128-ctr", key, 64, 16 * start), plain) == cipher


def test_chacha20_is_rfc_8439() -> None:
    # Appendix A.1, vectors 1 to 3: nonce 0; the stream from counter 0, counter 1, and another key.
    first = stream("chacha20", bytes(32), 128)
    assert first[:64] == bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert first[64:] == bytes.fromhex(
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    assert stream("chacha20", bytes(31) + b"\x01", 64, 64) == bytes.fromhex(
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0"
    )


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_any_slice_equals_the_slice_of_the_whole(name: str) -> None:
    key = bytes(range(GENERATORS[name][0]))
    whole = stream(name, key, 600_000)
    for offset, nbytes in [
        (0, 0),
        (0, 1),
        (1, 15),
        (15, 2),
        (16, 16),
        (63, 130),
        (64, 64),
        (262_143, 3),
        (7, 524_300),
        (599_999, 1),
    ]:
        assert stream(name, key, nbytes, offset) == whole[offset : offset + nbytes]


@pytest.mark.parametrize("offset", [0, 16, 32 + 16 * 2**32])
def test_both_libraries_write_the_same_bytes(offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    key = bytes(range(100, 116))
    for nbytes in (0, 1, 15, 16, 17, 127, 128, 129, 4095, 300_001):
        first = stream("aes128-ctr", key, nbytes, offset)
        with monkeypatch.context() as patch:
            patch.setattr(prg, "_native_aes", lambda: None)
            assert stream("aes128-ctr", key, nbytes, offset) == first


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_every_dtype_holds_the_same_bytes(name: str) -> None:
    key = bytes(range(GENERATORS[name][0]))
    whole = stream(name, key, 96)
    for dtype in (torch.int64, torch.int32, torch.int8, torch.float32):
        out = torch.empty((3, 32 // dtype.itemsize), dtype=dtype)
        GENERATORS[name][1](key, out, 0)
        assert bytes(out.reshape(-1).view(torch.uint8).numpy()) == whole


def test_misuse_is_refused() -> None:
    out = torch.empty(4, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match="16 bytes"):
        fill(bytes(32), out)
    with pytest.raises(ValueError, match="32 bytes"):
        fill_chacha20(bytes(16), out)
    with pytest.raises(ValueError, match="contiguous"):
        fill(bytes(16), out.t())
