"""A checkpoint comes back bit for bit, or not at all: plain and sealed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mpcpipe.checkpoint import sealed
from mpcpipe.checkpoint.shard import check_owner, read
from mpcpipe.errors import CheckpointError
from tests.checkpoint.shards import JOB, KEY, same, shard

KEYS = [None, KEY]


def written(path: Path, key: bytes | None, numel: int = 6) -> bytes:
    with path.open("wb") as file:
        shard(numel=numel).write(file, key)
    return path.read_bytes()


@pytest.mark.parametrize("key", KEYS, ids=["plain", "sealed"])
@pytest.mark.parametrize("chunk", [16, 100, sealed.CHUNK_BYTES])
def test_it_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: bytes | None, chunk: int) -> None:
    monkeypatch.setattr(sealed, "CHUNK_BYTES", chunk)
    written(tmp_path / "a", key)
    assert same(read(tmp_path / "a", key), shard())


def test_a_plain_one_is_read_by_the_safetensors_library(tmp_path: Path) -> None:
    written(tmp_path / "a", None)
    found = load_file(tmp_path / "a")
    assert found.keys() == shard().tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in shard().tensors.items())


@pytest.mark.parametrize("key", KEYS, ids=["plain", "sealed"])
def test_cut_off_at_any_byte_or_longer_it_is_refused(tmp_path: Path, key: bytes | None) -> None:
    content = written(tmp_path / "a", key)
    for size in range(len(content)):
        (tmp_path / "b").write_bytes(content[:size])
        with pytest.raises(CheckpointError, match="b cannot be used"):
            read(tmp_path / "b", key)
    (tmp_path / "b").write_bytes(content + b"\0")
    with pytest.raises(CheckpointError):
        read(tmp_path / "b", key)


@pytest.mark.parametrize("key", KEYS, ids=["plain", "sealed"])
def test_any_byte_changed_it_is_refused_or_means_the_same(tmp_path: Path, key: bytes | None) -> None:
    content = written(tmp_path / "a", key)
    refused = 0
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        (tmp_path / "b").write_bytes(changed)
        try:
            found = read(tmp_path / "b", key)
        except CheckpointError:
            refused += 1
        else:  # a space of the header's padding, say
            assert key is None and same(found, shard())
    assert refused == len(content) if key else refused > 0.95 * len(content)


def test_chunks_cannot_be_moved_left_out_or_exchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "CHUNK_BYTES", 64)
    content, other = (written(tmp_path / "a", KEY) for _ in range(2))
    with (tmp_path / "a").open("rb") as file:
        sealed.read_header(file)
        start = file.tell()
    size = 64 + sealed.TAG_BYTES
    chunks = [content[place : place + size] for place in range(start, len(content), size)]
    foreign = other[start : start + size]
    assert len(chunks) > 10
    for wrong in (
        chunks[:-1],
        chunks[1:],
        [chunks[1], chunks[0], *chunks[2:]],
        [*chunks, chunks[-1]],
        [foreign, *chunks[1:]],
        [*chunks[:3], *chunks[4:]],
    ):
        (tmp_path / "b").write_bytes(content[:start] + b"".join(wrong))
        with pytest.raises(CheckpointError):
            read(tmp_path / "b", KEY)


def test_sealed_says_nothing_but_its_header_and_never_twice_the_same(tmp_path: Path) -> None:
    one, other = (written(tmp_path / "a", KEY, numel=600) for _ in range(2))
    with (tmp_path / "a").open("rb") as file:
        header, _ = sealed.read_header(file)
        start = file.tell()
    assert header.keys() == {"step", "session", "party", "job", "salt"}
    assert one[start:] != other[start:]
    for plain in (
        b"model/0.weight",
        b"batch_size",
        b"losses",
        shard(numel=600).tensors["model/0.weight"].numpy().tobytes()[:16],
    ):
        assert plain not in one


def test_without_its_key_it_does_not_open(tmp_path: Path) -> None:
    written(tmp_path / "a", KEY)
    with pytest.raises(CheckpointError, match=r"encrypted, and the job has no checkpoint\.key_file"):
        read(tmp_path / "a", None)
    written(tmp_path / "b", None)
    with pytest.raises(CheckpointError, match="it is not encrypted, and the job has"):
        read(tmp_path / "b", KEY)
    with pytest.raises(CheckpointError, match="another key"):
        read(tmp_path / "a", bytes(32))


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"a":' * 20_000,
        b'{"a":{"dtype":"I64","shape":[0,%d,%d],"data_offsets":[0,0]}}' % (2**62, 2**62),
    ],
    ids=["deep", "deeper", "wide"],
)
def test_headers_that_no_program_wrote(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "a").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointError, match="its header is no table of tensors"):
        read(tmp_path / "a", None)


def test_whose_it_is_and_of_which_job() -> None:
    record = shard().record
    check_owner(record, "alice", JOB, Path("x"))
    with pytest.raises(CheckpointError, match="is alice's, and this party is bob"):
        check_owner(record, "bob", JOB, Path("x"))
    with pytest.raises(CheckpointError, match=r"train\.batch_size was 16, here it is 32"):
        check_owner(record, "alice", JOB | {"train.batch_size": "32"}, Path("x"))
    with pytest.raises(CheckpointError, match=r"reveal\.extra was absent, here it is true"):
        check_owner(record, "alice", JOB | {"reveal.extra": "true"}, Path("x"))
