"""Memory of a party's process: kept once it is paged in, and measured."""

from __future__ import annotations

import ctypes
import resource
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGEST = 1 << 30


def keep_freed_memory() -> bool:
    """Tell the C library to reuse big freed blocks instead of giving them back to the kernel; True if it listened.

    A step allocates the same tensors as the one before. By default glibc maps each of them anew, and the kernel clears
    every page again: that costs as much as the arithmetic. Workers are threads, and threads would get heaps of their
    own, too small for such tensors and so mapped anew, too: all use one. Measured in docs/performance.md.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_THRESHOLD, _LARGEST), (_M_TRIM_THRESHOLD, 2 * _LARGEST - 1), (_M_ARENA_MAX, 1))
    return all(mallopt(name, value) for name, value in settings)


def peak_rss_bytes() -> int:
    """The most memory that this process has had resident so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
