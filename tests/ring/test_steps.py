"""Local steps of protocols as one pass: the native library equals the reference bit for bit, on every processor."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from mpcpipe.errors import KernelError
from mpcpipe.ring import native, ops, reference
from mpcpipe.ring.ring import Ring

LIBRARY = native.load()
needs_library = pytest.mark.skipif(LIBRARY is None, reason=f"no native library: {native.status()['reason']}")
RINGS = (8, 31, 32, 33, 63, 64)
SIZES = (0, 1, 63, 64, 65, 200)


@pytest.fixture(params=["portable"] if LIBRARY is None or LIBRARY.isa == "portable" else ["portable", LIBRARY.isa])
def library(request: pytest.FixtureRequest) -> Iterator[native.NativeLibrary]:
    assert LIBRARY is not None
    before = LIBRARY.isa
    LIBRARY.set_isa(request.param)
    yield LIBRARY
    LIBRARY.set_isa(before)


class Values:
    """Ring elements and planes from a seed; one element in four is an extreme or zero."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def words(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int64).random_(-(1 << 63), None, generator=self.generator)

    def plane(self, n: int) -> torch.Tensor:
        return self.words(ops.words(n))

    def elements(self, n: int, bits: int) -> torch.Tensor:
        ring = Ring(bits)
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        extremes = torch.tensor([low, high, -1, 0], dtype=torch.int64)
        chosen = torch.randint(0, 4, (n,), generator=self.generator) == 0
        picked = extremes[torch.randint(0, 4, (n,), generator=self.generator)]
        return ring.wrap(torch.where(chosen, picked, self.words(n)).to(ring.dtype))


