"""Reals as ring elements: rounding, range, and what an error says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mpcpipe.errors import RangeError
from mpcpipe.ring.fixed import FixedPoint
from mpcpipe.ring.ring import Ring


@given(st.floats(-1000, 1000), st.integers(4, 24))
def test_there_and_back(x, bits):
    fixed = FixedPoint(Ring(64), bits)
    encoded = fixed.encode(torch.tensor([x], dtype=torch.float64), "x")
    assert encoded.dtype == torch.int64
    assert abs(float(fixed.decode(encoded)) - x) <= fixed.unit / 2


@pytest.mark.parametrize(("k", "dtype"), [(64, torch.int64), (32, torch.int32)])
def test_values(k, dtype):
    fixed = FixedPoint(Ring(k), 8)
    encoded = fixed.encode(torch.tensor([0.0, 1.0, -1.0, 1.5, -0.25, 2**-9 * 1.01]), "x")
    assert encoded.dtype == dtype
    assert encoded.tolist() == [0, 256, -256, 384, -64, 1]


def test_integers_are_taken_too():
    x = torch.tensor([[3, -2]], dtype=torch.int32)
    assert FixedPoint(Ring(64), 8).encode(x, "x").tolist() == [[768, -512]]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (float("nan"), "not a finite number"),
        (float("inf"), "not a finite number"),
        (-float("inf"), "not a finite number"),
        (40000.0, "of magnitude 40000"),
        (-32768.0, "of magnitude 32768"),
    ],
)
def test_what_does_not_fit_is_named(bad, says):
    x = torch.zeros(2, 3, dtype=torch.float64)
    x[1, 2] = bad
    with pytest.raises(RangeError, match=r"pixels: element \[1, 2\] is " + says) as caught:
        FixedPoint(Ring(64), 16, limit=2.0**15).encode(x, "pixels")
    assert "|x| < 32768 (1 of 6 elements" in str(caught.value)
    assert caught.value.exit_code == 5


def test_the_largest_that_fits():
    fixed = FixedPoint(Ring(64), 16, limit=2.0**15)
    top = torch.tensor([2.0**15 - 2.0**-16], dtype=torch.float64)
    assert float(fixed.decode(fixed.encode(top, "x"))) == float(top)


def test_the_ring_bounds_what_the_limit_does_not():
    assert FixedPoint(Ring(32), 10).bound == 2.0**20
    assert FixedPoint(Ring(32), 10, limit=2.0**30).bound == 2.0**20
    with pytest.raises(ValueError, match="no room for 31"):
        FixedPoint(Ring(32), 31)
