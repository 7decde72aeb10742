"""Local steps of four parties in one native pass: as torch does them one after the other, on every processor."""

from __future__ import annotations

import pytest
import torch

from mpcpipe.errors import KernelError
from mpcpipe.protocol.replicated4.kinds import Elements, Kind, Narrow, Planes
from mpcpipe.protocol.replicated4.passes import Passes
from mpcpipe.protocol.replicated4.plans import Plan, Term, Value
from mpcpipe.protocol.replicated4.told import Telling
from mpcpipe.random.mac import MODULUS, tag
from mpcpipe.random.tape import PrgTape
from mpcpipe.ring import native, ops, reference
from mpcpipe.ring.native.steps4 import JointPlan, JointTerm
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


TAGS = {(1, 2): bytes([9]) * 32, (0, 3): bytes([8]) * 32, (0, 2): bytes([7]) * 32}


def _values(kind: Kind, n: int, count: int) -> list[torch.Tensor]:
    made = Values(n)
    return [made.words(n) if isinstance(kind, Planes) else made.elements(n, kind.bits) for _ in range(count)]


def _plan(kind: Kind) -> Plan:
    """As party 0 sees it: it sends, vouches, only masks, only receives, in both halves. Of values made in every way."""
    values = [Value("copy", ((0, 1),)), Value("product", ((0, 0), (1, 0)))]
    if not isinstance(kind, Planes):
        values.append(Value("cross", ((0, 0), (0, 1), (0, 2), (1, 0), (0, 1), (0, 0))))
        values.append(Value("chosen", ((0, 0), (0, 2), (2, 0))))
        values.append(Value("minus", ((0, 2),)))
    terms = []
    for half in (0, 1):
        for i, value in enumerate(values):
            terms.append(Term(0, 1, 2, half, f"/sends {half} {i}", "", (i + 1) % 3, i % 3, value))
            if i == half:
                terms.append(Term(2 - half, 0, 3, half, f"/vouches {half} {i}", f"/tag {i}", None, 1, value))
        terms.append(Term(1, 2, 3, half, f"/masks {half}", "", 0, None))
        terms.append(Term(3 - half, 2 + half, 0, half, "/receives", f"/tagged {half}", None, 2))
    return Plan(0, tuple(terms))


def _halves(kind: Kind, n: int) -> tuple[int, int]:
    n -= n % 5 if isinstance(kind, Planes) else 0
    return kind.halves(n)


@needs_library
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("n", [0, 1, 5, 1024, 1500, 2055])
def test_one_pass_is_as_many_steps(name: str, n: int) -> None:
    kind = KINDS[name]
    halves, plan = _halves(kind, n), _plan(kind)
    n = sum(halves)
    (a, b, c, d, bits) = _values(kind, n, 5)
    sources = (torch.stack((a, b, c)), d, bits & 1)
    wide = [(0, kind.dtype)]
    if kind.narrow:
        wide += [(64 - kind.bits, torch.int64)]
    for up, dtype in wide:
        begun = torch.stack(_values(Elements(Ring(dtype.itemsize * 8)), n, 3)).to(dtype)
        for base, keep in ((None, False), (begun, True), (begun, False)):
            outs, wires, tags = [], [], []
            for tape in (PrgTape(KEYS | TAGS, audit=True), Slow(KEYS | TAGS)):
                passes, out = Passes(tape), torch.full((3, n), 77, dtype=dtype)
                if base is not None and not keep:
                    out = base.clone()
                own = base if base is None or keep else out
                sent, known = passes.masked(plan, "label", kind, sources, halves, own, out, up)
                for term in plan.received:
                    part = kind.part(halves[term.half])
                    wire = torch.arange(part.numel, dtype=torch.int64).to(part.dtype)
                    start = term.half * halves[0]
                    target = out[2, start : start + halves[term.half]]
                    known[term.route] = passes.received(term, "label", kind, wire, target, up)
                outs.append(out if isinstance(kind, Planes) else _reduced(kind, out, up))
                wires.append(sent)
                tags.append(known)
            assert torch.equal(*outs)
            assert all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(*wires, strict=True))
            assert len(wires[0]) == len(plan.sent)
            assert tags[0] == tags[1] and None not in tags[0].values()
            assert len(tags[0]) == 2 + sum(1 for half in halves if half)


@needs_library
def test_a_label_is_used_once_in_passes_too() -> None:
    kind = KINDS["elements 64"]
    passes, plan, out = Passes(PrgTape(KEYS | TAGS, audit=True)), _plan(kind), torch.zeros((3, 4), dtype=torch.int64)
    sources = (out, out[0], out[0])
    passes.masked(plan, "one", kind, sources, (2, 2), None, out.clone())
    passes.masked(plan, "two", kind, sources, (2, 2), None, out.clone())
    with pytest.raises(ValueError, match="used twice"):
        passes.masked(plan, "one", kind, sources, (2, 2), None, out.clone())


