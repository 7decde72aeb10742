"""Records of corrections open at their place only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mpcpipe.dealt.links import FromStore, IntoStore
from mpcpipe.dealt.records import MAGIC, Reader, Writer, check_file, file_of
from mpcpipe.errors import LinkError, StoreError
from mpcpipe.link.base import Mesh, Part

KEY, STORE = bytes(range(32)), "ab" * 16
ROUNDS = {
    "a": [torch.tensor([1, -2, 3])],
    "b+c": [torch.tensor([7, 8, 9], dtype=torch.uint8), torch.tensor([5]), torch.tensor([-1, 1], dtype=torch.int32)],
    "d": [torch.empty(0, dtype=torch.int64), torch.tensor([4])],
}
EXPECTED = {label: [Part(part.dtype, part.numel()) for part in parts] for label, parts in ROUNDS.items()}


def written(folder: Path, worker: int = 0, store: str = STORE) -> Writer:
    writer = Writer(folder, worker, KEY, store)
    for label, parts in ROUNDS.items():
        writer.write(label, parts)
    writer.finish()
    return writer


def read_all(folder: Path, worker: int = 0, store: str = STORE) -> None:
    reader = Reader(folder, worker, KEY, store, len(ROUNDS))
    try:
        for label, parts in ROUNDS.items():
            got = reader.read(label, EXPECTED[label])
            assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(got, parts, strict=True))
    finally:
        reader.close()


def test_what_was_written_is_read_and_for_its_user_only(tmp_path: Path) -> None:
    writer = written(tmp_path)
    path = file_of(tmp_path, 0)
    assert path.stat().st_mode & 0o777 == 0o600
    assert (writer.records, writer.nbytes) == (len(ROUNDS), path.stat().st_size)
    check_file(tmp_path, 0, writer.nbytes)
    read_all(tmp_path)
    assert ROUNDS["a"][0].numpy().tobytes() not in path.read_bytes()


def test_a_changed_byte_anywhere_is_noticed_before_its_use(tmp_path: Path) -> None:
    written(tmp_path)
    path = file_of(tmp_path, 0)
    whole = path.read_bytes()
    for position in range(len(MAGIC), len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 0x10
        path.write_bytes(changed)
        with pytest.raises(StoreError, match=r"is damaged: its record \d of 3 is not what the dealer wrote"):
            read_all(tmp_path)


def test_a_file_that_is_cut_off_or_missing_is_noticed_at_the_start(tmp_path: Path) -> None:
    nbytes = written(tmp_path).nbytes
    path = file_of(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match=f"has {nbytes - 1} bytes, and the dealer wrote {nbytes}"):
        check_file(tmp_path, 0, nbytes)
    path.unlink()
    with pytest.raises(StoreError, match=r"lacks 0\.dealt"):
        check_file(tmp_path, 0, nbytes)


def test_records_of_another_round_worker_or_store_do_not_open(tmp_path: Path) -> None:
    written(tmp_path)
    reader = Reader(tmp_path, 0, KEY, STORE, 3)
    with pytest.raises(StoreError, match="wrote for 'other'"):
        reader.read("other", EXPECTED["a"])
    reader.close()
    for worker, store in ((1, STORE), (0, "cd" * 16)):
        file_of(tmp_path, worker).write_bytes(file_of(tmp_path, 0).read_bytes())
        with pytest.raises(StoreError, match="is damaged"):
            read_all(tmp_path, worker, store)


def test_nothing_is_read_of_a_length_that_is_not_expected(tmp_path: Path) -> None:
    written(tmp_path)
    path = file_of(tmp_path, 0)
    huge = bytearray(path.read_bytes())
    huge[len(MAGIC) : len(MAGIC) + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(huge)
    with pytest.raises(StoreError, match="record 1 of 3"):
        read_all(tmp_path)


def test_a_store_runs_dry(tmp_path: Path) -> None:
    written(tmp_path)
    reader = Reader(tmp_path, 0, KEY, STORE, len(ROUNDS))
    for label in ROUNDS:
        reader.read(label, EXPECTED[label])
    with pytest.raises(StoreError, match="has run dry at 'step 9'"):
        reader.read("step 9", EXPECTED["a"])
    reader.close()


def test_links_to_a_dealer_that_is_not_there(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 0, KEY, STORE)
    dealer = Mesh(2, 3, {0: IntoStore(0, None), 1: IntoStore(1, writer)})
    for label, parts in ROUNDS.items():
        dealer.send(label, {1: parts})
    with pytest.raises(LinkError, match="gets no corrections"):
        dealer.send("x", {0: [torch.tensor([1])]})
    with pytest.raises(LinkError, match="cannot come to a dealer"):
        dealer.receive("x", {1: [Part(torch.int64, 1)]})
    writer.finish()
    party = Mesh(1, 3, {2: FromStore(2, Reader(tmp_path, 0, KEY, STORE, writer.records))})
    for label, parts in ROUNDS.items():
        got = party.receive(label, {2: EXPECTED[label]})[2]
        assert all(torch.equal(a, b) for a, b in zip(got, parts, strict=True))
    assert party.clock == 0, "what lies on disk depends on no message"
    with pytest.raises(LinkError, match="cannot be sent to the dealer"):
        party.send("x", {2: [torch.tensor([1])]})
    with pytest.raises(LinkError, match="not in this party's part"):
        FromStore(2, None).receive("x", [Part(torch.int64, 1)])
    party.close()
