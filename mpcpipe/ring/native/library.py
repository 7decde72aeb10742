"""The native library as one object: a method for each kernel."""

from __future__ import annotations

from pathlib import Path

from mpcpipe.errors import KernelError
from mpcpipe.ring.native.abi import ISA_NAMES, failure, open_library
from mpcpipe.ring.native.bits import Bits
from mpcpipe.ring.native.products import Products
from mpcpipe.ring.native.steps import Steps
from mpcpipe.ring.native.steps3 import Steps3
from mpcpipe.ring.native.steps4 import Steps4
from mpcpipe.ring.native.told4 import Told4


class NativeLibrary(Products, Bits, Steps, Steps3, Steps4, Told4):
    """The loaded library. The global interpreter lock is free while a kernel runs."""

    def __init__(self, path: Path, isa: str | None = None) -> None:
        """Loads the library at `path`. Raises KernelError if it is not one of ours or lacks the instruction set."""
        self.path = path
        self.c = open_library(path)
        Products.__init__(self, self.c)
        if isa is not None:
            self.set_isa(isa)

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return ISA_NAMES[self.c.mpk_isa()]

    def set_isa(self, name: str) -> None:
        """Uses the instruction set `name` in this whole process from now on; KernelError if the processor lacks it."""
        if name not in ISA_NAMES:
            raise KernelError(f"there is no instruction set {name!r}, only {', '.join(ISA_NAMES)}")
        status = self.c.mpk_set_isa(ISA_NAMES.index(name))
        if status:
            raise failure(status, f"with {name}")
