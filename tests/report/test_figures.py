"""Numbers for people, ticks of axes, and the geometry of charts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpcpipe.report.chart import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, line_chart
from mpcpipe.report.figures import nbytes, seconds, share, ticks


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0 µs"), (12e-6, "12 µs"), (0.00125, "1.25 ms"), (0.64, "640 ms"), (0.9999, "1.00 s"), (12.34, "12.3 s")],
)
def test_seconds(value: float, shown: str) -> None:
    assert seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (4_700_000, "4.70 MB"),
        (999_900, "1.00 MB"),
        (393_216, "393 kB"),
        (2.5e12, "2,500 GB"),
    ],
)
def test_nbytes(value: float, shown: str) -> None:
    assert nbytes(value) == shown


def test_share() -> None:
    assert [share(part, 200) for part in (0, 0.2, 20, 200)] == ["0%", "<1%", "10%", "100%"]
    assert share(1, 0) == "0%"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (1, 24, [5, 10, 15, 20]),
        (0.0, 0.73, [0.0, 0.2, 0.4, 0.6]),
        (3, 3, [3]),
    ],
)
def test_ticks(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == expected


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 10))
def test_ticks_lie_inside(low: float, length: float, most: int) -> None:
    found = ticks(low, low + length, most)
    slack = 1e-6 * max(abs(low), length)
    assert 1 <= len(found) <= most
    assert all(low - slack <= tick <= low + length + slack for tick in found)


def test_chart() -> None:
    chart = line_chart("loss", [1, 2, 3], [2.0, None, 1.0])
    assert chart is not None
    # A gap in the middle: two strokes of one point each, at both ends of the axis.
    assert chart.path.count("M") == 2 and "L" not in chart.path
    first, last = chart.dots
    assert (first.x, last.x) == (LEFT, WIDTH - RIGHT)
    zero = HEIGHT - BOTTOM
    assert zero - first.y == pytest.approx(2 * (zero - last.y), abs=0.2)
    assert first.title == "step 1: 2"
    assert chart.x_ticks[0][1] == "1" and chart.y_ticks[0] == (zero, "0")


def test_a_level_is_inside() -> None:
    chart = line_chart("times", [1, 2], [0.1, 0.2], [(3.0, "predicted", "predicted")], in_seconds=True)
    assert chart is not None
    assert 0 < chart.levels[0].y < min(dot.y for dot in chart.dots)
    assert chart.dots[0].title == "step 1: 100 ms"


def test_one_value_and_none() -> None:
    one = line_chart("loss", [7], [2.5])
    assert one is not None and one.dots[0].x == LEFT + (WIDTH - LEFT - RIGHT) / 2
    assert line_chart("loss", [1, 2], [None, None]) is None
    many = line_chart("loss", range(1000), [1.0] * 1000)
    assert many is not None and many.dots == ()
