"""The key for encryption at rest: a file that only its owner can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mpcpipe.errors import JobError

KEY_BYTES = 32


def read_key(path: Path) -> bytes:
    """The 32 bytes of a key file: as they are, or as 64 hexadecimal digits. JobError if it is none, or others may read
    it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # nobody need write to what turns out to be a pipe
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise JobError(f"checkpoint.key_file: {path} is no ordinary file")
            if mode & 0o077:
                raise JobError(
                    f"checkpoint.key_file: others than its owner may read {path} (mode {mode & 0o777:o}): "
                    f"chmod 600 {path}"
                )
            content = os.read(descriptor, 1024)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise JobError(
            f"checkpoint.key_file: {path} cannot be read: {error.strerror}. To make one: "
            f"(umask 077; openssl rand -hex 32 > {path})"
        ) from error
    if len(content) == KEY_BYTES:
        return content
    try:
        key = bytes.fromhex(content.decode("ascii"))
        if len(key) != KEY_BYTES:
            raise ValueError("another length")
    except ValueError:
        raise JobError(
            f"checkpoint.key_file: {path} is no key: it must have {KEY_BYTES} bytes, or {2 * KEY_BYTES} hexadecimal "
            f"digits. To make one: (umask 077; openssl rand -hex 32 > {path})"
        ) from None
    return key
