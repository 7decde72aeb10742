"""Local steps of four parties in one native pass: as torch does them one after the other, on every processor."""

from __future__ import annotations

import pytest
import torch

from mpcpipe.errors import KernelError
from mpcpipe.protocol.replicated4.kinds import Elements, Kind, Narrow, Planes
from mpcpipe.protocol.replicated4.terms import Term, Value, masked, received
from mpcpipe.random.mac import tag
from mpcpipe.random.tape import PrgTape
from mpcpipe.ring import native, ops, reference
from mpcpipe.ring.native.steps4 import JointTerm
from mpcpipe.ring.ring import Ring
from mpcpipe.ring.shapes import bit_blocks
from tests.ring.test_steps import LIBRARY, RINGS, SIZES, Values, library, needs_library

assert library is not None  # the fixture
KEYS = {holders: bytes([7 * sum(holders)]) * 32 for holders in ((0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3))}
KINDS: dict[str, Kind] = {
    **{f"elements {bits}": Elements(Ring(bits)) for bits in RINGS},
    **{f"narrow {bits}": Narrow(Ring(bits), (bits + 7) // 8) for bits in (1, 7, 13, 16, 24, 32, 33, 40)},
    "planes": Planes(5),
}


class Slow(PrgTape):
    """The same streams, drawn by themselves."""

    @property
    def library(self) -> None:
        return None


TAGS = {(1, 2): bytes([9]) * 32, (0, 3): bytes([8]) * 32}


def _values(kind: Kind, n: int, count: int) -> list[torch.Tensor]:
    made = Values(n)
    return [made.words(n) if isinstance(kind, Planes) else made.elements(n, kind.bits) for _ in range(count)]


def _terms(kind: Kind, start: int, n: int) -> list[Term]:
    """As party 0 sees them: it sends, vouches, only masks, only receives; in every way a value can be made."""
    a, b, c, d = _values(kind, start + n, 4)
    operations = [Value("copy", (a,)), Value("and" if isinstance(kind, Planes) else "product", (a, b))]
    if not isinstance(kind, Planes):
        operations += [Value("cross", (a, b, c, d)), Value("chosen", (a, b, (c & 1)))]
    terms = [Term(0, 1, 2, f"sends {i}", start, n, (i + 1) % 3, i % 3, value) for i, value in enumerate(operations)]
    terms += [
        Term(2, 0, 3, f"vouches {i}", start, n, None, 1, value, None, f"tag {i}") for i, value in enumerate(operations)
    ]
    terms += [Term(1, 2, 3, "masks", start, n, 0, None), Term(3, 2, 0, "receives", start, n, None, 2)]
    return terms


@needs_library
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("start", "n"), [(0, 1), (3, 5), (0, 1024), (10, 1500), (2048, 2050)])
def test_one_pass_is_as_many_steps(name: str, start: int, n: int) -> None:
    kind = KINDS[name]
    n -= n % 5 if isinstance(kind, Planes) else 0
    wide = [(0, kind.dtype)]
    if kind.narrow:
        wide += [(64 - kind.bits, torch.int64)]
    for up, dtype in wide:
        for base in (None, torch.stack(_values(Elements(Ring(dtype.itemsize * 8)), start + n, 3)).to(dtype)):
            outs, wires, tags = [], [], []
            for tape in (PrgTape(KEYS | TAGS), Slow(KEYS | TAGS)):
                terms, out = _terms(kind, start, n), torch.full((3, start + n), 77, dtype=dtype)
                masked(tape, 0, kind, terms, base, out, up)
                for term in terms:
                    if term.receiver == 0:
                        part = kind.part(n)
                        term.wire = torch.arange(part.numel, dtype=torch.int64).to(part.dtype)
                        received(tape, kind, term, out, up)
                outs.append(out if isinstance(kind, Planes) else _reduced(kind, out, up))
                wires.append([term.wire for term in terms if term.sender == 0])
                tags.append([term.tag for term in terms if term.witness == 0])
            assert torch.equal(*outs)
            assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(*wires, strict=True))
            assert tags[0] == tags[1] and None not in tags[0]
            assert torch.equal(outs[0][:, :start], outs[1][:, :start]), "what belongs to others is left alone"


@needs_library
@pytest.mark.parametrize("nbytes", [0, 1, 15, 16, 17, 127, 128, 129, 1000, 4099])
def test_tags_are_gmac(library: native.NativeLibrary, nbytes: int) -> None:
    data = torch.arange(nbytes, dtype=torch.int64).to(torch.uint8)
    key = PrgTape(TAGS).planes((1, 2), "some label", 1, 128)
    assert library.tag(TAGS[1, 2], b"some label", data) == tag(key, [data])


def _reduced(kind: Kind, out: torch.Tensor, up: int) -> torch.Tensor:
    """Of a narrow number only its lowest bits count, before it is shifted up."""
    return out if up else Ring(kind.bits).wrap(out)


