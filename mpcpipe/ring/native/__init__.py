"""Binding of the native CPU library (kernels/mpcpipe_kernels.h): found and loaded at the first use, never at import."""

from mpcpipe.ring.native.abi import ABI_VERSION, ISA_NAMES
from mpcpipe.ring.native.library import NativeLibrary
from mpcpipe.ring.native.loading import LIBRARY_NAME, MODES, load, status

__all__ = ["ABI_VERSION", "ISA_NAMES", "LIBRARY_NAME", "MODES", "NativeLibrary", "load", "status"]
