"""The folder: whatever happens between two file operations, the last complete checkpoint is there and whole."""

from __future__ import annotations

import os
import resource
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpcpipe.checkpoint.key import read_key
from mpcpipe.checkpoint.store import Store, identity_of
from mpcpipe.errors import CheckpointError, JobError
from tests.checkpoint.shards import KEY, same, shard
from tests.fleet import STARTS

OLD, NEW = shard(step=10), shard(step=20)


def save(folder: Path, key: bytes | None, which: Any) -> None:
    """What a party does with one checkpoint."""
    store = Store(folder, key)
    store.write(which)
    store.mark(identity_of(which), ["alice", "bob", "carol"])
    store.prune([identity_of(which)])
    store.close()


def in_a_child(work: Callable[..., None], *arguments: object) -> int | None:
    """The exit code of a process that does `work`; minus the signal that killed it."""
    child = STARTS.Process(target=work, args=arguments)
    child.start()
    child.join(60)
    return child.exitcode


def killed_saving(folder: Path, key: bytes | None, operation: int) -> None:
    """Save the new one; this process is killed just before its n-th operation on files (from 0)."""
    left = [operation]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return function(*arguments, **named)

        return wrapped

    for name in ("open", "fsync", "replace", "unlink", "fdopen"):
        setattr(os, name, counted(getattr(os, name)))
    save(folder, key, NEW)
    os._exit(0)


def saving_on_a_full_disk(folder: Path, said: Path) -> None:
    """Save a large one where no file may have more than 4096 bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        save(folder, None, shard(step=20, numel=100_000))
    except CheckpointError as error:
        said.write_text(str(error))


def killed_before_each(place: Path, key: bytes | None) -> None:
    """For each file operation of a checkpoint: a process that is killed just before it, and what is there then."""
    operation, killed = 0, True
    states = set()
    while killed:
        folder = place / str(operation)
        save(folder, key, OLD)
        child = os.fork()
        if not child:
            killed_saving(folder, key, operation)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL)
        killed = code != 0
        store = Store(folder, key)
        there, complete = list(store.shards()), store.complete()
        states.add((tuple(there), tuple(complete)))
        assert all(same(store.read(found), {10: OLD, 20: NEW}[found[0]]) for found in there)
        assert complete, "the old one's marker goes after the new one's has come"
        assert complete[0] in there
        assert not list(folder.glob("*.draft")), "a killed run's drafts go when the next one begins"
        store.close()
        operation += 1
    old, new = identity_of(OLD), identity_of(NEW)
    assert operation > 12
    assert states >= {((old,), (old,)), ((new, old), (old,)), ((new, old), (new, old)), ((new,), (new,))}


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
def test_killed_before_any_file_operation_nothing_is_lost(tmp_path: Path, key: bytes | None) -> None:
    assert in_a_child(killed_before_each, tmp_path, key) == 0, "the child's traceback is on the standard error"


def test_a_full_disk_leaves_the_last_one(tmp_path: Path) -> None:
    save(tmp_path, None, OLD)
    said = tmp_path / "said"
    assert in_a_child(saving_on_a_full_disk, tmp_path, said) == 0
    assert "cannot be kept" in said.read_text() and "The last complete one is untouched" in said.read_text()
    store = Store(tmp_path)
    assert list(store.shards()) == [identity_of(OLD)] and not list(tmp_path.glob("*.draft"))
    assert same(store.read(identity_of(OLD)), OLD)
    store.close()


def test_only_the_owner_can_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        save(tmp_path / "a", None, NEW)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    files = list((tmp_path / "a").iterdir())
    assert len(files) == 3 and {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_one_run_at_a_time(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(CheckpointError, match="another run uses"):
        Store(tmp_path)
    store.close()
    Store(tmp_path).close()


def test_a_renamed_file_is_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, None, NEW)
    store = Store(tmp_path)
    (path,) = store.shards().values()
    path.rename(path.with_name(path.name.replace("20", "30")))
    (identity,) = store.shards()
    with pytest.raises(CheckpointError, match="renamed"):
        store.read(identity)
    store.close()


def test_a_key_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    for content in (KEY, KEY.hex().encode(), KEY.hex().upper().encode() + b"\n"):
        path.write_bytes(content)
        path.chmod(0o600)
        assert read_key(path) == KEY
    for mode in (0o640, 0o604, 0o660):
        path.chmod(mode)
        with pytest.raises(JobError, match=rf"others than its owner may read .* \(mode {mode:o}\): chmod 600"):
            read_key(path)
    path.chmod(0o600)
    for content in (b"", KEY[:31], KEY.hex().encode()[:-2], b"g" * 64, b"\xff" * 64, bytes(5000)):
        path.write_bytes(content)
        with pytest.raises(JobError, match="is no key"):
            read_key(path)
    with pytest.raises(JobError, match="cannot be read: No such file"):
        read_key(tmp_path / "none")
    with pytest.raises(JobError, match="no ordinary file"):
        read_key(tmp_path)
