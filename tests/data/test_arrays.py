"""Files: what they hold, and the sentence for each way in which one can be wrong."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from mpcpipe.data.arrays import read_csv, read_idx, read_npz
from mpcpipe.errors import DataError


def idx(kind: int, shape: tuple[int, ...], data: bytes) -> bytes:
    """An idx file, from the format's description: two zeros, type, dimensions, big-endian sizes, elements."""
    return bytes([0, 0, kind, len(shape)]) + b"".join(struct.pack(">I", n) for n in shape) + data


def put(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


@pytest.mark.parametrize("name", ["x.idx", "x.idx.gz"])
def test_idx(tmp_path: Path, name: str) -> None:
    images = read_idx(put(tmp_path, name, idx(0x08, (2, 2, 3), bytes(range(244, 256)))))
    assert images.tolist() == [[[244, 245, 246], [247, 248, 249]], [[250, 251, 252], [253, 254, 255]]]


@pytest.mark.parametrize(
    ("kind", "code", "values"),
    [
        (0x09, "b", (-1, 2)),
        (0x0B, "h", (-300, 300)),
        (0x0C, "i", (-70000, 70000)),
        (0x0D, "f", (0.5, -2)),
        (0x0E, "d", (0.1, 3)),
    ],
)
def test_idx_types_are_big_endian(tmp_path: Path, kind: int, code: str, values: tuple[float, float]) -> None:
    assert read_idx(put(tmp_path, "x", idx(kind, (2,), struct.pack(f">2{code}", *values)))).tolist() == list(values)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "magic number is missing"),
        (b"\x89PNG\r\n", "is no idx file: its magic number is 89504e47"),
        (idx(0x07, (1,), b"\0"), "is no idx file"),
        (idx(0x08, (), b""), "is no idx file"),
        (idx(0x08, (1,) * 200, b"\0"), "is no idx file"),
        (idx(0x08, (2, 2), b"")[:9], "ends within its header"),
        (idx(0x08, (2, 2), b"abc"), r"has 15 bytes, but its header \(2 x 2\) asks for 16"),
        (idx(0x08, (2, 2), b"abcde"), "has 17 bytes"),
        (idx(0x08, (2**32 - 1,) * 3, b"abc"), "asks for"),
    ],
)
def test_wrong_idx(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_idx(put(tmp_path, "x.idx", content))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*absent\.gz; the job's paths start at the folder"):
        read_idx(tmp_path / "absent.gz")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_idx(tmp_path)
    with pytest.raises(DataError, match="there is no file"):
        read_npz(tmp_path / "absent.npz", None)
    with pytest.raises(DataError, match="there is no file"):
        read_csv(tmp_path / "absent.csv", (), ",")


@pytest.mark.parametrize(
    "content", [b"no gzip", gzip.compress(bytes(1000))[:-9], gzip.compress(bytes(99))[:15] + b"xx"]
)
def test_damaged_gzip(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"x\.gz is damaged or no gzip file"):
        read_idx(path)


def test_npz(tmp_path: Path) -> None:
    one, many, plain = tmp_path / "one.npz", tmp_path / "many.npz", tmp_path / "x.npy"
    np.savez(one, images=np.arange(6).reshape(2, 3))
    np.savez_compressed(many, images=np.zeros(3), labels=np.ones(4))
    np.save(plain, np.arange(4))
    assert read_npz(one, None).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert read_npz(many, "labels").tolist() == [1, 1, 1, 1]
    assert read_npz(plain, None).tolist() == [0, 1, 2, 3]
    with pytest.raises(DataError, match=r"has no array 'label': images, labels; did you mean 'labels'\?"):
        read_npz(many, "label")
    with pytest.raises(DataError, match="has 2 arrays; say which with array"):
        read_npz(many, None)


def test_npz_is_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, a=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="Arrays of Python objects are not taken"):
        read_npz(path, "a")
    (tmp_path / "pickle.npz").write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(DataError, match="cannot be read as npz"):
        read_npz(tmp_path / "pickle.npz", None)


def test_damaged_npz(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, a=np.arange(100))
    content = path.read_bytes()
    for cut in (0, 10, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:cut])
        with pytest.raises(DataError, match="cannot be read as npz"):
            read_npz(path, None)


CSV = "age, weight,label\n30,70.5,1\n\n41,-2e1,0\n"


@pytest.mark.parametrize("size", [10**15, 10**22])
def test_an_array_that_says_it_is_enormous(tmp_path: Path, size: int) -> None:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({size},), }}".encode().ljust(117) + b"\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64))
    with pytest.raises(DataError, match="cannot be read as npz"):
        read_npz(tmp_path / "x.npy", None)


def test_csv(tmp_path: Path) -> None:
    path = put(tmp_path, "x.csv", CSV.encode())
    assert read_csv(path, (), ",").tolist() == [[30, 70.5, 1], [41, -20, 0]]
    assert read_csv(path, ("label", "age"), ",").tolist() == [[1, 30], [0, 41]]
    assert read_csv(put(tmp_path, "y.csv.gz", CSV.replace(",", ";").encode()), ("weight",), ";").tolist() == [
        [70.5],
        [-20],
    ]
    assert read_csv(put(tmp_path, "z.csv", b'\xef\xbb\xbf"a"\r\n"1"\r\n'), ("a",), ",").tolist() == [[1]]


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (CSV, ("wieght",), "has no column 'wieght'; did you mean 'weight'?; it has age, weight, label"),
        ("a,a\n1,2\n", ("a",), "has several columns 'a'"),
        (CSV.replace("41", "old"), (), r"x\.csv, line 4, column 'age': the cell is no number"),
        (CSV.replace("41", " "), (), "line 4, column 'age': the cell is empty"),
        (CSV.replace("41,", ""), (), "line 4: 2 columns, but the header has 3"),
        ("1,2\n3,4\n", (), "line 1: only numbers; a csv file starts with a line of column names"),
        ("", (), "is empty"),
        ('a\n"1\n', (), "line 2: unexpected end of data"),
    ],
)
def test_wrong_csv(tmp_path: Path, text: str, columns: tuple[str, ...], message: str) -> None:
    with pytest.raises(DataError) as error:
        read_csv(put(tmp_path, "x.csv", text.encode()), columns, ",")
    assert message.replace("\\", "") in str(error.value)


def test_a_bad_cell_elsewhere_does_not_matter_and_is_never_shown(tmp_path: Path) -> None:
    path = put(tmp_path, "x.csv", CSV.replace("41", "secret41").encode())
    assert read_csv(path, ("label",), ",").tolist() == [[1], [0]]
    with pytest.raises(DataError) as error:
        read_csv(path, ("age",), ",")
    assert "secret" not in str(error.value)


def test_csv_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not text in UTF-8"):
        read_csv(put(tmp_path, "x.csv", b"a\n\xff\n"), (), ",")