@needs_library
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("n", [1, 5, 64, 255, 256, 257, 1500])
@pytest.mark.parametrize("bits", [*RINGS, 1, 31, 33, 63])
def test_what_is_told_is_as_many_steps_and_its_tags_add_up(bits: int, n: int) -> None:
    """All of one half's messages, of values that all who know them know."""
    ring = Ring(bits)
    summands = {(a, b): Values(10 * a + b).elements(n, bits) for a in range(4) for b in range(a + 1, 4)}
    z = [torch.stack([summands[min(p, q), max(p, q)] for q in ((p + s) % 4 for s in (1, 2, 3))]) for p in range(4)]
    seen = []
    for kind in (PrgTape, Slow):
        p = [Telling(kind(KEYS), party, ring) for party in range(4)]
        halves = [torch.empty(n, dtype=ring.dtype) for _ in range(4)]
        wires = [p[i].tell(z[i], "label", halves[i]) for i in (0, 1)]
        parts = [dict(p[i].vouch(z[i], "label", halves[i])) for i in (2, 3)]
        tags = [p[i].told(*wires[1 - i], "label", halves[i]) for i in (0, 1)]
        assert tags == [(parts[0][1 - i, i] + parts[1][1 - i, i]) % MODULUS for i in (0, 1)]
        v, other_v, u, other_u = (ring.wrap(half) for half in halves)
        assert torch.equal(v, other_v) and torch.equal(u, other_u)
        signed = sum(-x if b - a == 2 else x for (a, b), x in summands.items())
        assert torch.equal(ring.wrap(u + v), ring.wrap(signed))
        seen.append((halves, [x for wire in wires for x in wire], parts, tags))
    (halves, sent, *rest), (other_halves, other_sent, *other_rest) = seen
    assert all(torch.equal(a, b) for a, b in zip(halves + sent, other_halves + other_sent, strict=True))
    assert rest == other_rest


@needs_library
@pytest.mark.parametrize("nbytes", [0, 1, 15, 16, 17, 127, 128, 129, 1000, 4099])
def test_tags_are_gmac(library: native.NativeLibrary, nbytes: int) -> None:
    data = torch.arange(nbytes, dtype=torch.int64).to(torch.uint8)
    key = PrgTape(TAGS).planes((1, 2), "some label", 1, 128)
    expected = tag(key, [data])
    assert library.tag(TAGS[1, 2], b"some ", b"label", data) == expected
    for width in (1, 3, 8):
        if nbytes % width == 0:
            out = torch.zeros(nbytes // width, dtype=torch.int64)
            assert library.take(TAGS[1, 2], b"some", b" label", data, out, 0, False) == expected


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
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("bits", [32, 64])
def test_pair_sums(library: native.NativeLibrary, bits: int, n: int) -> None:
    x = torch.stack([Values(n + i).elements(2 * n, bits) for i in range(3)])
    for given in (x, x[:, :n], x[:, ::2], x.view(3, 2, n), x.view(3, 2, n).transpose(1, 2)):
        got = library.pair_sums(given)
        assert got.is_contiguous() and torch.equal(got, reference.pair_sums(given))


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
    out, x = torch.zeros((3, 8), dtype=torch.int64), torch.zeros(8, dtype=torch.int64)
    term = JointTerm(0, bytes(32), b"x", 0, 1, "copy", ((0, 0),))

    def joint(term: JointTerm, source: torch.Tensor = x, halves: tuple[int, int] = (4, 4), up: int = 0) -> list[int]:
        plan = JointPlan([term])
        return LIBRARY.joint(plan, b"label", (source,), (), torch.int64, 64, 8, None, out, halves, up)

    assert joint(term) == []
    for error, said, call in (
        (ValueError, "native library takes", lambda: joint(term, halves=(4, 5))),
        (ValueError, "native library takes", lambda: joint(term, x[:7])),
        (ValueError, "native library takes", lambda: joint(term, x.to(torch.int32))),
        (ValueError, "takes 2 rows", lambda: JointPlan([term._replace(operation="product")])),
        (KernelError, "do not fit", lambda: joint(term._replace(mask_at=3))),
        (KernelError, "do not fit", lambda: joint(term._replace(operands=((0, 1),)))),
        (KernelError, "do not fit", lambda: joint(term._replace(operands=((1, 0),)))),
        (KernelError, "do not fit", lambda: joint(term._replace(wire=0))),
        (KernelError, "do not fit", lambda: joint(term._replace(half=2))),
        (KernelError, "do not fit", lambda: joint(term, up=64)),
        (ValueError, "bytes are no", lambda: LIBRARY.take(b"", b"", b"", torch.zeros(5), x, 0, False)),
    ):
        with pytest.raises(error, match=said):
            call()
