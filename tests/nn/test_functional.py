"""Functions of secret numbers: worst error over the domain, and rounds."""

from __future__ import annotations

import pytest
import torch

from mpcpipe.errors import ModelError
from mpcpipe.nn import functional
from mpcpipe.nn.fixed import Fixed
from mpcpipe.nn.piecewise import centers, cubics, edges
from mpcpipe.nn.softmax import softmax
from mpcpipe.protocol.replicated3 import Replicated3
from tests import simulate
from tests.nn.helpers import KINDS, UNIT, opened, parties, right_rounds, run, secret


def apply(kind, x, bits, function):
    """function(p, x) of float64 x: the result, and what happened."""
    ps = parties(kind)
    shared = secret(ps, x, bits)
    out = run(ps, "f", lambda p: function(p, shared[p.party]))
    return opened(ps, out.results), out


def units(x, bits):
    return (x * 2**bits).round() / 2**bits


def grid(low, high, n=4001):
    return torch.linspace(low, high, n, dtype=torch.float64)


def octave_grid(low, high, n=4001):
    return torch.logspace(torch.tensor(low).log2(), torch.tensor(high).log2(), n, base=2, dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_exp(kind):
    x = units(grid(-16, 0), 16)
    y, out = apply(kind, x, 16, functional.exp)
    assert (y - x.exp()).abs().max() <= 4e-6
    if kind is Replicated3:
        assert out.rounds == 10


@pytest.mark.parametrize("kind", KINDS)
def test_exp_with_four_squarings(kind):
    x = units(grid(-16, 0), 16)
    y, out = apply(kind, x, 16, lambda p, s: functional.exp(p, s, squarings=4))
    error = (y - x.exp()).abs()
    assert error.max() <= 2.2e-6
    assert error[x < -6].max() <= 4e-7
    assert right_rounds(kind, out.rounds, 12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("bits", "rounds"), [(12, 10), (18, 12)])
def test_exp_of_other_scales(kind, bits, rounds):
    x = units(grid(-16, 0, 501), bits)
    y, out = apply(kind, x, bits, functional.exp)
    assert (y - x.exp()).abs().max() <= (4.5e-6 if bits == 12 else 2.0**-16 + 4.5e-6)
    assert right_rounds(kind, out.rounds, rounds)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "f", "relative", "absolute"),
    [
        ("reciprocal", torch.reciprocal, 1.1e-5, 2**-20),
        ("inverse_sqrt", torch.rsqrt, 3.1e-6, 2**-20),
        ("log", torch.log, 0, 3e-6 + 2**-20),
    ],
)
def test_narrow(kind, name, f, relative, absolute):
    x = units(octave_grid(1, 16), 22)
    y, out = apply(kind, x, 22, lambda p, s: functional.narrow(p, name, s, 4, 20))
    assert ((y - f(x)).abs() <= relative * f(x).abs() + absolute).all()
    if kind is Replicated3:
        assert out.rounds == 11


@pytest.mark.parametrize("kind", KINDS)
def test_narrow_times_a_vector(kind):
    x = units(octave_grid(1, 16, 301), 22)
    e = units(torch.rand(5, 301, generator=torch.Generator().manual_seed(1), dtype=torch.float64), 22)
    ps = parties(kind)
    xs, es = secret(ps, x, 22), secret(ps, e, 22)
    out = run(ps, "f", lambda p: functional.narrow(p, "reciprocal", xs[p.party], 4, 16, es[p.party]))
    assert (opened(ps, out.results) - e / x).abs().max() <= 2 * UNIT
    if kind is Replicated3:
        assert out.rounds == 11


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("function", "f", "relative", "rounds"),
    [(functional.reciprocal, torch.reciprocal, 9e-6, 17), (functional.inverse_sqrt, torch.rsqrt, 2e-6, 17)],
)
def test_wide(kind, function, f, relative, rounds):
    x = units(octave_grid(2.0**-8, 2.0**6), 24)
    y, out = apply(kind, x, 24, lambda p, s: function(p, s, 2.0**-8, 2.0**6, 20))
    assert ((y - f(x)).abs() <= relative * f(x) + 2**-20).all()
    assert right_rounds(kind, out.rounds, rounds)


@pytest.mark.parametrize("kind", KINDS)
def test_wide_with_two_segments_an_octave(kind):
    x = units(octave_grid(2.0**-16, 4.0), 24)
    y, _ = apply(kind, x, 24, lambda p, s: functional.inverse_sqrt(p, s, 2.0**-16, 4.0, 20, per_octave=2))
    assert ((y - x.rsqrt()).abs() <= 9e-5 * x.rsqrt() + 2**-20).all()


