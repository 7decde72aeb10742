"""Sources: what an owner reads, checked against what the job says in public."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mpcpipe.data.sources import features, labels
from mpcpipe.errors import DataError, JobError, RangeError
from mpcpipe.job.schema import Source

LIMIT = 2.0**15


def saved(folder: Path, array: Any, **options: Any) -> Source:
    """A source with this array."""
    np.save(folder / "x.npy", array)
    return Source(source="npz", path=str(folder / "x.npy"), **options)


def read(source: Source, shape: tuple[int, ...], rows: int, limit: float = LIMIT) -> torch.Tensor:
    return features(source, "data.features", shape, rows, limit)


# features


def test_scale_mean_and_std(tmp_path: Path) -> None:
    source = saved(tmp_path, np.array([[0, 51], [102, 255]], np.uint8), scale=255, mean=0.2, std=0.5)
    x = read(source, (2,), 2)
    assert x.dtype == torch.float32
    assert torch.allclose(x, torch.tensor([[-0.4, 0.0], [0.4, 1.6]]))


def test_only_the_first_rows_are_taken(tmp_path: Path) -> None:
    assert read(saved(tmp_path, np.arange(10.0).reshape(5, 2)), (2,), 3).tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("found", "shape"),
    [
        ((28, 28), (1, 28, 28)),
        ((784,), (1, 28, 28)),
        ((1, 28, 28), (784,)),
        ((28, 28, 1), (28, 28)),
        ((3, 4), (3, 4)),
        ((), (1,)),
    ],
)
def test_rows_may_be_flat_or_lack_sizes_of_one(tmp_path: Path, found: tuple[int, ...], shape: tuple[int, ...]) -> None:
    array = np.arange(3 * np.prod(found, dtype=int), dtype=np.float32).reshape(3, *found)
    x = read(saved(tmp_path, array), shape, 3)
    assert x.shape == (3, *shape) and x.flatten().tolist() == array.flatten().tolist()


@pytest.mark.parametrize(
    ("found", "shape", "message"),
    [
        ((28, 28), (3, 32, 32), "a row is 28 x 28, but data.shape says 3 x 32 x 32"),
        ((32, 32, 3), (3, 32, 32), "channels come first, so move the last dimension to the front"),
        ((4, 6), (6, 4), "a row is 4 x 6, but data.shape says 6 x 4"),
        ((7,), (2, 3), "a row is 7, but"),
        ((), (2,), "a row is a single number, but"),
    ],
)
def test_other_shapes_are_refused(tmp_path: Path, found: tuple[int, ...], shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(DataError) as error:
        read(saved(tmp_path, np.zeros((3, *found))), shape, 3)
    assert message in str(error.value) and "x.npy" in str(error.value)


def test_too_few_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.features \(.*x\.npy\) has 3 rows, but the job uses rows up to 4"):
        read(saved(tmp_path, np.zeros((3, 2))), (2,), 4)
    with pytest.raises(DataError, match=r"data\.labels .* has 3 rows, but the job uses rows up to 4"):
        labels(saved(tmp_path, np.zeros(3)), "data.labels", 10, 4)


def test_nan_is_a_data_error_with_row_and_column(tmp_path: Path) -> None:
    array = np.zeros((5, 2, 2))
    array[3, 1, 0] = np.nan
    array[4] = np.nan
    with pytest.raises(
        DataError, match=r"row 3, column 2: the value is not a number \(NaN\), as in 2 of 5 rows"
    ) as error:
        read(saved(tmp_path, array), (2, 2), 5)
    assert not isinstance(error.value, RangeError)
    assert read(saved(tmp_path, array), (2, 2), 3).shape == (3, 2, 2)  # rows that are not used do not matter


@pytest.mark.parametrize("value", [2.0**15, -(2.0**15), 40000, np.inf, -np.inf])
def test_values_outside_the_fixed_point_are_range_errors(tmp_path: Path, value: float) -> None:
    array = np.zeros((4, 3))
    array[2, 1] = value
    with pytest.raises(
        RangeError, match=r"x\.npy\): row 2, column 1: the value is 32768 or more in magnitude"
    ) as error:
        read(saved(tmp_path, array), (3,), 4)
    assert "divide by a larger scale" in str(error.value)
    if np.isfinite(value):
        assert read(saved(tmp_path, array, scale=2), (3,), 4)[2, 1] == value / 2


def test_a_value_that_rounding_makes_too_large_is_refused_where_it_is_read(tmp_path: Path) -> None:
    """As it is used, it is a float32."""
    with pytest.raises(RangeError, match="row 0, column 0"):
        read(saved(tmp_path, np.array([[32767.9999]])), (1,), 1)


def test_a_csv_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("age,income\n30,1e9\n")
    source = Source(source="csv", path=str(tmp_path / "x.csv"), columns=("age", "income"))
    with pytest.raises(RangeError, match="row 0, column income"):
        read(source, (2,), 1)
    (tmp_path / "x.csv").write_text("age,income\n30,nan\n")
    with pytest.raises(DataError, match="row 0, column income: the value is not a number"):
        read(source, (2,), 1)


def test_things_that_are_no_numbers(tmp_path: Path) -> None:
    for array in (np.array(["a", "b"]), np.array([1j, 2j]), np.array(3.0)):
        with pytest.raises(DataError, match="must hold real numbers, a row each"):
            read(saved(tmp_path, array), (1,), 1)


# labels


@pytest.mark.parametrize("array", [[0, 9, 3], [0.0, 9.0, 3.0], [[0], [9], [3]]])
def test_labels(tmp_path: Path, array: Any) -> None:
    y = labels(saved(tmp_path, np.array(array)), "data.labels", 10, 3)
    assert y.dtype == torch.int64 and y.tolist() == [0, 9, 3]


@pytest.mark.parametrize("value", [10, -1, 0.5, np.nan, np.inf])
def test_labels_outside_the_classes(tmp_path: Path, value: float) -> None:
    array = np.array([0, 1, value, 2, value])
    with pytest.raises(DataError, match=r"the label of row 2 is none of 0 to 9.*, as are 2 of 5") as error:
        labels(saved(tmp_path, array), "data.labels", 10, 5)
    assert "that labels count from 0" in str(error.value)
    assert labels(saved(tmp_path, array), "data.labels", 10, 2).tolist() == [0, 1]


def test_unsigned_labels_do_not_wrap(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="row 1"):
        labels(saved(tmp_path, np.array([3, 255], np.uint8)), "data.labels", 10, 2)


def test_one_hot_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="labels are one whole number a row, but this is 3 x 10"):
        labels(saved(tmp_path, np.zeros((3, 10))), "data.labels", 10, 3)


def test_a_label_column_of_a_csv(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("age,sick\n30,1\n40,0\n")
    assert labels(Source(source="csv", path=str(tmp_path / "x.csv"), column="sick"), "data.labels", 2, 2).tolist() == [
        1,
        0,
    ]


# other kinds


def test_digits_are_scikit_learns() -> None:
    x = read(Source(source="digits", scale=16), (1, 8, 8), 1797)
    y = labels(Source(source="digits"), "data.labels", 10, 1797)
    assert x.shape == (1797, 1, 8, 8) and (x.min().item(), x.max().item()) == (0.0, 1.0)
    assert y[:10].tolist() == list(range(10)) and set(y.tolist()) == set(range(10))


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r'pip install "mpcpipe\[examples\]"'):
        read(Source(source="digits"), (1, 8, 8), 10)


def test_synthetic_data_is_the_same_everywhere() -> None:
    one, two = (read(Source(source="synthetic", seed=3), (2, 4), 50) for _ in range(2))
    assert torch.equal(one, two) and one.min() >= 0 and one.max() < 1
    assert not torch.equal(one, read(Source(source="synthetic", seed=4), (2, 4), 50))
    y = labels(Source(source="synthetic", seed=3), "data.labels", 7, 500)
    assert set(y.tolist()) == set(range(7))


FILE = """
import torch
def tensor(rows=2): return torch.ones(rows, 3, requires_grad=True)
def listed(): return [[1, 2, 3], [4, 5, 6]]
def fails(): raise OSError("the disk is gone")
"""


def test_a_function(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    assert read(Source(source=f"{tmp_path}/mine.py:tensor", args={"rows": 4}), (3,), 4).tolist() == [[1, 1, 1]] * 4
    assert read(Source(source=f"{tmp_path}/mine.py:listed"), (3,), 2).tolist() == [[1, 2, 3], [4, 5, 6]]
    with pytest.raises(DataError, match="failed: OSError: the disk is gone"):
        read(Source(source=f"{tmp_path}/mine.py:fails"), (3,), 2)
    with pytest.raises(JobError, match=r"data\.features\.source: .* has no function 'absent'"):
        read(Source(source=f"{tmp_path}/mine.py:absent"), (3,), 2)


def test_an_owner_must_say_where() -> None:
    with pytest.raises(DataError, match=r"data\.features\.source is missing: this party has the data"):
        read(Source(), (3,), 2)