@needs_library
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("bits", RINGS)
def test_shifted(library: native.NativeLibrary, bits: int, n: int) -> None:
    values = Values(n)
    x, y = values.elements(n, bits), values.elements(n, bits)
    for second in (None, y):
        for shift, small in ((1, torch.int32), (bits // 2, torch.int32), (bits - 2, torch.int64)):
            arguments = (x, second, 1 << (bits - 2), 5, bits, shift, small)
            got, expected = library.shifted(*arguments), reference.shifted(*arguments)
            assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(got, expected, strict=True))


@needs_library
@pytest.mark.parametrize(("planes", "kept", "words"), [(1, 0, 3), (1, 1, 1), (7, 4, 5), (15, 15, 17), (2, 2, 0)])
def test_and_summands(library: native.NativeLibrary, planes: int, kept: int, words: int) -> None:
    values = Values(planes)
    p, g = (values.words(3, 2 * planes, words)[:, ::2] for _ in range(2))
    q = values.words(3, planes + 1, words)[:, planes + 1 - kept :]
    assert torch.equal(library.and_summands(p, g, q), reference.and_summands(p, g, q))


@needs_library
@pytest.mark.parametrize(
    ("count", "width", "words"), [(1, 3, 2), (2, 3, 1), (7, 3, 300), (31, 3, 5), (31, 4, 7), (8, 4, 0)]
)
def test_blocks(library: native.NativeLibrary, count: int, width: int, words: int) -> None:
    values = Values(count)
    a, b = (values.words(1, count + 1, words)[0] for _ in range(2))
    known = [library.monomials(x, count, width) for x in (a, b)]
    for x, rows in zip((a, b), known, strict=True):
        assert torch.equal(rows, reference.monomials(x, count, width))
    assert torch.equal(library.block_products(*known, count, width), reference.block_products(*known, count, width))


@pytest.mark.parametrize(("count", "width"), [(1, 3), (3, 3), (4, 3), (8, 4), (7, 2)])
def test_blocks_are_carries(count: int, width: int) -> None:
    """As Python adds: what a block of two numbers carries out, and whether all of its bits differ."""
    values = Values(width)
    a, b = (values.words(1, count, 3)[0] for _ in range(2))
    found = ops.block_products(*(ops.monomials(x, count, width) for x in (a, b)), count, width)
    blocks, first = bit_blocks(count, width), 0
    for block, size in enumerate(blocks):
        rows = [[_bits(x, plane) for plane in range(first, first + size)] for x in (a, b)]
        x, y = ([sum(bit << i for i, bit in enumerate(column)) for column in zip(*row, strict=True)] for row in rows)
        every = (1 << size) - 1
        assert _bits(found, block) == [m + n >> size for m, n in zip(x, y, strict=True)]
        if block:  # without the products of one side alone: both are 0 and 1 where all bits differ by one side
            lone = [(m == every) ^ (n == every) for m, n in zip(x, y, strict=True)]
            through = [m ^ n == every for m, n in zip(x, y, strict=True)]
            assert [t ^ u for t, u in zip(_bits(found, len(blocks) - 1 + block), lone, strict=True)] == through
        first += size


def _bits(planes: torch.Tensor, row: int) -> list[int]:
    return ops.unpack_bits(planes[row], 64 * planes.shape[1], torch.int64).tolist()


@needs_library
def test_what_does_not_fit_is_refused() -> None:
    assert LIBRARY is not None
    out, x, wire = torch.zeros((3, 8), dtype=torch.int64), torch.zeros(8, dtype=torch.int64), torch.zeros(8)
    term = JointTerm(bytes(32), b"x", 0, 1, "copy", (x,), wire.to(torch.int64))
    for error, said, call in (
        (ValueError, "native library takes", lambda: LIBRARY.joint([term], torch.int64, 64, 8, None, out, 4, 5)),
        (ValueError, "8 elements do not hold", lambda: LIBRARY.joint([term], torch.int64, 64, 8, None, _wide(), 4, 5)),
        (ValueError, "takes 2 tensors", lambda: LIBRARY.joint([_other(term)], torch.int64, 64, 8, None, out, 0, 8)),
        (KernelError, "do not fit", lambda: LIBRARY.joint([_far(term)], torch.int64, 64, 8, None, out, 0, 8)),
        (ValueError, "bytes are no", lambda: LIBRARY.add_bytes(torch.zeros(5, dtype=torch.uint8), 2, x, 0)),
    ):
        with pytest.raises(error, match=said):
            call()


def _wide() -> torch.Tensor:
    return torch.zeros((3, 9), dtype=torch.int64)


def _other(term: JointTerm) -> JointTerm:
    return JointTerm(term.key, term.label, 0, 1, "product", term.tensors, term.wire)


def _far(term: JointTerm) -> JointTerm:
    return JointTerm(term.key, term.label, 3, 1, "copy", term.tensors, term.wire)
