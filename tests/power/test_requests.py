"""Rates and arrivals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mpcpipe.errors import PowerError
from mpcpipe.services.power.requests import Rates, arrivals, varied


def test_even_arrivals_are_as_many_as_the_rate_says_at_equal_distances() -> None:
    times = arrivals(Rates((2.0, 0.0, 4.0)), spacing="even")
    assert times.tolist() == [0.0, 0.5, 2.0, 2.25, 2.5, 2.75]


def test_poisson_arrivals_have_the_mean_and_the_variance_of_their_rate() -> None:
    times = arrivals(Rates((50.0,) * 2000), seed=3)
    counts = np.bincount(times.astype(int), minlength=2000)
    # Both are 50; five standard errors of each estimate.
    assert abs(counts.mean() - 50) < 5 * np.sqrt(50 / 2000)
    assert abs(counts.var() - 50) < 5 * 50 * np.sqrt(2 / 2000)
    assert np.all(np.diff(times) >= 0)


def test_the_same_seed_gives_the_same_arrivals_and_another_seed_others() -> None:
    rates = Rates((10.0, 20.0, 5.0))
    assert np.array_equal(arrivals(rates, 1), arrivals(rates, 1))
    assert not np.array_equal(arrivals(rates, 1)[:5], arrivals(rates, 2)[:5])


def test_rates_to_train_on_stay_in_their_range_and_hold() -> None:
    rates = np.array(varied(0, 23, 100.0, 200.0, hold_s=5).per_s)
    assert len(rates) == 23 and rates.min() >= 95.0 and rates.max() <= 210.0
    # Within a level only the 5 % vary: at most 1.05 / 0.95 between two seconds.
    assert all(level.max() / level.min() <= 1.05 / 0.95 for level in np.split(rates[:20], 4))


def test_a_trace_is_read_and_shortened(tmp_path: Path) -> None:
    file = tmp_path / "rate.csv"
    file.write_text("requests_per_second\n3\n4.5\n0\n")
    rates = Rates.read(file)
    assert rates.per_s == (3.0, 4.5, 0.0) and rates.first(2).mean_per_s == 3.75 and rates.duration_s == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("rate\n3\n", "no column 'requests_per_second'"),
        ("requests_per_second\n3\nmany\n", "line 3: 'many' is no rate"),
        ("requests_per_second\n", "is empty"),
        ("requests_per_second\n-1\n", "second 0 of the trace is -1.0"),
        ("requests_per_second\n1\nnan\n", "second 1 of the trace is nan"),
    ],
)
def test_a_wrong_trace_is_refused_with_the_place(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "rate.csv"
    file.write_text(content)
    with pytest.raises(PowerError, match=said):
        Rates.read(file)


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(PowerError, match=r"nowhere\.csv: cannot be read"):
        Rates.read(tmp_path / "nowhere.csv")
