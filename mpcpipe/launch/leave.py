"""The end of a process that has imported torch."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End this process now; what it has to close is closed, and its output goes out first.

    Taking torch apart costs Python over half a second of a core, and nobody gets anything for it: on a machine that is
    busy, a party that was stopped stayed for four to eight seconds after it had said so.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
