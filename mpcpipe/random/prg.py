"""Pseudo-random generators: long streams of bytes from a short key, written straight into the memory of a tensor.

    aes128-ctr   block i of 16 bytes is AES-128(key, i), i as a big-endian number (NIST SP 800-38A, 6.5, from counter 0)
    chacha20     block i of 64 bytes is ChaCha20(key, nonce 0, counter i) (RFC 8439, 2.4)

A stream is one string of bytes: any slice of it can be made alone, and equals the slice of the whole. It is the same on
every machine, device and library version; elements are read from it as little-endian words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from mpcpipe.ring import native

Fill = Callable[[bytes, torch.Tensor, int], None]

# The keystream is what the cipher makes of zeros. One buffer for all; its size keeps it in the second-level cache.
_ZEROS = memoryview(bytes(1 << 18))


def _require_memory(out: torch.Tensor) -> None:
    if not (out.is_cpu and out.is_contiguous()):
        raise ValueError("a stream can only be written into a contiguous CPU tensor")


def _bytes_of(out: torch.Tensor) -> memoryview:
    _require_memory(out)
    return out.reshape(-1).view(torch.uint8).numpy().data if out.numel() else memoryview(b"")


# Asked for every draw, hundreds of times a step.
@lru_cache(maxsize=1)
def _native_aes() -> native.NativeLibrary | None:
    library = native.load()
    return library if library is not None and library.has_aes else None


def native_draws(generator: str, keys: Iterable[bytes]) -> native.NativeLibrary | None:
    """The library whose `draw` makes a key and its stream in one call, if it does so for this generator and keys."""
    fits = generator == "aes128-ctr" and all(len(key) <= 64 for key in keys)
    return _native_aes() if fits else None


def _write(cipher: CipherContext, target: memoryview, skip: int) -> None:
    if skip:
        cipher.update(_ZEROS[:skip])
    # update_into writes in place; update() would make a new bytes object of every chunk and be several times slower.
    for start in range(0, len(target), len(_ZEROS)):
        chunk = target[start : start + len(_ZEROS)]
        cipher.update_into(_ZEROS[: len(chunk)], chunk)


def fill(key: bytes, out: torch.Tensor, offset: int = 0) -> None:
    """Fill `out` (contiguous, CPU, any dtype) with AES-128-CTR keystream from byte `offset` on. `key` has 16 bytes."""
    if len(key) != 16:
        raise ValueError(f"an AES-128 key has 16 bytes, not {len(key)}")
    counter, skip = divmod(offset, 16)
    library = _native_aes()
    if library is not None and not skip and counter + out.nbytes // 16 < 1 << 64:
        _require_memory(out)
        library.aes128_ctr(key, counter, out)
        return
    _write(Cipher(algorithms.AES(key), modes.CTR(counter.to_bytes(16, "big"))).encryptor(), _bytes_of(out), skip)


def fill_chacha20(key: bytes, out: torch.Tensor, offset: int = 0) -> None:
    """Fill `out` (contiguous, CPU, any dtype) with ChaCha20 keystream from byte `offset` on. `key` has 32 bytes."""
    if len(key) != 32:
        raise ValueError(f"a ChaCha20 key has 32 bytes, not {len(key)}")
    counter, skip = divmod(offset, 64)
    _write(Cipher(algorithms.ChaCha20(key, counter.to_bytes(16, "little")), None).encryptor(), _bytes_of(out), skip)


# name -> (bytes of a stream's key, how to fill a tensor)
GENERATORS: dict[str, tuple[int, Fill]] = {
    "aes128-ctr": (16, fill),
    "chacha20": (32, fill_chacha20),
}