@needs_library
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("bits", RINGS)
def test_sum_and_sign(library: native.NativeLibrary, bits: int, n: int) -> None:
    values = Values(n)
    x, y, mask = values.elements(n, bits), values.elements(n, bits), values.plane(n)
    for second, constant in ((y, 0), (None, 0), (y, 1 << (bits - 2)), (None, 1 << (bits - 2))):
        got = library.sum_and_sign(x, second, mask, bits, constant)
        expected = reference.sum_and_sign(x, second, mask, bits, constant)
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    half = 1 << (bits - 1)
    in_python = [(a + b + 5 + half) % (2 * half) - half for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    total, plane = library.sum_and_sign(x, y, torch.zeros_like(mask), bits, 5)
    assert total.tolist() == in_python
    assert ops.unpack_bits(plane, n, torch.int64).tolist() == [int(value >= 0) for value in in_python]


@needs_library
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("bits", [1, 5, 8, 13, 16, 20, 31, 32, 33, 48, 62])
def test_deal(library: native.NativeLibrary, bits: int, n: int) -> None:
    values, nbytes = Values(n), (bits + 7) // 8
    r_a, r_b, c0 = values.plane(n), values.plane(n), values.elements(n, bits)
    got = library.deal(r_a, r_b, c0, bits, nbytes)
    assert torch.equal(got, reference.deal(r_a, r_b, c0, bits, nbytes))
    both = ops.unpack_bits(r_a & r_b, n, torch.int64).tolist()
    c1 = reference.from_bytes(got, nbytes, torch.int64)
    assert ((c1 + c0 - torch.tensor(both, dtype=torch.int64)) & ((1 << bits) - 1)).tolist() == [0] * n


@needs_library
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("bits", RINGS)
def test_quotient_half(library: native.NativeLibrary, bits: int, n: int) -> None:
    values = Values(n)
    for shift in sorted({1, 6, min(13, bits - 2), bits // 2, bits - 2}):
        nbytes = (shift + 7) // 8
        s, mask = values.elements(n, bits), values.elements(n, bits)
        planes = [values.plane(n) for _ in range(3)]
        c = values.elements(n, shift)
        packed = reference.to_bytes(c, nbytes)
        for first in (True, False):
            for masked in (mask, None):
                for constant in (0, (1 << (bits - shift)) + (1 << (bits - 2 - shift)) - 1):
                    expected = reference.quotient_half(s, *planes, c, masked, bits, shift, first, constant)
                    for given in (c, packed):
                        got = library.quotient_half(s, *planes, given, masked, bits, shift, first, constant)
                        assert torch.equal(got, expected)
                    again = reference.quotient_half(s, *planes, packed, masked, bits, shift, first, constant)
                    assert torch.equal(again, expected)


@needs_library
@pytest.mark.parametrize(("planes", "q_planes", "words"), [(1, 0, 3), (1, 1, 1), (7, 6, 5), (15, 15, 64), (3, 2, 0)])
def test_and_level(library: native.NativeLibrary, planes: int, q_planes: int, words: int) -> None:
    values = Values(planes)
    p, g = values.words(2, 2 * planes, words)[:, ::2], values.words(2, planes, words)
    q = values.words(2, q_planes + 1, words)[:, 1:]
    masks = values.words(2, planes + q_planes, words)
    got = library.and_level(p, g, q, *masks)
    assert torch.equal(got, reference.and_level(p, g, q, *masks))
    # Three parties' summands, without masks, are shares of the AND of what they share.
    x, y = values.words(3, planes, words), values.words(3, planes, words)
    none, zero = torch.empty((2, 0, words), dtype=torch.int64), torch.zeros((planes, words), dtype=torch.int64)
    z = [library.and_level(x[[i, (i + 1) % 3]], y[[i, (i + 1) % 3]], none, zero, zero) for i in range(3)]
    assert torch.equal(z[0] ^ z[1] ^ z[2], (x[0] ^ x[1] ^ x[2]) & (y[0] ^ y[1] ^ y[2]))


@needs_library
@pytest.mark.parametrize("label_bytes", [0, 1, 54, 55, 56, 63, 64, 65, 119, 120, 128, 500])
@pytest.mark.parametrize("key_bytes", [0, 1, 32, 64])
def test_a_draw_is_the_stream_of_an_hmac(library: native.NativeLibrary, key_bytes: int, label_bytes: int) -> None:
    if not library.has_aes:
        pytest.skip("this processor has no AES instructions")
    key, label = bytes(range(100, 100 + key_bytes)), bytes(i % 251 for i in range(label_bytes))
    stream_key = hmac.new(key, label, hashlib.sha256).digest()[:16]
    for dtype, bits in ((torch.int64, 64), (torch.int32, 32), (torch.int64, 40), (torch.int32, 13), (torch.int32, 1)):
        n, width = 77, dtype.itemsize
        stream = Cipher(algorithms.AES(stream_key), modes.CTR(bytes(16))).encryptor().update(bytes(width * n))
        raw = [int.from_bytes(stream[width * i : width * (i + 1)], "little") for i in range(n)]
        half = 1 << (bits - 1)
        out = torch.empty(n, dtype=dtype)
        library.draw(key, label, out, bits)
        assert out.tolist() == [(value + half) % (1 << bits) - half for value in raw]


@needs_library
def test_what_does_not_fit_is_refused() -> None:
    assert LIBRARY is not None
    values = Values(1)
    x, plane = values.elements(100, 64), values.plane(100)
    with pytest.raises(ValueError, match="a plane of 100 bits has 2 words, not 1"):
        LIBRARY.sum_and_sign(x, None, plane[:1], 64, 0)
    with pytest.raises(ValueError, match="99 elements do not fit 100"):
        LIBRARY.sum_and_sign(x, x[:99], plane, 64, 0)
    with pytest.raises(ValueError, match="does not fit 100 elements"):
        LIBRARY.quotient_half(x, plane, plane, plane, torch.zeros(150, dtype=torch.uint8), None, 64, 16, True, 0)
    with pytest.raises(KernelError, match="sizes do not fit"):
        LIBRARY.quotient_half(x, plane, plane, plane, x, None, 64, 64, True, 0)
    planes = values.words(2, 4, 3)
    with pytest.raises(ValueError, match="a mask"):
        LIBRARY.and_level(planes, planes, planes, planes[0], planes[0])
    with pytest.raises(KernelError, match="sizes do not fit"):
        longer = values.words(2, 5, 3)
        masks = values.words(2, 9, 3)
        LIBRARY.and_level(planes, planes, longer, *masks)
    if LIBRARY.has_aes:
        with pytest.raises(KernelError, match="sizes do not fit"):
            LIBRARY.draw(bytes(65), b"label", x, 64)
        with pytest.raises(KernelError, match="sizes do not fit"):
            LIBRARY.draw(bytes(32), b"label", x, 65)


def test_the_dispatch_takes_the_reference_where_there_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    values = Values(2)
    x, mask = values.elements(130, 64), values.plane(130)
    expected = ops.sum_and_sign(x, x, mask, 64, 3)
    monkeypatch.setattr(native, "load", lambda: None)
    assert all(torch.equal(a, b) for a, b in zip(ops.sum_and_sign(x, x, mask, 64, 3), expected, strict=True))
