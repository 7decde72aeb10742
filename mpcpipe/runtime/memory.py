"""Memory of a party's process: kept once it is paged in, and measured."""

from __future__ import annotations

import ctypes
import resource
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST = 1 << 30


def keep_freed_memory() -> bool:
    """Tell the C library to reuse big freed blocks instead of giving them back to the kernel; True if it listened.

    A step allocates the same tensors as the one before. By default glibc maps each of them anew, and the kernel clears
    every page again: that costs as much as the arithmetic. Measured in docs/performance.md.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_M_TRIM_THRESHOLD, 2 * _LARGEST - 1))


def peak_rss_bytes() -> int:
    """The most memory that this process has had resident so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
