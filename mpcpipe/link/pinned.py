"""Mutual TLS 1.3 between two parties that know each other's certificates by fingerprint, without any authority.

    the caller                                         the called
    certificate A, in the clear          ──────>       is A pinned, and in its time?
    is B the one pinned for this party?  <──────       certificate B, in the clear
    go                                   ──────>
    handshake, trusting B and nothing else  <───>      handshake, trusting A and nothing else
    the certificate proven is B?                       the certificate proven is A?
                                         <──────       welcome, inside TLS

OpenSSL verifies against certificates, a job pins their hashes: so each side shows its certificate first. What is shown
is public, and worth nothing to who has not its key: the handshake proves that, at both ends, before a byte of the job.

Security: whoever reads along learns both certificates (a name and a public key each), and how much is said when. Who
can change the bytes can end the connection, which both ends notice. Neither can read or forge what is said.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass

from mpcpipe.errors import AuthError, FrameError
from mpcpipe.link import message
from mpcpipe.link.identity import CERTIFICATE_BYTES, Identity, check_time, fingerprint
from mpcpipe.link.tls import TlsSocket

APPLICATION = "mpcpipe/1"
# Of what a stranger says in the clear, a sentence shows this much.
_SHOWN_CHARACTERS = 500


@dataclass(frozen=True)
class Pinned:
    """What one party needs to know its peers: its number, all names and fingerprints in order, and its own identity."""

    party: int
    names: Sequence[str]
    identity: Identity
    pins: Sequence[str]

    def check(self) -> None:
        """AuthError unless the pins are one a party, all different, and this party's own is its certificate's."""
        me, own = self.names[self.party], self.identity.fingerprint
        if len(self.pins) != len(self.names) or len(set(self.pins)) != len(self.pins):
            raise AuthError(
                f"{len(set(self.pins))} different fingerprints for {len(self.names)} parties; each has its own"
            )
        if self.pins[self.party] != own:
            raise AuthError(
                f"the certificate {self.identity.certificate_file} of {me} has the fingerprint {own}, but the job says "
                f"{self.pins[self.party]}: put the one into the jobs of all parties, or give {me} its own certificate"
            )

    def call(self, sock: socket.socket, peer: int, until: float) -> TlsSocket:
        """The connection to use instead of `sock`, on which this party has called `peer`.

        Errors: AuthError; TimeoutError when `time.monotonic()` is `until`; OSError when the peer goes.
        """
        name, place = self.names[peer], f"{sock.getpeername()[0]}:{sock.getpeername()[1]}"
        sock.settimeout(max(0.001, until - time.monotonic()))
        sock.sendall(message.pack({"kind": "tls", "party": self.party, **self._shown()}))
        try:
            said = message.read(sock, message.CONTROL_BYTES, until)
        except FrameError as error:
            raise AuthError(f"what answers at {place} is not {name} with TLS: is it another program?") from error
        certificate = _certificate(said)
        if certificate is None:
            raise AuthError(_refused(said, f"{name} ({place})"))
        try:
            self._must_be(certificate, peer, place)
        except AuthError as error:
            # So that the other end need not wait for somebody who does not come.
            with contextlib.suppress(OSError):
                sock.sendall(message.pack({"refused": ["AuthError", str(error)]}))
            raise
        sock.sendall(message.pack({"kind": "go"}))
        secured = self._handshake(sock, certificate, name, until, server_side=False)
        try:
            # Only now has the other end seen this party's proof. TLS tells a refusal with the first bytes from there.
            if message.read(secured, message.CONTROL_BYTES, until).get("kind") != "welcome":
                raise AuthError(f"{name} did not confirm the TLS connection")
        except ssl.SSLError as error:
            raise AuthError(f"{name} refused this party's part of the TLS handshake: {_reason(error)}") from error
        return secured

    def answer(self, sock: socket.socket, first: message.Message, until: float) -> tuple[TlsSocket, int]:
        """The connection to use instead of `sock`, whose caller said `first`, and the party that it proved to be.

        Errors: as `call`.
        """
        me, place = self.names[self.party], sock.getpeername()[0]
        certificate = _certificate(first)
        if certificate is None:
            raise AuthError(
                f"{me} speaks TLS only, and a caller from {place} does not: start all parties with the same job, "
                "with parties.fingerprints in it"
            )
        peer = self._whose(certificate)
        claimed = first.get("party")
        if peer is None or peer == self.party:
            raise AuthError(
                f"a caller from {place} showed a certificate that the job of {me} does not pin "
                f"({fingerprint(certificate)}): compare with `mpcpipe keys show` at the caller"
            )
        if claimed != peer:
            says = self.names[claimed] if isinstance(claimed, int) and 0 <= claimed < len(self.names) else "nobody"
            raise AuthError(f"a caller from {place} says to be {says} but showed the certificate of {self.names[peer]}")
        check_time(certificate, self.names[peer])
        sock.sendall(message.pack({"kind": "tls", "party": self.party, **self._shown()}))
        said = message.read(sock, message.CONTROL_BYTES, until)
        if said.get("kind") != "go":
            raise AuthError(_refused(said, self.names[peer]))
        secured = self._handshake(sock, certificate, self.names[peer], until, server_side=True)
        secured.sendall(message.pack({"kind": "welcome"}))
        return secured, peer

    def _shown(self) -> dict[str, str]:
        return {"certificate": base64.b64encode(self.identity.certificate).decode()}

    def _whose(self, certificate: bytes) -> int | None:
        shown = fingerprint(certificate)
        return self.pins.index(shown) if shown in self.pins else None

    def _must_be(self, certificate: bytes, peer: int, place: str) -> None:
        name, found = self.names[peer], self._whose(certificate)
        if found is None:
            raise AuthError(
                f"{place} shows a certificate with the fingerprint {fingerprint(certificate)}, but the job of "
                f"{self.names[self.party]} pins {self.pins[peer]} for {name}: compare with `mpcpipe keys show` there"
            )
        if found != peer:
            raise AuthError(
                f"{place} shows the certificate of {self.names[found]} and not that of {name}: "
                "give all parties the addresses in the same order, and each its own certificate"
            )
        check_time(certificate, name)

    def _handshake(
        self, sock: socket.socket, certificate: bytes, name: str, until: float, server_side: bool
    ) -> TlsSocket:
        secured = TlsSocket(sock, context(self.identity, certificate, server_side), server_side)
        try:
            secured.handshake(until)
        except ssl.SSLError as error:
            # What is sent from here on in the clear would only garble TLS's own message about the reason.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
            raise AuthError(f"TLS with {name} failed: {_reason(error)}") from error
        proven = secured.peer_certificate
        if proven != certificate or secured.version != "TLSv1.3" or secured.application != APPLICATION:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
            raise AuthError(
                f"TLS with {name} is not as it must be: {secured.version}, {secured.application}, "
                f"certificate {fingerprint(proven)}"
            )
        return secured


def context(identity: Identity, trusted: bytes, server_side: bool) -> ssl.SSLContext:
    """TLS 1.3 only, both ends with a certificate, and the one `trusted` (DER) is the only one that is believed."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = made.maximum_version = ssl.TLSVersion.TLSv1_3
    # There are no host names in it: who the peer is, its key says.
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    # So that a certificate which somebody else signed can be pinned, too.
    made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    made.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    if server_side:
        made.num_tickets = 0
    made.set_alpn_protocols([APPLICATION])
    try:
        made.load_verify_locations(cadata=trusted)
        made.load_cert_chain(identity.certificate_file, identity.key_file, password=lambda: b"")
    except (ssl.SSLError, OSError) as error:
        raise AuthError(
            f"the certificate {identity.certificate_file} or its key cannot be used for TLS any more: {error}"
        ) from error
    return made


def _certificate(said: message.Message) -> bytes | None:
    """The certificate in a message of kind `tls`. Not looked into: whoever is talking has yet to prove anything."""
    shown = said.get("certificate")
    if said.get("kind") != "tls" or not isinstance(shown, str) or len(shown) > 2 * CERTIFICATE_BYTES:
        return None
    try:
        return base64.b64decode(shown, validate=True)
    except ValueError:
        return None


def _refused(said: message.Message, who: str) -> str:
    refused = said.get("refused")
    if isinstance(refused, list) and len(refused) == 2 and isinstance(refused[1], str):
        return f"{who} turned this party away: {message.words(refused[1], _SHOWN_CHARACTERS)}"
    return f"{who} does not speak TLS: start all parties with the same job, with parties.fingerprints in it"


def _reason(error: ssl.SSLError) -> str:
    reason = getattr(error, "verify_message", None) or error.reason or "the connection ended"
    return str(reason).replace("_", " ").lower()