@pytest.mark.parametrize("kind", KINDS)
def test_below_the_range_nothing_explodes(kind):
    x = torch.tensor([0.0, 2.0**-20, 2.0**-9], dtype=torch.float64)
    y, _ = apply(kind, x, 24, lambda p, s: functional.inverse_sqrt(p, s, 2.0**-8, 2.0**6, 20))
    assert ((y >= 15) & (y <= 2.6 * 16)).all()
    y, _ = apply(kind, x, 24, lambda p, s: functional.reciprocal(p, s, 2.0**-8, 2.0**6, 20))
    assert ((y >= 255) & (y <= 5.2 * 256)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_log(kind):
    x = units(octave_grid(2.0**-8, 2.0**6), 24)
    y, out = apply(kind, x, 24, lambda p, s: functional.log(p, s, 2.0**-8, 2.0**6))
    assert (y - x.log()).abs().max() <= 2e-6 + UNIT
    assert right_rounds(kind, out.rounds, 17)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "rounds"), [(2, 9), (5, 27), (8, 27)])
def test_maximum(kind, n, rounds):
    x = units(torch.randn(n, 50, generator=torch.Generator().manual_seed(n), dtype=torch.float64), 16)
    y, out = apply(kind, x, 16, functional.maximum)
    assert torch.equal(y, x.max(0).values)
    assert right_rounds(kind, out.rounds, rounds)


def logits(batch, classes):
    generator = torch.Generator().manual_seed(classes)
    x = torch.randn(batch, classes, generator=generator, dtype=torch.float64)
    x = x * torch.tensor([0.1, 1, 5, 30, 400], dtype=torch.float64).repeat(batch // 5 + 1)[:batch, None]
    x[0] = 0.25  # all equal
    x[1, :2] = x[1].max() + 1  # two winners
    return units(x, 16)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("classes", "rounds"), [(2, 31), (3, 32), (10, 34), (16, 34), (20, 85), (100, 103)])
def test_softmax(kind, classes, rounds):
    x = logits(60, classes)
    ps = parties(kind)
    shared = secret(ps, x)
    out = run(ps, "f", lambda p: softmax(p, shared[p.party]))
    y = opened(ps, [r.probabilities for r in out.results])
    assert (y - torch.softmax(x, 1)).abs().max() <= 3.01 * UNIT
    assert (y >= -UNIT).all()
    assert right_rounds(kind, out.rounds, rounds)


def test_softmax_with_fewer_compared_bits():
    """26 compared bits leave 20 for the fraction of what is summed, and 2^8 for the logits."""
    ps = simulate.parties(Replicated3, 64, 26)
    x = logits(60, 10).clamp(-200, 200)
    shared = secret(ps, x)
    out = run(ps, "f", lambda p: softmax(p, shared[p.party]))
    assert (opened(ps, [r.probabilities for r in out.results]) - torch.softmax(x, 1)).abs().max() <= 3.01 * UNIT


def test_softmax_opens_nothing():
    ps = parties(Replicated3)
    shared = secret(ps, logits(10, 10))
    run(ps, "f", lambda p: softmax(p, shared[p.party]))
    assert [p.openings for p in ps] == [[], [], []]


def test_softmax_of_ten_classes_sends():
    """Bytes of 192 rows, of all parties together: 5.5 kB a party and row. Pinned, so that a change is seen."""
    ps = parties(Replicated3)
    shared = secret(ps, logits(192, 10))
    out = run(ps, "f", lambda p: softmax(p, shared[p.party]))
    assert sum(out.sent_bytes) == 3167136
    assert max(out.sent_bytes) - min(out.sent_bytes) == 0


def test_a_ring_too_small_is_refused():
    ps = parties(Replicated3, 32)
    shared = Fixed(ps[0].zeros((2, 3)), 8)
    with pytest.raises(ModelError, match="needs a ring of 64 bits"):
        run(ps[:1], "f", lambda p: functional.exp(p, shared))


def test_a_comparison_out_of_range_is_refused():
    ps = parties(Replicated3)
    shared = Fixed(ps[0].zeros((2, 3)), 24)
    with pytest.raises(ModelError, match="raise compare_bits"):
        run(ps[:1], "f", lambda p: functional.reciprocal(p, shared, 1.0, 2.0**10))


def test_tables_are_exact_where_they_must_be():
    bounds = edges(functional.Fraction(1), 3, 4)
    assert len(bounds) == 13
    assert [float(b) for b in bounds[::4]] == [1, 2, 4, 8]
    assert float(bounds[1]) == pytest.approx(2**0.25, abs=2**-20)
    assert len(cubics("log", 3).coefficients) == 12
    table = centers("reciprocal", functional.Fraction(1), 2, 4)
    assert table.values == table.inverses
