"""Authentication of what two parties both know: a tag of it under a key that only the two have.

Security: GMAC (AES-128-GCM with nothing to encrypt, NIST SP 800-38D) under a key that is used once: who does not know
the key changes the data and keeps the tag with a probability below (16-byte blocks) / 2^128. Differences of tags under
independent keys are as hard to guess, so sums of tags stand for all of their data.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

import torch
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 16
TAG_BYTES = 16
MODULUS = 1 << (8 * TAG_BYTES)


def tag(key: torch.Tensor, parts: Sequence[torch.Tensor]) -> int:
    """The tag of flat tensors, one after the other. `key`: 16 bytes in a tensor, for these data and no others."""
    raw = [part.detach().cpu().contiguous().view(torch.uint8) for part in parts]
    data = raw[0] if len(raw) == 1 else torch.cat(raw)
    once = bytes(12)  # one message a key, so the nonce says nothing
    return int.from_bytes(AESGCM(_to_bytes(key)).encrypt(once, b"", data.numpy().data), "big")


def weighted(coefficients: torch.Tensor, values: torch.Tensor, bits: int, carries: torch.Tensor | None = None) -> int:
    """The sum of coefficient times value modulo 2^128, of unsigned numbers: a tag of the values. Two such tags add up
    to that of the sums of values.

    coefficients: int64 (n,), 64 uniform bits each, for these values and no others. values: int32 or int64 (n,), of
    which `bits` bits count; a number has 2^bits more where carries (n,) is 1. Security: who does not know the
    coefficients changes the numbers by e, |e| < 2^65, and knows by how much the tag changes, with a probability of at
    most 2^-62: r e is one number modulo 2^128 for at most 4 of 2^64 values of r.
    """
    low = (1 << 32) - 1
    r = (coefficients & low, coefficients >> 32 & low)
    x = values.to(torch.int64) & ((1 << bits) - 1 if bits < 64 else -1)
    total = 0
    for place, part in enumerate((x & low, x >> 32 & low)):
        for at, coefficient in enumerate(r, place):
            product = coefficient * part
            total += int((product & low).sum()) << 32 * at
            total += int((product >> 32 & low).sum()) << 32 * (at + 1)
    if carries is not None:
        for at, coefficient in enumerate(r):
            total += int((coefficient * carries).sum()) << bits + 32 * at
    return total % MODULUS


def digest(key: torch.Tensor, tags: Sequence[int]) -> int:
    """16 bytes of HMAC-SHA256 of tags: who has not the key can tell whether two lists are equal, and nothing else."""
    data = b"".join(value.to_bytes(TAG_BYTES, "big") for value in tags)
    return int.from_bytes(hmac.digest(_to_bytes(key), data, "sha256")[:TAG_BYTES], "big")


def number(key: torch.Tensor) -> int:
    """A drawn key as a number below MODULUS."""
    return int.from_bytes(_to_bytes(key)[:TAG_BYTES], "big")


def _to_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()


def packed(tags: Sequence[int], device: torch.device | str = "cpu") -> torch.Tensor:
    """Tags as they are sent: uint8 (16 * count,)."""
    data = bytearray(b"".join(value.to_bytes(TAG_BYTES, "big") for value in tags))
    return torch.frombuffer(data, dtype=torch.uint8).to(device)


def unpacked(data: torch.Tensor) -> list[int]:
    """The inverse."""
    raw = _to_bytes(data)
    return [int.from_bytes(raw[at : at + TAG_BYTES], "big") for at in range(0, len(raw), TAG_BYTES)]
