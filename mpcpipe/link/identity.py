"""Who a party is on the wire: a self-signed certificate, which the others know by its fingerprint.

There is no authority. A party's fingerprint stands in the job file of every party, and that is all that makes its
certificate good. The private key stays in a file that only its owner may read.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from mpcpipe.errors import AuthError, JobError

VALID_DAYS = 730
# Two machines' clocks may differ by so much on the day on which a key is made.
_EARLY = timedelta(days=1)
# More than any certificate has that is worth talking to.
CERTIFICATE_BYTES = 16 << 10


@dataclass(frozen=True)
class Identity:
    """A party's certificate (DER), and the files (PEM) that it and its private key are in."""

    certificate: bytes
    certificate_file: str
    key_file: str

    def __repr__(self) -> str:
        return f"Identity({self.fingerprint})"

    @property
    def fingerprint(self) -> str:
        """What the job pins."""
        return fingerprint(self.certificate)


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate's DER, as `sha256:` and 64 hex digits."""
    return "sha256:" + hashlib.sha256(certificate).hexdigest()


def create(name: str, now: datetime | None = None, days: int = VALID_DAYS) -> tuple[bytes, bytes]:
    """A new certificate for `name` and its private key (Ed25519), both PEM. Good from a day before `now` for `days`."""
    now = now or datetime.now(UTC)
    key = Ed25519PrivateKey.generate()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "key_cert_sign", "crl_sign"),
        False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLY)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=True, encipher_only=False, decipher_only=False, **usage), critical=True
        )
        .sign(key, None)
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM), secret


def load_certificate(file: str) -> bytes:
    """The DER of the one certificate in a PEM file. JobError if there is none."""
    return _certificate(file, _read(file, "certificate")).public_bytes(Encoding.DER)


def load(certificate_file: str, key_file: str) -> Identity:
    """The identity in two files. JobError: missing, unreadable, not a pair, or a key that others may read."""
    certificate = _certificate(certificate_file, _read(certificate_file, "certificate"))
    mode = stat.S_IMODE(_mode(key_file))
    if mode & 0o077:
        raise JobError(f"the private key {key_file} may be read by others (mode {mode:04o}): chmod 600 {key_file}")
    try:
        key = load_pem_private_key(_read(key_file, "private key"), None)
    except (ValueError, TypeError) as error:
        raise JobError(f"{key_file} holds no unencrypted private key: make one with `mpcpipe keys new`") from error
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise JobError(f"{key_file} is not the key of the certificate {certificate_file}: they belong to two parties")
    return Identity(certificate.public_bytes(Encoding.DER), certificate_file, key_file)


def check_time(certificate: bytes, name: str, now: datetime | None = None) -> None:
    """AuthError if the certificate (DER) of the party `name` is not good at this time."""
    now = now or datetime.now(UTC)
    try:
        parsed = x509.load_der_x509_certificate(certificate)
        first, last = parsed.not_valid_before_utc, parsed.not_valid_after_utc
    except ValueError as error:
        raise AuthError(f"what {name} shows as its certificate is none") from error
    if now > last:
        raise AuthError(
            f"the certificate of {name} expired on {last:%Y-%m-%d}: {name} makes a new one with `mpcpipe keys new`, "
            "and its fingerprint goes into the jobs of all parties"
        )
    if now < first:
        raise AuthError(f"the certificate of {name} is good from {first:%Y-%m-%d %H:%M} UTC on: is a clock wrong?")


def _certificate(file: str, pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise JobError(f"{file} holds no certificate (PEM): make one with `mpcpipe keys new`") from error


def _mode(file: str) -> int:
    try:
        return os.stat(file).st_mode
    except OSError as error:
        raise _unreadable(file, "private key", error) from error


def _read(file: str, what: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            return opened.read(1 << 20)
    except OSError as error:
        raise _unreadable(file, what, error) from error


def _unreadable(file: str, what: str, error: OSError) -> JobError:
    return JobError(f"the {what} {file} cannot be read: {error.strerror}. `mpcpipe keys new NAME` makes a pair")
