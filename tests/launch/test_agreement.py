"""One party's job differs in one key, whichever: every party ends with an AgreementError that names the key.

By reflection over the schema, so that a key is covered from the day it is born. Through the real handshake.
"""

from __future__ import annotations

import json
import socket
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mpcpipe
from mpcpipe.errors import AgreementError
from mpcpipe.job.digest import agreement
from mpcpipe.job.load import from_dict
from mpcpipe.job.schema import Job
from mpcpipe.link import handshake
from mpcpipe.link.handshake import Handshake, Hello
from mpcpipe.link.mesh import connect, listen
from mpcpipe.link.message import unpack
from mpcpipe.link.network import Network
from tests import tiny
from tests.job.jobs import ROWS, TEXT
from tests.job.test_digest import PRIVATE, changed, leaves
from tests.running import Run

NAMES = ["alice", "bob", "carol"]


def described(text: str = TEXT) -> Job:
    return from_dict(tomllib.loads(text))


def public_keys() -> list[str]:
    return [key for key, _ in leaves(described()) if key not in PRIVATE]


def agreed(job: Job) -> Mapping[str, str]:
    """What a party says, but what only running the model's code tells."""
    return {"mpcpipe.version": mpcpipe.__version__, **agreement(job)}


def greet(one: Mapping[str, str], other: Mapping[str, str]) -> AgreementError | None:
    """What Alice finds when Bob's greeting, as it is on the wire, comes from another job."""
    alice, bob = Handshake(0, NAMES, 1, one), Handshake(1, NAMES, 1, other)
    alice.meet(Hello.unpack(unpack(bob.hello.pack()[4:]), "bob"))
    return alice.difference()


def test_most_keys_are_public() -> None:
    keys = public_keys()
    assert len(keys) > 40 and {"link.kind", "pipeline.workers", "train.seed", "protocol.name"} <= set(keys)
    assert greet(agreed(described()), agreed(described())) is None


@pytest.mark.parametrize("key", public_keys())
def test_every_public_key_that_differs_is_named(key: str) -> None:
    ours, theirs = described(), changed(described(), key)
    error = greet(agreed(ours), agreed(theirs))
    assert error is not None and error.exit_code == 20
    assert f"alice has {key} = " in str(error) and f"bob has {key} = " in str(error)


@pytest.mark.parametrize("key", sorted(PRIVATE))
def test_no_private_key_is_told(key: str) -> None:
    ours = described()
    assert greet(agreed(ours), agreed(changed(ours, key))) is None
    said = Handshake(0, NAMES, 1, agreed(changed(ours, key))).hello.pack().decode("latin-1")
    assert f'"{key}"' not in said


def test_rows_that_differ_are_named() -> None:
    error = greet(agreed(described(ROWS)), agreed(described(ROWS.replace("train = [0, 30]", "train = [0, 31]"))))
    key = "data.rows[1].train"
    assert error is not None and f"alice has {key} = [0, 30], bob has {key} = [0, 31]" in str(error)


def test_another_version_of_the_handshake_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(handshake, "VERSION", handshake.VERSION + 1)
        newer = Handshake(1, NAMES, 1, {}).hello.pack()[4:]
    with pytest.raises(AgreementError, match=rf"^bob greets in version {handshake.VERSION + 1} .*same mpcpipe"):
        Hello.unpack(unpack(newer), "bob")
    older = json.loads(newer)
    del older["version"]
    with pytest.raises(AgreementError, match=r"^bob greets in version 1 "):
        Hello.unpack(older, "bob")


def test_every_party_ends_so_over_real_connections() -> None:
    """The same with sockets: all three learn of it, Alice and Bob, whose keys differ, and Carol, who has Alice's."""
    listeners = [listen(("127.0.0.1", 0)) for _ in NAMES]
    addresses = [listener.getsockname()[:2] for listener in listeners]
    jobs = [described(), changed(described(), "train.learning_rate"), described()]

    def one(number: int) -> Network | Exception:
        mine = {"agreement": agreed(jobs[number]), "listener": listeners[number]}
        try:
            return connect(number, addresses, names=NAMES, deadline_s=20, **mine)
        except Exception as error:
            return error

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(one, range(3)))
    assert all(isinstance(error, AgreementError) and "train.learning_rate" in str(error) for error in found), found


def test_another_version_of_mpcpipe_is_named(tmp_path: Path) -> None:
    """The real command, three parties by hand, one of which is newer."""
    tiny.columns(tmp_path)
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "sitecustomize.py").write_text('import mpcpipe\nmpcpipe.__version__ = "9.9"\n')
    ports = []
    for _ in NAMES:
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports.append(free.getsockname()[1])
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    runs = [
        Run(tmp_path, "train", "job.toml", "--party", name, "--hosts", hosts, path=[newer] if name == "bob" else [])
        for name in NAMES
    ]
    try:
        for run in runs:
            assert run.finish() == 20, run.story()
            assert "bob has mpcpipe.version = 9.9" in run.err, run.story()
            assert f" has mpcpipe.version = {mpcpipe.__version__}" in run.err, run.story()
    finally:
        for run in runs:
            run.close()
