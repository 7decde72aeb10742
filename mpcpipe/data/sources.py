"""Where rows come from: each kind of source as a function, and what is checked of whatever it gives.

Only the owner's process calls these. What an owner has is checked against what the job says in public (shape, classes,
rows), and messages name the file, the row and the position, never a value: they may reach the other parties.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpcpipe.data.arrays import Array, read_csv, read_idx, read_npz
from mpcpipe.errors import DataError, RangeError
from mpcpipe.job.schema import Source
from mpcpipe.ring.bilinear import Shape


def features(source: Source, key: str, shape: Shape, rows: int, limit: float) -> torch.Tensor:
    """float32 (rows, *shape): the first `rows` rows, scaled as the source says.

    key: of the source in the job, for messages. DataError: not there, unreadable, wrong shape, too few rows, NaN.
    RangeError: infinite, or not below `limit` in magnitude after scaling.
    """
    name = _name(source, key)
    array = _numbers(_read(source, key, shape, rows, 0), name)
    array = _shaped(array, name, shape, rows)
    values = torch.from_numpy(np.array(array[:rows], np.float64))
    values = ((values / source.scale - source.mean) / source.std).to(torch.float32)
    _check_range(values, name, source, limit)  # as they are used: rounding may have made them larger
    return values


def labels(source: Source, key: str, classes: int, rows: int) -> torch.Tensor:
    """int64 (rows,): the first `rows` labels, each from 0 to classes - 1. DataError for anything else."""
    name = _name(source, key)
    array = _numbers(_read(source, key, (), rows, classes), name)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        size = " x ".join(map(str, array.shape))
        raise DataError(f"{name}: labels are one whole number a row, but this is {size}")
    _check_rows(len(array), name, rows)
    values = array[:rows]
    bad = np.flatnonzero(~((values >= 0) & (values < classes) & (values == np.floor(values))))
    if len(bad):
        outside = "" if np.isfinite(values[bad[0]]) else " (not a number)"
        raise DataError(
            f"{name}: the label of row {bad[0]} is none of 0 to {classes - 1}{outside}, as are {len(bad)} of {rows}; "
            f"check data.classes, and that labels count from 0"
        )
    return torch.from_numpy(values.astype(np.int64))


def _name(source: Source, key: str) -> str:
    return f"{key} ({source.path or source.source})"


def _read(source: Source, key: str, shape: Shape, rows: int, classes: int) -> Any:
    """What the source holds, not checked. classes: 0 for features."""
    kind, path = source.source, Path(source.path or "")
    if kind is None:
        raise DataError(f"{key}.source is missing: this party has the data, so its job must say where")
    if kind == "digits":
        return _digits(key, images=not classes)
    if kind == "synthetic":
        return synthetic(source.seed, shape, rows, classes)
    if kind == "idx":
        return read_idx(path)
    if kind == "npz":
        return read_npz(path, source.array)
    if kind == "csv":
        return read_csv(path, [source.column] if classes and source.column else source.columns, source.delimiter)
    return _called(source, kind, key)


def _digits(key: str, images: bool) -> Array:
    """scikit-learn's digits in their own order, writer by writer: say `shuffle` in the job."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(f'{key}: the digits come with scikit-learn; pip install "mpcpipe[examples]"') from error
    digits = load_digits()
    found: Array = digits.images if images else digits.target
    return found


def synthetic(seed: int, shape: Shape, rows: int, classes: int) -> torch.Tensor:
    """Random data that everybody may know: features in [0, 1) of (rows, *shape), or labels where classes is not 0."""
    digest = hashlib.sha256(f"synthetic|{seed}|{classes}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    if classes:
        return torch.randint(classes, (rows,), generator=generator)
    return torch.rand(rows, *shape, generator=generator)


def _called(source: Source, reference: str, key: str) -> Any:
    from mpcpipe.job.model import function_of

    function = function_of(reference, f"{key}.source")
    try:
        return function(**source.args)
    except Exception as error:
        raise DataError(f"{key}: {reference} failed: {type(error).__name__}: {error}") from error


def _numbers(found: Any, name: str) -> Array:
    array = found.detach().cpu().numpy() if isinstance(found, torch.Tensor) else np.asarray(found)
    if array.dtype.kind not in "biuf" or not array.ndim:
        raise DataError(f"{name} must hold real numbers, a row each; it holds {array.dtype}")
    return array


def _check_rows(found: int, name: str, rows: int) -> None:
    if found < rows:
        raise DataError(f"{name} has {found} rows, but the job uses rows up to {rows}; check train and test")


def _shaped(array: Array, name: str, shape: Shape, rows: int) -> Array:
    """(rows, *shape), where only sizes of 1 and flat rows may differ: any other reshape would mix up pixels."""
    found = array.shape[1:]
    without_ones = [tuple(n for n in sizes if n != 1) for sizes in (found, shape)]
    same_size = np.prod(found, dtype=np.int64) == np.prod(shape, dtype=np.int64)
    if without_ones[0] != without_ones[1] and not (same_size and 1 in (len(found), len(shape))):
        swapped = same_size and len(found) == len(shape) == 3 and (found[2], *found[:2]) == shape
        hint = "; channels come first, so move the last dimension to the front" if swapped else ""
        has, says = (" x ".join(map(str, sizes)) or "a single number" for sizes in (found, shape))
        raise DataError(f"{name}: a row is {has}, but data.shape says {says}{hint}")
    _check_rows(len(array), name, rows)
    return array[:rows].reshape(rows, *shape)


def _check_range(values: torch.Tensor, name: str, source: Source, limit: float) -> None:
    flat = values.flatten(1)
    for bad, kind, what, advice in (
        (flat.isnan(), DataError, "not a number (NaN)", "fill in or leave out such rows"),
        (flat.abs() >= limit, RangeError, f"{limit:g} or more in magnitude", "divide by a larger scale"),
    ):
        if bool(bad.any()):
            row, place = (int(i) for i in bad.nonzero()[0])
            column = source.columns[place] if source.columns else place
            count = int(bad.any(1).sum())
            raise kind(
                f"{name}: row {row}, column {column}: the value is {what}, as in {count} of {len(flat)} rows; {advice}"
            )
