"""What two parties tell each other before the first share: who they are, a fresh public key, and what they agreed on.

    hello    each way: party, public key, nonce, and for every public key of the job its value and digest
    keys     each way, among four or more: this party's part of the keys of three parties (`triples`)
    confirm  each way: the session id under the pair's key, once a party has met everybody

The session id is a hash of the nonces of all parties; every key of the session is bound to it and to the digest of the
job. A difference between two jobs is found here, by both, and named. Nobody stops before having heard everybody: so
each of three parties learns that one of them was started with another job.

Security: reveals the job's public keys to whoever can connect. Says nothing about who the peer is: that is TLS's part.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mpcpipe import __version__
from mpcpipe.errors import AgreementError, AuthError, FrameError, by_name
from mpcpipe.link import frame, message
from mpcpipe.link.tls import Connection
from mpcpipe.link.triples import TripleKeys
from mpcpipe.random.keys import KEY_BYTES, NONCE_BYTES, KeyPair, bind, new_nonce, own_key
from mpcpipe.random.tape import Holders

VERSION = 2
# Of a value that differs, a sentence shows this much.
_SHOWN_CHARACTERS = 200
_REFUSED_CHARACTERS = 1000


@dataclass(frozen=True)
class Hello:
    """What one party says. `agreement`: key -> (SHA-256 of the value, the value's beginning), in order."""

    party: int
    public_key: bytes
    nonce: bytes
    agreement: Mapping[str, tuple[str, str]]

    def pack(self) -> bytes:
        """The message."""
        content = {
            "kind": "hello",
            "version": VERSION,
            "party": self.party,
            "public_key": self.public_key.hex(),
            "nonce": self.nonce.hex(),
            "agreement": {key: list(value) for key, value in self.agreement.items()},
        }
        return message.pack(content, message.HELLO_BYTES)

    @staticmethod
    def unpack(content: message.Message, name: str = "a party") -> Hello:
        """The hello in a message, which should be of the party `name`.

        Errors: FrameError if it is none, AgreementError if it is of another version of the handshake, and whatever the
        peer gives if it refuses this party.
        """
        refused = content.get("refused")
        if isinstance(refused, list) and len(refused) == 2 and all(isinstance(word, str) for word in refused):
            raise by_name(refused[0])(message.words(refused[1], _REFUSED_CHARACTERS))
        if content.get("kind") == "hello" and content.get("version") != VERSION:
            raise AgreementError(
                f"{name} greets in version {content.get('version', 1)!r:.20} of the handshake, and this one in version "
                f"{VERSION}: install the same mpcpipe ({__version__} is here) at all parties"
            )
        try:
            if content["kind"] != "hello" or type(content["party"]) is not int:
                raise ValueError("no hello")
            hello = Hello(
                content["party"],
                bytes.fromhex(content["public_key"]),
                bytes.fromhex(content["nonce"]),
                {
                    message.words(key, _SHOWN_CHARACTERS): (str(digest), message.words(value, _SHOWN_CHARACTERS))
                    for key, (digest, value) in content["agreement"].items()
                },
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise FrameError("what arrived is not the greeting of a party: another program may use the port") from None
        if len(hello.public_key) != 32 or len(hello.nonce) != NONCE_BYTES:
            raise FrameError("a party's greeting has a key or a nonce of the wrong length")
        return hello


def refusal(error: Exception) -> bytes:
    """The message that turns a caller away with `error`."""
    return message.pack({"refused": [type(error).__name__, str(error)]})


def digests(agreement: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Each value's SHA-256 in hex and its beginning, for a sentence."""
    return {
        key: (hashlib.sha256(value.encode()).hexdigest(), value[:_SHOWN_CHARACTERS]) for key, value in agreement.items()
    }


def job_digest(agreement: Mapping[str, tuple[str, str]]) -> bytes:
    """SHA-256 of all keys and their digests, in any order."""
    pairs = sorted((key, digest) for key, (digest, _) in agreement.items())
    return hashlib.sha256(json.dumps(pairs).encode()).digest()


def difference(left: Hello, right: Hello, names: Sequence[str]) -> AgreementError | None:
    """The error that names the first key in which two hellos differ; the same sentence at both parties."""
    first, second = sorted((left, right), key=lambda hello: hello.party)
    for key in [*first.agreement, *(key for key in second.agreement if key not in first.agreement)]:
        one, other = first.agreement.get(key), second.agreement.get(key)
        if (one and one[0]) != (other and other[0]):
            said = [
                f"{names[hello.party]} has no {key}"
                if entry is None
                else f"{names[hello.party]} has {key} = {entry[1]}"
                for hello, entry in ((first, one), (second, other))
            ]
            return AgreementError(f"{said[0]}, {said[1]}: start all parties with the same job and the same mpcpipe")
    return None


class Handshake:
    """One party's handshake with all others. `agreement` maps the job's public keys to canonical values.

    together: what all parties were given by the one who started them, and never say: who has it not is not let in.
    """

    def __init__(
        self, party: int, names: Sequence[str], workers: int, agreement: Mapping[str, str], together: bytes = b""
    ) -> None:
        self.party, self._together = party, together
        self.names = list(names)
        self._pair = KeyPair()
        fixed = {
            "handshake version": str(VERSION),
            "frame version": str(frame.VERSION),
            "byte order": sys.byteorder,
            "parties": ", ".join(names),
            "workers": str(workers),
        }
        self.hello = Hello(party, self._pair.public, new_nonce(), digests({**fixed, **agreement}))
        self._met: dict[int, Hello] = {party: self.hello}

    def __repr__(self) -> str:
        return f"Handshake(party={self.party}, met={sorted(self._met)})"

    def meet(self, hello: Hello) -> None:
        """Take a peer's hello."""
        self._met[hello.party] = hello

    def difference(self) -> AgreementError | None:
        """The difference to the first party that was started with another job, if there is one so far."""
        found = (difference(self.hello, self._met[peer], self.names) for peer in sorted(self._met))
        return next((error for error in found if error), None)

    def finish(self) -> Session:
        """The session that all hellos make. AuthError for an unusable key, or one key or nonce used by two."""
        hellos = [self._met[party] for party in sorted(self._met)]
        for values in (sorted(hello.public_key for hello in hellos), sorted(hello.nonce for hello in hellos)):
            if any(one == other for one, other in pairwise(values)):
                raise AuthError("two parties sent the same key or nonce: somebody is repeating what others said")
        session = hashlib.sha256(b"".join([b"mpcpipe session", *(hello.nonce for hello in hellos)])).digest()
        digest = hashlib.sha256(job_digest(self.hello.agreement) + self._together).digest()
        keys: dict[Holders, bytes] = {(self.party,): own_key()}
        proofs, seals = {}, {}
        for hello in hellos:
            if hello.party != self.party:
                pair = (min(self.party, hello.party), max(self.party, hello.party))
                secret = self._pair.agree(hello.public_key)
                keys[pair] = bind(secret, "tape", pair, session, digest)
                proofs[hello.party] = bind(secret, "proof", pair, session, digest)
                seals[hello.party] = bind(secret, "seal", pair, session, digest)
        return Session(
            self.party, session, keys, proofs, TripleKeys(self.party, len(self.names), seals, session, digest)
        )


class Session:
    """What a handshake ends in: the session's id, the tape's keys, and a way to prove that one belongs to it."""

    def __init__(
        self,
        party: int,
        identity: bytes,
        keys: dict[Holders, bytes],
        proofs: dict[int, bytes],
        triples: TripleKeys,
    ) -> None:
        self.party = party
        self.identity = identity
        self.keys = keys
        self.triples = triples
        self._proofs = proofs

    def __repr__(self) -> str:
        return f"Session({self.identity.hex()[:16]}, party={self.party}, holders={sorted(self.keys)})"

    @property
    def short(self) -> bytes:
        """The 8 bytes that frames carry."""
        return self.identity[: frame.SESSION_BYTES]

    def proof(self, peer: int, prover: int, purpose: str) -> str:
        """What only `prover` and its counterpart can say to each other in this session, for `purpose`; hex."""
        said = f"{purpose}|{prover}".encode() + self.identity
        return hmac.digest(self._proofs[peer], said, "sha256").hex()[: 2 * KEY_BYTES]

    def check(self, peer: int, purpose: str, proof: object, names: Sequence[str]) -> None:
        """AuthError unless `proof` is the peer's, for `purpose`."""
        if not (
            isinstance(proof, str) and proof.isascii() and hmac.compare_digest(proof, self.proof(peer, peer, purpose))
        ):
            raise AuthError(
                f"{names[peer]} is in another session than {names[self.party]}: its keys do not match. "
                "Stop what still runs from an earlier job, then start all parties again"
            )


def exchange_keys(sock: Connection, session: Session, peer: int, names: list[str], until: float) -> None:
    """Give the peer this party's part of the keys that three hold, and take the peer's."""
    sock.settimeout(None)
    sock.sendall(message.pack({"kind": "keys", "sealed": session.triples.sealed(peer)}))
    session.triples.take(peer, message.read(sock, message.CONTROL_BYTES, until).get("sealed"), names)


def confirm(sock: Connection, session: Session, peer: int, names: list[str], until: float) -> None:
    """Tell the peer, and hear from it, that everybody was met and that session and keys are the same."""
    sock.settimeout(None)
    own = {"kind": "confirm", "proof": session.proof(peer, session.party, "confirm")}
    if session.triples:
        own["keys"] = session.triples.digest(peer)
    sock.sendall(message.pack(own))
    content = message.read(sock, message.CONTROL_BYTES, until)
    session.check(peer, "confirm", content.get("proof"), names)
    session.triples.check(peer, content.get("keys"), names)
