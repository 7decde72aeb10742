"""Authentication of what two parties both know: a tag of it under a key that only the two have.

Security: GMAC (AES-128-GCM with nothing to encrypt, NIST SP 800-38D) under a key that is used once: who does not know
the key changes the data and keeps the tag with a probability below (16-byte blocks) / 2^128. Differences of tags under
independent keys are as hard to guess, so sums of tags stand for all of their data.
"""

from __future__ import annotations

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
