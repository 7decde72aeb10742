"""Batches and owners: every row once, in the same public order at all parties, and read by nobody but its owner."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mpcpipe.data import sources
from mpcpipe.data.arrays import Array
from mpcpipe.data.batches import Batch, Batches, permutation
from mpcpipe.data.owners import Owner, in_the_clear
from mpcpipe.errors import DataError
from tests.job.jobs import ROWS, TEXT, written


def order(batch: Batch, part_sizes: tuple[int, ...] = (10_000,)) -> list[int]:
    """The batch's rows as numbers over all parts, in the batch's order."""
    starts = [sum(part_sizes[:i]) for i in range(len(part_sizes))]
    rows = torch.cat([piece.rows + starts[piece.part] for piece in batch.features])
    return (rows if batch.order is None else rows[batch.order]).tolist()


def test_permutations() -> None:
    one = permutation("epoch 0", 1, 1000)
    assert sorted(one.tolist()) == list(range(1000)) and torch.equal(one, permutation("epoch 0", 1, 1000))
    others = [permutation("epoch 1", 1, 1000), permutation("epoch 0", 2, 1000)]
    # Two random orders agree in about one place of all.
    assert all((one == other).sum() < 10 for other in others)


def test_a_permutation_is_that_of_its_definition() -> None:
    import hashlib

    stream = hashlib.shake_256(b"epoch 3|7|5").digest(40)
    words = [int.from_bytes(stream[i : i + 8], "little", signed=True) for i in range(0, 40, 8)]
    assert permutation("epoch 3", 7, 5).tolist() == sorted(range(5), key=words.__getitem__)


def test_columns(tmp_path: Path) -> None:
    batches = Batches(written(tmp_path, TEXT, "data.train=[5, 96]"))
    assert (batches.train_rows, batches.test_rows, batches.steps_per_epoch, batches.steps) == (91, 32, 2, 4)
    epochs = [[row for batch in batches.epoch(e) for row in order(batch)] for e in (0, 1)]
    for rows in epochs:
        assert len(set(rows)) == len(rows) == 64 and min(rows) >= 5 and max(rows) < 96
    assert epochs[0] != epochs[1]
    for batch in batches.epoch(0):
        (x,), (y,) = batch.features, batch.labels
        assert (batch.size, x.owner, y.owner, batch.order) == (32, 0, 1, None) and torch.equal(x.rows, y.rows)


def test_the_rest_of_an_epoch_is_dropped_in_training_and_kept_in_tests(tmp_path: Path) -> None:
    batches = Batches(written(tmp_path, TEXT, "data.train=[0, 95]", "train.batch_size=30"))
    assert [batch.size for batch in batches.epoch(0)] == [30, 30, 30]
    assert [batch.size for batch in batches.test()] == [30, 2]
    assert [row for batch in batches.test() for row in order(batch)] == list(range(96, 128))
    small = Batches(written(tmp_path, TEXT, "evaluate.batch_size=20"))
    assert [batch.size for batch in small.test()] == [20, 12]


def test_training_goes_through_the_epochs_and_stops_at_steps(tmp_path: Path) -> None:
    steps = list(Batches(written(tmp_path)).training())
    assert [(step, epoch) for step, epoch, _ in steps] == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1)]
    early = list(Batches(written(tmp_path, TEXT, "train.steps=4")).training())
    assert [order(batch) for *_, batch in early] == [order(batch) for *_, batch in steps[:4]]
    assert Batches(written(tmp_path, TEXT, "train.steps=100")).steps == 6


def test_the_seed_is_that_of_the_job(tmp_path: Path) -> None:
    first, same, other = (
        [order(batch) for batch in Batches(written(tmp_path, TEXT, f"train.seed={seed}")).epoch(0)]
        for seed in (1, 1, 2)
    )
    assert first == same != other


def test_rows_of_several_owners(tmp_path: Path) -> None:
    batches = Batches(written(tmp_path, ROWS))
    assert (batches.train_rows, batches.test_rows, batches.steps_per_epoch) == (80, 10, 5)
    seen: list[tuple[int, int]] = []
    for batch in batches.epoch(0):
        for x, y in zip(batch.features, batch.labels, strict=True):
            assert x.owner == y.owner == (0, 2)[x.part] and torch.equal(x.rows, y.rows)
            seen += [(x.part, row) for row in x.rows.tolist()]
        assert batch.size == 16 == sum(len(piece.rows) for piece in batch.features)
    assert sorted(seen) == [(0, row) for row in range(10, 60)] + [(1, row) for row in range(30)]


def test_order_mixes_the_owners_as_the_epoch_does(tmp_path: Path) -> None:
    batches = Batches(written(tmp_path, ROWS))
    # Numbers of the plan: 0 to 49 are alice's rows 10 to 59, 50 to 79 carol's 0 to 29.
    plan = [n + 10 if n < 50 else 1000 + n - 50 for n in permutation("epoch 0", 1, 80).tolist()]
    assert [row for batch in batches.epoch(0) for row in order(batch, (1000, 30))] == plan


def test_rows_shared_once(tmp_path: Path) -> None:
    for text in (TEXT, ROWS):
        batches = Batches(written(tmp_path, text))
        sizes = (1000, 30)
        everything = [row for batch in batches.everything() for row in order(batch, sizes)]
        assert len(everything) == batches.train_rows
        for index, batch in zip(batches.index(1), batches.epoch(1), strict=True):
            assert [everything[i] for i in index.tolist()] == order(batch, sizes)


def test_shuffle_mixes_rows_before_test_rows_are_cut(tmp_path: Path) -> None:
    batches = Batches(written(tmp_path, TEXT, "data.shuffle=3"))
    train = [row for batch in batches.everything() for row in order(batch)]
    test = [row for batch in batches.test() for row in order(batch)]
    assert sorted(train + test) == list(range(128)) and test != list(range(96, 128)) and max(train) > 96
    other = Batches(written(tmp_path, TEXT, "data.shuffle=4"))
    assert test != [row for batch in other.test() for row in order(batch)]


# owners


def stored(folder: Path) -> str:
    """The job with columns, from files of its owners: feature j of row i is i + j / 64, its label i modulo 10."""
    np.save(folder / "x.npy", np.arange(128)[:, None] + np.arange(64) / 64)
    np.save(folder / "y.npy", np.arange(128) % 10)
    text = TEXT.replace('owner = "alice"\nsource = "synthetic"', 'owner = "alice"\nsource = "npz"\npath = "x.npy"')
    return text.replace('owner = "bob"\nsource = "synthetic"', 'owner = "bob"\nsource = "npz"\npath = "y.npy"')


def test_owners_have_their_columns(tmp_path: Path) -> None:
    job = written(tmp_path, stored(tmp_path))
    alice, bob = Owner(job, 0), Owner(job, 1)
    batch = next(Batches(job).epoch(0))
    x, y = alice.features(batch.features[0]), bob.labels(batch.labels[0])
    assert x.shape == (32, 1, 8, 8) and y.shape == (32,)
    assert torch.equal(x[:, 0, 0, 0].long(), batch.features[0].rows) and torch.equal(y, batch.features[0].rows % 10)
    for owner, piece in ((bob, batch.features[0]), (Owner(job, 2), batch.features[0])):
        with pytest.raises(DataError, match="does not have the rows of party 0"):
            owner.features(piece)
    with pytest.raises(DataError, match="does not have the rows"):
        alice.labels(batch.labels[0])


def test_files_are_opened_by_their_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = written(tmp_path, stored(tmp_path))
    opened: list[str] = []
    real = sources.read_npz

    def recorded(path: Path, array: str | None) -> Array:
        opened.append(path.name)
        return real(path, array)

    monkeypatch.setattr(sources, "read_npz", recorded)
    for party, files in ((2, []), (0, ["x.npy"]), (1, ["y.npy"])):
        opened.clear()
        Owner(job, party)
        assert opened == files
    (tmp_path / "x.npy").unlink()
    Owner(job, 1)
    with pytest.raises(DataError, match="there is no file"):
        Owner(job, 0)


def test_the_range_is_that_of_the_protocol(tmp_path: Path) -> None:
    from mpcpipe.errors import RangeError

    text = stored(tmp_path)
    Owner(written(tmp_path, text, "protocol.compare_bits=24"), 0)  # 128 rows: below 2^7
    with pytest.raises(RangeError, match="row 64, column 0: the value is 64 or more"):
        Owner(written(tmp_path, text, "protocol.compare_bits=23"), 0)


def test_no_value_is_left_for_encode_to_refuse_whose_sentence_all_parties_would_get(tmp_path: Path) -> None:
    from mpcpipe.errors import RangeError

    text = stored(tmp_path)
    small = ["protocol.ring_bits=32", "protocol.compare_bits=32", "protocol.fraction_bits=14"]
    small += ["train.loss=mean_squared_error"]
    Owner(written(tmp_path, text, *small, f"data.features.scale={2.0**-9}"), 0)  # the largest is 127 x 2^9
    job = written(tmp_path, text, *small, f"data.features.scale={2.0**-10}")
    assert job.protocol.limit == 2.0**17
    with pytest.raises(RangeError, match="row 64, column 0: the value is 65536 or more"):
        Owner(job, 0)


def test_in_the_clear(tmp_path: Path) -> None:
    job = written(tmp_path, stored(tmp_path))
    owners = [Owner(job, party) for party in range(3)]
    x, y = in_the_clear(owners, next(Batches(job).epoch(0)))
    assert torch.equal(x[:, 0, 0, 0].long() % 10, y)


def test_in_the_clear_with_rows_of_several_owners(tmp_path: Path) -> None:
    job = written(tmp_path, ROWS)
    owners = [Owner(job, party) for party in range(3)]
    batches = Batches(job)
    everything = [
        torch.cat(parts) for parts in zip(*(in_the_clear(owners, b) for b in batches.everything()), strict=True)
    ]
    for index, batch in zip(batches.index(0), batches.epoch(0), strict=True):
        x, y = in_the_clear(owners, batch)
        assert torch.equal(x, everything[0][index]) and torch.equal(y, everything[1][index])
