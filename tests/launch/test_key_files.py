"""`mpcpipe keys`, its files, and the identity that a job means."""

from __future__ import annotations

import dataclasses
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from mpcpipe.cli.keys import keys
from mpcpipe.errors import AuthError, JobError, UsageError
from mpcpipe.job.schema import Job
from mpcpipe.launch import identity
from mpcpipe.launch.identity import identity_of, protection
from tests.job.jobs import written

NAMES = ("alice", "bob", "carol")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(keys, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def pinned(folder: Path) -> Job:
    """A job in `folder`, with keys beside it for all three."""
    pins = tuple(identity.new(name, folder)[1] for name in NAMES)
    job = written(folder)
    return dataclasses.replace(job, parties=dataclasses.replace(job.parties, fingerprints=pins))


def test_new_makes_two_files_and_says_what_goes_into_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    said = run("new", "alice", "--dir", str(folder)).splitlines()
    assert sorted(os.listdir(folder)) == ["alice.crt", "alice.key"]
    assert stat.S_IMODE((folder / "alice.key").stat().st_mode) == 0o600
    shown = run("show", str(folder / "alice.crt")).strip()
    assert shown in said and f'fingerprints = [..., "{shown}", ...]' in said and f'keys = "{folder}"' in said
    assert "PRIVATE" not in "".join(said)


@pytest.mark.parametrize("there", ["alice.crt", "alice.key"])
def test_new_never_overwrites(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("precious")
    with pytest.raises(UsageError, match=rf"{there} exists and is not overwritten"):
        run("new", "alice", "--dir", str(tmp_path))
    assert os.listdir(tmp_path) == [there] and (tmp_path / there).read_text() == "precious"


def test_new_leaves_nothing_behind_when_it_fails_or_loses_a_race(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def late(draft: Path, file: Path) -> None:
        if file.suffix == ".crt":
            file.write_text("precious")
        link(draft, file)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(UsageError, match=r"alice\.crt exists and is not overwritten"):
        identity.new("alice", tmp_path)
    assert os.listdir(tmp_path) == ["alice.crt"] and (tmp_path / "alice.crt").read_text() == "precious"

    def full(draft: Path, file: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(UsageError, match=r"keys new bob: .* cannot be written: No space left"):
        identity.new("bob", tmp_path)
    assert os.listdir(tmp_path) == ["alice.crt"]


@pytest.mark.parametrize("name", ["../alice", "", "1st", "a/b", "al ice"])
def test_a_name_that_no_party_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="a party's name is letters"):
        run("new", name, "--dir", str(tmp_path))


def test_show_names_what_is_no_certificate(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    with pytest.raises(JobError, match="holds no certificate"):
        run("show", str(tmp_path / "x"))


def test_the_identity_of_each_party(tmp_path: Path) -> None:
    job = pinned(tmp_path)
    for party in range(3):
        found, pins = identity_of(job, party)
        assert found is not None and pins == job.parties.fingerprints and found.fingerprint == pins[party]
    assert protection(job, ["10.0.0.1"]) == "TLS 1.3, mutual, pinned"


def test_a_job_without_fingerprints_has_none(tmp_path: Path) -> None:
    job = written(tmp_path)
    assert identity_of(job, 0) == (None, ())
    assert protection(job, ["localhost", "::1", "127.0.0.2"]) == "plaintext (loopback)"
    assert protection(job, ["10.0.0.1", "::1", "127.0.0.1"]) == "PLAINTEXT"


def test_an_identity_that_is_missing_or_another(tmp_path: Path) -> None:
    job = pinned(tmp_path)
    pins = job.parties.fingerprints
    turned = dataclasses.replace(job, parties=dataclasses.replace(job.parties, fingerprints=pins[1:] + pins[:1]))
    with pytest.raises(AuthError, match=rf"fingerprints\[0\] is {pins[1]}, but .*alice\.crt has {pins[0]}"):
        identity_of(turned, 0)
    (tmp_path / "bob.key").unlink()
    with pytest.raises(JobError, match=r"bob has no .*bob\.key: `mpcpipe keys new bob`.*parties\.keys"):
        identity_of(job, 1)
    (tmp_path / "carol.crt").unlink()
    with pytest.raises(JobError, match=r"carol has no .*carol\.crt"):
        identity_of(job, 2)
