"""One suite for every protocol and ring: results against integer arithmetic, and costs as declared."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mpcpipe.protocol.additive2 import Additive2
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.plaintext import Plaintext
from mpcpipe.protocol.replicated3 import Replicated3
from mpcpipe.protocol.replicated4 import Replicated4
from mpcpipe.protocol.rounds import gather
from mpcpipe.ring.bilinear import MUL
from mpcpipe.ring.ring import Ring
from tests.conformance.cases import BILINEAR, OPERATIONS, SIZES, uniform
from tests.simulate import computing, parties, reveal, share, together

PROTOCOLS = (Replicated3, Additive2, Replicated4, Plaintext)
RINGS = (64, 32, 20)


@pytest.fixture(params=PROTOCOLS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> type[Protocol]:
    return request.param


@pytest.fixture(params=RINGS)
def k(request: pytest.FixtureRequest) -> int:
    return request.param


def spread(bits: int, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    ring = Ring(bits)
    raw = torch.empty(shape, dtype=torch.int64).random_(-(1 << 63), None, generator=torch.Generator().manual_seed(seed))
    return ring.wrap(raw.to(ring.dtype))


def big_int(op: Any, x: torch.Tensor, y: torch.Tensor, ring: Ring) -> torch.Tensor:
    """The operation by 16-bit limbs in float64: independent of the ring's own kernels."""
    total = torch.zeros(op.shape(tuple(x.shape), tuple(y.shape)), dtype=torch.int64)
    x64, y64 = x.to(torch.int64), y.to(torch.int64)
    for i in range(4):
        for j in range(4 - i):
            part = reference_float(op, (x64 >> 16 * i) & 0xFFFF, (y64 >> 16 * j) & 0xFFFF)
            total += part << (16 * (i + j))
    return ring.wrap(total.to(ring.dtype))


