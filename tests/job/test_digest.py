"""Agreement, by reflection over the schema: every public key counts, those of tomorrow too, and no private one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpcpipe.job.digest import agreement, digest, first_difference
from mpcpipe.job.schema import Job
from tests.job.jobs import ROWS, TEXT, written

PRIVATE = {
    *("parties.hosts", "parties.keys", "checkpoint.keep", "checkpoint.dir", "checkpoint.key_file"),
    *("run.output", "run.connect_s", "run.deadline_s", "run.threads", "pipeline.file", "link.rate"),
    *("protocol.store", "services.use", "services.options", "services.kernels"),
    *(f"services.power.{name}" for name in ("policy", "device", "cap_w", "deadline_s")),
    *(f"data.{what}.{name}" for what in ("features", "labels") for name in (
        "source", "path", "array", "columns", "column", "delimiter", "seed", "args",
    )),
}  # fmt: skip


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All keys of a job, public and private, with their values."""
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        full = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(inner):
            yield from leaves(inner, f"{full}.")
        elif not isinstance(inner, tuple) or not inner or not dataclasses.is_dataclass(inner[0]):
            yield full, inner


def changed(value: Any, key: str) -> Any:
    """A copy in which the key has another value."""
    name, _, rest = key.partition(".")
    inner = getattr(value, name)
    if rest:
        return dataclasses.replace(value, **{name: changed(inner, rest)})
    if isinstance(inner, bool):
        other: Any = not inner
    elif isinstance(inner, int | float):
        other = inner + 1
    elif isinstance(inner, tuple):
        other = (*inner, 7)
    elif isinstance(inner, dict):
        other = {**inner, "more": 1}
    else:
        other = f"{inner}x"
    return dataclasses.replace(value, **{name: other})


def keys() -> list[str]:
    """Of a job with columns: the test below makes one."""
    import tomllib

    from mpcpipe.job.load import from_dict

    return [key for key, _ in leaves(from_dict(tomllib.loads(TEXT)))]


@pytest.mark.parametrize("key", keys())
def test_every_public_key_is_agreed_on_and_no_private_one(tmp_path: Path, key: str) -> None:
    job = written(tmp_path)
    ours, theirs = agreement(job), agreement(changed(job, key))
    if key in PRIVATE:
        assert key not in ours and ours == theirs
    else:
        found = first_difference(ours, theirs)
        assert found is not None and found[0] == key and found[1] != found[2]
        assert digest(ours) != digest(theirs)


def test_private_keys_exist() -> None:
    assert set(keys()) >= PRIVATE


def test_rows_are_agreed_on(tmp_path: Path) -> None:
    ours = agreement(written(tmp_path, ROWS))
    assert (
        ours["data.rows"] == "2" and ours["data.rows[1].train"] == "[0, 30]" and ours["data.rows[0].owner"] == '"alice"'
    )
    assert not [key for key in ours if key.endswith((".source", ".path"))]
    theirs = agreement(written(tmp_path, ROWS.replace("train = [0, 30]", "train = [0, 31]")))
    assert first_difference(ours, theirs) == ("data.rows[1].train", "[0, 30]", "[0, 31]")


def test_the_folder_of_a_model_file_is_private(tmp_path: Path) -> None:
    text = TEXT.replace('zoo = "digits_mlp"', 'module = "net.py:build"')
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert agreement(written(tmp_path / "a", text)) == agreement(written(tmp_path / "b", text))
    assert agreement(written(tmp_path / "a", text))["model.module"] == '"net.py:build"'


def test_values_are_canonical(tmp_path: Path) -> None:
    one = written(tmp_path, TEXT, "model.zoo='lenet'", "train.learning_rate=1")
    other = written(tmp_path, TEXT, "model.zoo='lenet'", "train.learning_rate=1.0")
    assert agreement(one) == agreement(other)
    first = dataclasses.replace(one, model=dataclasses.replace(one.model, args={"a": 1, "b": 2}))
    second = dataclasses.replace(one, model=dataclasses.replace(one.model, args={"b": 2, "a": 1}))
    assert digest(agreement(first)) == digest(agreement(second))


def test_a_key_that_one_party_lacks() -> None:
    assert first_difference({"a": "1"}, {"a": "1", "b": "2"}) == ("b", None, "2")
    assert first_difference({"a": "1", "b": "2"}, {"a": "1"}) == ("b", "2", None)
    assert first_difference({"a": "1", "b": "2"}, {"b": "2", "a": "1"}) is None
    assert digest({"a": "1", "b": "2"}) == digest({"b": "2", "a": "1"})


def test_job_is_all_tables() -> None:
    assert all(dataclasses.is_dataclass(kind) or kind for kind in (field.type for field in dataclasses.fields(Job)))
