"""Certificates and keys: what a new one is, and what is refused with which sentence."""

import hashlib
import os
import pathlib
import ssl
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from link_parties import new_identity

from mpcpipe.errors import AuthError, JobError
from mpcpipe.link.identity import check_time, create, fingerprint, load, load_certificate


def test_a_new_certificate() -> None:
    now = datetime(2030, 5, 1, 12, tzinfo=UTC)
    pem, key = create("alice", now)
    made = x509.load_pem_x509_certificate(pem)
    assert made.subject == made.issuer and made.subject.rfc4514_string() == "CN=alice"
    assert made.not_valid_before_utc == now - timedelta(days=1)
    assert made.not_valid_after_utc == now + timedelta(days=730)
    made.verify_directly_issued_by(made)
    assert key.startswith(b"-----BEGIN PRIVATE KEY-----") and create("alice", now)[1] != key


def test_a_fingerprint_is_the_sha_256_that_other_programs_print(tmp_path: pathlib.Path) -> None:
    made = new_identity(tmp_path, "alice")
    pem = pathlib.Path(made.certificate_file).read_text()
    assert made.fingerprint == "sha256:" + hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    assert made.fingerprint == fingerprint(load_certificate(made.certificate_file))
    assert repr(made) == f"Identity({made.fingerprint})"


def test_a_fingerprint_is_openssls(tmp_path: pathlib.Path) -> None:
    made = new_identity(tmp_path, "alice")
    command = ["openssl", "x509", "-noout", "-fingerprint", "-sha256", "-in", made.certificate_file]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        pytest.skip("there is no openssl here")
    assert said.split("=")[1].strip().replace(":", "").lower() == made.fingerprint.removeprefix("sha256:")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_may_read_is_refused(tmp_path: pathlib.Path, mode: int) -> None:
    made = new_identity(tmp_path, "alice")
    os.chmod(made.key_file, mode)
    with pytest.raises(JobError, match=rf"alice\.key may be read by others \(mode {mode:04o}\): chmod 600"):
        load(made.certificate_file, made.key_file)


def test_files_that_are_missing_swapped_or_no_pair(tmp_path: pathlib.Path) -> None:
    alice, bob = (new_identity(tmp_path, name) for name in ("alice", "bob"))
    with pytest.raises(JobError, match="belong to two parties"):
        load(alice.certificate_file, bob.key_file)
    os.chmod(alice.certificate_file, 0o600)
    with pytest.raises(JobError, match=r"alice\.crt holds no unencrypted private key"):
        load(alice.certificate_file, alice.certificate_file)
    with pytest.raises(JobError, match=r"alice\.key holds no certificate"):
        load(alice.key_file, alice.key_file)
    os.unlink(alice.key_file)
    with pytest.raises(JobError, match=r"private key .*alice\.key cannot be read: No such file"):
        load(alice.certificate_file, alice.key_file)
    with pytest.raises(JobError, match=r"certificate .*carol\.crt cannot be read"):
        load_certificate(str(tmp_path / "carol.crt"))


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_a_password(tmp_path: pathlib.Path) -> None:
    made = new_identity(tmp_path, "alice")
    locked = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    pathlib.Path(made.key_file).write_bytes(locked)
    with pytest.raises(JobError, match="no unencrypted private key"):
        load(made.certificate_file, made.key_file)


def test_a_certificate_is_good_in_its_time_only(tmp_path: pathlib.Path) -> None:
    made = new_identity(tmp_path, "bob", datetime(2030, 5, 1, tzinfo=UTC)).certificate
    check_time(made, "bob", datetime(2030, 5, 1, tzinfo=UTC))
    check_time(made, "bob", datetime(2032, 4, 29, tzinfo=UTC))
    with pytest.raises(AuthError, match="certificate of bob expired on 2032-04-30: bob makes a new one"):
        check_time(made, "bob", datetime(2032, 5, 1, tzinfo=UTC))
    with pytest.raises(AuthError, match="good from 2030-04-30 00:00 UTC on: is a clock wrong"):
        check_time(made, "bob", datetime(2030, 4, 29, tzinfo=UTC))
    with pytest.raises(AuthError, match="what bob shows as its certificate is none"):
        check_time(b"no certificate", "bob")