def reference_float(op: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """op by torch's own float64 functions and autograd, exact for 16-bit limbs."""
    a, b = x.double(), y.double()
    name = type(op).__name__
    if name == "Mul":
        out = a * b
    elif name == "MatMul":
        out = (a.T if op.transpose_a else a) @ (b.T if op.transpose_b else b)
    elif name == "Conv2d":
        out = torch.nn.functional.conv2d(a, b, None, op.stride, op.padding, op.dilation, op.groups)
    else:
        c = op.conv
        arguments = (None, c.stride, c.padding, c.dilation, c.groups)
        if name == "Conv2dInputGrad":
            leaf = torch.zeros(op.input_shape, dtype=torch.float64, requires_grad=True)
            y_out, dy = torch.nn.functional.conv2d(leaf, b, *arguments), a
        else:
            leaf = torch.zeros(op.weight_shape, dtype=torch.float64, requires_grad=True)
            y_out, dy = torch.nn.functional.conv2d(a, leaf, *arguments), b
        (out,) = torch.autograd.grad(y_out, leaf, dy)
    return out.round().to(torch.int64)


@pytest.mark.parametrize("name", BILINEAR)
def test_bilinear_operations_are_exact(kind: type[Protocol], k: int, name: str) -> None:
    op, shape_x, shape_y = BILINEAR[name]
    ps = parties(kind, k)
    x, y = spread(k, shape_x, 1), spread(k, shape_y, 2)
    xs, ys = share(ps, x, 0), share(ps, y, 1)
    z = together(ps, lambda p: p.product(op, xs[p.party], ys[p.party]))
    assert torch.equal(reveal(ps, z.results), big_int(op, x, y, ps[0].ring))


@pytest.mark.parametrize("owner", [0, 1, 2, 3])
@pytest.mark.parametrize("n", SIZES)
def test_share_and_reveal(kind: type[Protocol], k: int, owner: int, n: int) -> None:
    ps = parties(kind, k)
    owner %= len(ps)
    x = spread(k, (n,), 3)
    if owner == kind.dealer:
        with pytest.raises(ValueError, match="the dealer, which has nothing to share"):
            share(ps, x, owner)
        owner = 0
    shares = share(ps, x, owner)
    assert torch.equal(reveal(ps, shares), x)
    for receiver in computing(ps):
        opened = together(ps, lambda p, to=receiver: p.reveal(shares[p.party], to, "to one")).results
        assert torch.equal(opened[receiver], x)
        assert all(opened[p.party] is None for p in ps if p.party != receiver)


def test_public_values_are_shares(kind: type[Protocol], k: int) -> None:
    ps = parties(kind, k)
    x = spread(k, (2, 5), 4)
    assert torch.equal(reveal(ps, [p.public(x) for p in ps]), x)


@pytest.mark.parametrize("bits", [1, 7, 8, 13, 16])
def test_truncation_is_off_by_less_than_one_unit_and_right_on_average(kind: type[Protocol], k: int, bits: int) -> None:
    """Never the big error: 30,000 values up to the bound, every one within a unit of the quotient."""
    ps = parties(kind, k)
    x = uniform(30_000, k - 2, ps[0].ring.dtype, 5)
    x[3] = (1 << (k - 2)) - 1
    xs = share(ps, x)
    ones = share(ps, torch.ones_like(x), 1)
    exact = x.to(torch.float64) / 2**bits
    floor = x >> bits
    for z in (
        together(ps, lambda p: p.truncate(xs[p.party], bits)),
        together(ps, lambda p: p.product(MUL, xs[p.party], ones[p.party], bits)),
    ):
        got = reveal(ps, z.results)
        assert set((got - floor).unique().tolist()) <= {0, 1}
        if k < 52:
            mean_error = (got.to(torch.float64) - exact).mean().item()
            assert -0.02 < mean_error < 2**-bits + 0.02


@pytest.mark.parametrize("n", SIZES)
def test_comparison_selection_and_bits(kind: type[Protocol], k: int, n: int) -> None:
    m = min(k, 32)
    ps = parties(kind, k, m)
    x = uniform(n, m - 1, ps[0].ring.dtype, 6)
    v = spread(k, (n,), 7)
    xs, vs = share(ps, x), share(ps, v, 1)
    expected = (x >= 0).to(x.dtype)
    bits = together(ps, lambda p: p.nonnegative(xs[p.party])).results
    assert torch.equal(reveal(ps, together(ps, lambda p: p.to_ring(bits[p.party])).results), expected)
    selected = together(ps, lambda p: p.select(bits[p.party], xs[p.party])).results
    assert torch.equal(reveal(ps, [y for y, _ in selected]), x * expected)
    again = together(ps, lambda p: p.select_again(selected[p.party][1], vs[p.party])).results
    assert torch.equal(reveal(ps, again), v * expected)


@pytest.mark.parametrize("m", range(2, 21))
def test_comparison_in_every_width(kind: type[Protocol], m: int) -> None:
    """Every tree shape, odd and even, against all edges and every power of two."""
    ps = parties(kind, 64, m)
    powers = torch.tensor([1 << i for i in range(m - 1)])
    x = torch.cat((torch.tensor([0, -(1 << (m - 1))]), powers, -powers, powers - 1, 1 - powers))
    xs = share(ps, x)
    bits = together(ps, lambda p: p.nonnegative(xs[p.party])).results
    got = reveal(ps, together(ps, lambda p: p.to_ring(bits[p.party])).results)
    assert torch.equal(got, (x >= 0).to(torch.int64))


@pytest.mark.parametrize("m", [32, 64])
def test_comparison_over_the_full_ring(kind: type[Protocol], m: int) -> None:
    ps = parties(kind, 64, m)
    x = uniform(1000, m - 2, torch.int64, 8)
    x[1], x[2] = (1 << (m - 1)) - 1, -(1 << (m - 1))
    xs = share(ps, x)
    bits = together(ps, lambda p: p.nonnegative(xs[p.party])).results
    assert torch.equal(reveal(ps, together(ps, lambda p: p.to_ring(bits[p.party])).results), (x >= 0).to(x.dtype))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_declared_cost_is_what_happens(kind: type[Protocol], k: int, name: str, n: int) -> None:
    """Rounds and bytes of every operation, to the byte; and every party sends about the same."""
    ps = parties(kind, k)
    x, y = spread(k, (n,), 9), spread(k, (n,), 10)
    given: dict[str, Any] = {"value": x, "x": share(ps, x), "y": share(ps, y)}
    given["z"] = together(ps, lambda p: p.multiply(MUL, given["x"][p.party], given["y"][p.party])).results
    given["bits"] = together(ps, lambda p: p.nonnegative(given["x"][p.party])).results
    selected = together(ps, lambda p: p.select(given["bits"][p.party], given["x"][p.party])).results
    given["selector"] = [s for _, s in selected]
    case = OPERATIONS[name]
    outcome = together(ps, lambda p: case.run(p, given))
    declared = case.cost(ps[0], n)
    assert sum(outcome.sent_bytes) == declared.sent_bytes
    assert outcome.rounds == (declared.rounds if n else 0)
    if "share" not in name and "reveal" not in name and n >= 1000:
        sent = [outcome.sent_bytes[party] for party in computing(ps)]
        assert max(sent) - min(sent) <= 0.03 * max(sent) + 64


def test_costs_of_replicated3_are_the_published_figures() -> None:
    """Bytes a party and element at k = 64, compare_bits = 32: the table in docs/protocols.md."""
    (p, *_) = parties(Replicated3, 64, 32)
    n = 192_000
    per = {
        "product": p.costs.reduce(n).sent_bytes,
        "product and truncation": p.costs.reduce(n, 16).sent_bytes,
        "truncation": p.costs.truncate(n, 16).sent_bytes,
        "nonnegative": p.costs.nonnegative(n).sent_bytes,
        "relu forward": p.costs.nonnegative(n).sent_bytes + p.costs.select(n).sent_bytes,
        "relu backward": p.costs.select_again(n).sent_bytes,
    }
    rounded = {name: round(total / 3 / n, 2) for name, total in per.items()}
    assert rounded == {
        "product": 8.0,
        "product and truncation": 8.75,
        "truncation": 6.08,
        "nonnegative": 10.92,
        "relu forward": 21.58,
        "relu backward": 8.0,
    }
    assert p.costs.nonnegative(n).rounds + p.costs.select(n).rounds == 9


def test_costs_of_additive2_are_the_published_figures() -> None:
    """Bytes an element at k = 64, compare_bits = 32: what each party shows, and the dealer sends. docs/protocols.md."""
    n = 192_000
    ps = parties(Additive2, 64, 32)
    x = share(ps, torch.zeros(n, dtype=torch.int64))

    async def all_of(p: Protocol, key: str) -> Any:
        value = x[p.party]
        if key == "product":
            return await p.product(MUL, value, value)
        if key == "truncation":
            return await p.truncate(value, 16)
        bits = await p.nonnegative(value)
        if key == "nonnegative":
            return bits
        if key == "bit to ring":
            return await p.to_ring(bits)
        return await p.select_again((await p.select(bits, value))[1], value)

    found = {}
    for key in ("product", "truncation", "nonnegative", "bit to ring", "relu forward and backward"):
        outcome = together(ps, lambda p, key=key: all_of(p, key))
        shown, other, dealt = (round(sent / n, 2) for sent in outcome.sent_bytes)
        assert shown == other
        found[key] = (outcome.rounds, shown, dealt)
    assert found == {
        "product": (1, 16.0, 8.0),
        "truncation": (1, 0.12, 2.0),
        "nonnegative": (6, 14.62, 10.88),
        "bit to ring": (7, 14.75, 18.88),
        "relu forward and backward": (8, 30.75, 34.88),
    }


def test_costs_of_replicated4_are_the_published_figures() -> None:
    """As for replicated3; and a check costs the same however much it checks."""
    (p, *_) = parties(Replicated4, 64, 32)
    n = 192_000
    c = p.costs
    per = {
        "share": c.share(n),
        "product": c.reduce(n),
        "product and truncation": c.reduce(n, 16),
        "truncation": c.truncate(n, 16),
        "nonnegative": c.nonnegative(n),
        "bit to ring": c.to_ring(n),
        "relu forward": c.nonnegative(n) + c.select(n),
        "relu backward": c.select_again(n),
    }
    assert {name: (cost.rounds, round(cost.sent_bytes / 4 / n, 1)) for name, cost in per.items()} == {
        "share": (1, 4.0),
        "product": (1, 12.0),
        "product and truncation": (3, 11.1),
        "truncation": (2, 7.0),
        "nonnegative": (6, 10.5),
        "bit to ring": (2, 12.0),
        "relu forward": (8, 26.5),
        "relu backward": (2, 12.0),
    }
    assert (c.reveal(n, False).rounds, c.reveal(n, False).sent_bytes) == (4, 8 * n + 448 + 16)
    ps = parties(Replicated4)
    assert sum(together(ps, lambda p: p.check()).sent_bytes) == 448


def test_gather_joins_rounds(kind: type[Protocol]) -> None:
    """Side by side costs the rounds of the longest and the bytes of all; results are as one after the other."""
    ps = parties(kind, 64)
    x, y = uniform(50, 20, torch.int64, 11), uniform(70, 20, torch.int64, 12)
    xs, ys = share(ps, x), share(ps, y)

    async def both(p: Protocol) -> list[torch.Tensor]:
        return await gather(
            p.product(MUL, xs[p.party], xs[p.party]),
            p.truncate(ys[p.party], 4),
            gather(p.product(MUL, ys[p.party], ys[p.party], 2)),
        )

    outcome = together(ps, both)
    c = ps[0].costs
    first, last = c.multiply(MUL, (50,), (50,)) + c.reduce(50), c.multiply(MUL, (70,), (70,)) + c.reduce(70, 2)
    declared = first | c.truncate(70, 4) | last
    assert (outcome.rounds, sum(outcome.sent_bytes)) == (declared.rounds, declared.sent_bytes)
    assert torch.equal(reveal(ps, [r[0] for r in outcome.results]), x * x)
    assert ((reveal(ps, [r[1] for r in outcome.results]) - (y >> 4)).abs() <= 1).all()
    assert ((reveal(ps, [r[2][0] for r in outcome.results]) - (y * y >> 2)).abs() <= 1).all()


def test_every_opening_is_written_down(kind: type[Protocol]) -> None:
    ps = parties(kind, 64)
    xs = share(ps, torch.arange(6).reshape(2, 3))
    together(ps, lambda p: p.at("here").reveal(xs[p.party], 1, "a result"))
    assert all([(o.why, o.to, o.shape) for o in p.openings] == [("a result", 1, (2, 3))] for p in ps)


def test_wrong_arguments_are_named(kind: type[Protocol]) -> None:
    with pytest.raises(ValueError, match="compare_bits is 65"):
        kind(party=0, ring=Ring(64), tape=parties(kind)[0].tape, compare_bits=65)
    with pytest.raises(ValueError, match="parties, not 7"):
        kind(party=0, ring=Ring(64), tape=parties(kind)[0].tape, compare_bits=32, parties=7)
    ps = parties(kind, 64)
    with pytest.raises(ValueError, match=r"party 0 must give a value of shape \(3,\)"):
        together(ps, lambda p: p.share(None, 0, (3,)))
