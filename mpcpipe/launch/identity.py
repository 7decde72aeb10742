"""A party's certificate and key as files: making them, and finding those that a job means."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpcpipe.errors import AuthError, JobError, UsageError
from mpcpipe.job.schema import Job
from mpcpipe.link.identity import Identity, create, fingerprint, load, load_certificate
from mpcpipe.link.secure import link_description


@dataclass(frozen=True)
class KeyFiles:
    """Where a party's certificate and private key are."""

    certificate: Path
    key: Path

    @classmethod
    def of(cls, folder: Path | str, name: str) -> KeyFiles:
        """Those of the party `name`."""
        return cls(Path(folder, f"{name}.crt"), Path(folder, f"{name}.key"))


def new(name: str, folder: Path) -> tuple[KeyFiles, str]:
    """Make a certificate and a private key for the party `name` in `folder`; returns the files and the fingerprint.

    The key is readable by its owner only, from the first moment. UsageError if one of the files exists, or cannot be
    written; then nothing is left.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        raise UsageError(f"keys new {name!r}: a party's name is letters, digits, - and _, a letter first")
    files = KeyFiles.of(folder, name)
    for file in (files.key, files.certificate):
        if file.exists():
            raise _exists(file)
    certificate, key = create(name)
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content, mode in ((files.key, key, 0o600), (files.certificate, certificate, 0o644)):
            _write(file, content, mode)
            written.append(file)
    except OSError as error:
        for file in written:
            file.unlink(missing_ok=True)
        if isinstance(error, FileExistsError):
            raise _exists(Path(error.filename2 or error.filename)) from error
        raise UsageError(f"keys new {name}: {folder} cannot be written: {error.strerror}") from error
    return files, fingerprint(load_certificate(str(files.certificate)))


def show(file: Path) -> str:
    """The fingerprint of a certificate file. JobError if it holds none."""
    return fingerprint(load_certificate(str(file)))


def identity_of(job: Job, party: int) -> tuple[Identity | None, tuple[str, ...]]:
    """`identity` and `pins` for `mpcpipe.link.mesh.connect`; (None, ()) if the job has no fingerprints.

    JobError if a file is missing or unfit, AuthError if this party's certificate is another than the job's.
    """
    names, pins = job.parties.names, job.parties.fingerprints
    if not pins:
        return None, ()
    files = KeyFiles.of(job.parties.keys, names[party])
    if not files.certificate.exists() or not files.key.exists():
        missing = files.key if files.certificate.exists() else files.certificate
        raise JobError(
            f"parties.fingerprints asks for TLS, and {names[party]} has no {missing}: "
            f"`mpcpipe keys new {names[party]}` makes certificate and key; parties.keys says in which folder they are"
        )
    identity = load(str(files.certificate), str(files.key))
    if identity.fingerprint != pins[party]:
        raise AuthError(
            f"parties.fingerprints[{party}] is {pins[party]}, but {files.certificate} has {identity.fingerprint}: "
            "put it into the jobs of all parties"
        )
    return identity, pins


def protection(job: Job, hosts: Sequence[str]) -> str:
    """How the links of a job's parties at these hosts are protected, for banner and report."""
    return link_description(hosts, bool(job.parties.fingerprints))


def _exists(file: Path) -> UsageError:
    return UsageError(f"{file} exists and is not overwritten: others may rely on it. Move it away, or say --dir")


def _write(file: Path, content: bytes, mode: int) -> None:
    """All of it or nothing, and never over a file that is there."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(descriptor)
        os.link(draft, file)
    finally:
        draft.unlink()
