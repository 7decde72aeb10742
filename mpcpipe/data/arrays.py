"""Files as numpy arrays: idx, npz and csv. Whatever is wrong with a file is a DataError that says what, where, and what
to do.

Only the owner of a file calls these. Messages name files, rows and columns, never a value.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import itertools
import math
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpcpipe.errors import DataError

Array = npt.NDArray[Any]

# Third byte of an idx file's magic number: the type of its elements.
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

# An array of numpy has no more.
_MOST_DIMS = 32


def read_bytes(path: Path) -> bytes:
    """The whole file, unpacked if its name ends in .gz."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise _absent(path) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged or no gzip file: {error}. Get it again, or unpack it yourself") from error


def _absent(path: Path) -> DataError:
    return DataError(f"there is no file {path}; the job's paths start at the folder of the job file")


def read_idx(path: Path) -> Array:
    """An idx file (MNIST's format), .gz or not: (rows, ...)."""
    content = read_bytes(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in IDX_TYPES or not 0 < content[3] <= _MOST_DIMS:
        raise DataError(
            f"{path} is no idx file: its magic number is {content[:4].hex() or 'missing'}, not 0000 08 03 or alike"
        )
    dtype, dims = np.dtype(IDX_TYPES[content[2]]), content[3]
    header = 4 + 4 * dims
    if len(content) < header:
        raise DataError(f"{path} ends within its header, after {len(content)} bytes; get the file again")
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4)]
    expected = header + math.prod(shape) * dtype.itemsize
    if len(content) != expected:
        size = " x ".join(map(str, shape))
        raise DataError(
            f"{path} has {len(content)} bytes, but its header ({size}) asks for {expected}; get the file again"
        )
    return np.frombuffer(content, dtype, offset=header).reshape(shape)


def read_npz(path: Path, array: str | None) -> Array:
    """One array of an .npz file, or an .npy file. Objects are refused: they would be unpickled."""
    try:
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            return found if isinstance(found, np.ndarray) else _member(path, found, array)
    except FileNotFoundError as error:
        raise _absent(path) from error
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, MemoryError, OverflowError) as error:
        raise DataError(f"{path} cannot be read as npz: {error}") from error
    except ValueError as error:
        advice = "Arrays of Python objects are not taken; save numbers only"
        raise DataError(f"{path} cannot be read as npz: {error}. {advice}") from error


def _member(path: Path, found: Any, array: str | None) -> Array:
    names = list(found.files)
    if array is None and len(names) == 1:
        (array,) = names
    if array is None or array not in names:
        asked = f"has no array {array!r}" if array else f"has {len(names)} arrays; say which with array = ..."
        raise DataError(f"{path} {asked}: {', '.join(names) or 'none'}{_nearest(array, names)}")
    member: Array = found[array]
    return member


def read_csv(path: Path, columns: Sequence[str], delimiter: str) -> Array:
    """Columns of a csv file with a header, by name (none: all): float64 (rows, columns)."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8: {error}") from error
    lines = csv.reader(text.splitlines(), delimiter=delimiter, strict=True)
    rows: list[list[float]] = []
    try:
        header = [name.strip() for name in next(lines, [])]
        places = _places(path, header, columns)
        for cells in lines:
            if not cells:
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{path}, line {lines.line_num}: {len(cells)} columns, but the header has {len(header)}"
                )
            rows.append([_number(path, lines.line_num, header[place], cells[place]) for place in places])
    except csv.Error as error:
        raise DataError(f"{path}, line {lines.line_num}: {error}") from error
    return np.array(rows, np.float64).reshape(len(rows), len(places))


def _places(path: Path, header: list[str], columns: Sequence[str]) -> list[int]:
    if not header:
        raise DataError(f"{path} is empty; a csv file starts with a line of column names")
    if not columns and all(_is_number(name) for name in header):
        raise DataError(f"{path}, line 1: only numbers; a csv file starts with a line of column names")
    for name in columns:
        if header.count(name) != 1:
            many = "several columns" if name in header else "no column"
            raise DataError(f"{path} has {many} {name!r}{_nearest(name, header)}; it has {_some(header)}")
    return [header.index(name) for name in columns] or list(range(len(header)))


def _number(path: Path, line: int, column: str, cell: str) -> float:
    if not _is_number(cell):
        what = "the cell is empty" if not cell.strip() else "the cell is no number"
        raise DataError(f"{path}, line {line}, column {column!r}: {what}; fill in or leave out such rows")
    return float(cell)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _nearest(name: str | None, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name or "", names, 1)
    return f"; did you mean {near[0]!r}?" if near and near[0] != name else ""


def _some(names: Sequence[str]) -> str:
    return ", ".join(itertools.islice(names, 12)) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
