"""Finding and loading the native library, at the first use.

The environment variable MPCPIPE_KERNELS says what to do:

    (not set)   use the library if it is there, with the best instruction set of this processor
    portable    use it without any special instructions
    require     raise KernelError if it is not there
    off         do not use it
"""

from __future__ import annotations

import importlib.util
import os
from functools import lru_cache
from pathlib import Path

import torch

from mpcpipe.errors import KernelError
from mpcpipe.ring.native.library import NativeLibrary
from mpcpipe.ring.shapes import conv_shape

LIBRARY_NAME = "libmpcpipe_cpu.so"
MODES = ("", "portable", "require", "off")


def _candidates() -> list[Path]:
    """Where the library may lie: beside the sources, or, of an editable install, in site-packages."""
    folders = [Path(__file__).parents[2]]
    spec = importlib.util.find_spec("mpcpipe")
    folders += [Path(folder) for folder in (spec.submodule_search_locations or ()) if spec] if spec else []
    return list(dict.fromkeys(folder / "_native" / LIBRARY_NAME for folder in folders))


def _mode() -> str:
    mode = os.environ.get("MPCPIPE_KERNELS", "")
    if mode not in MODES:
        raise KernelError(f"MPCPIPE_KERNELS is {mode!r}, but may only be portable, require or off, or not set")
    return mode


def _load(mode: str) -> tuple[NativeLibrary | None, str]:
    """The library, or None and the reason."""
    if mode == "off":
        return None, "switched off by MPCPIPE_KERNELS=off"
    paths = _candidates()
    reason = f"{LIBRARY_NAME} was not built: it is not in {' or '.join(str(path.parent) for path in paths)}"
    for path in paths:
        if path.is_file():
            try:
                return _checked(NativeLibrary(path, "portable" if mode == "portable" else None)), ""
            except KernelError as error:
                reason = str(error)
    if mode == "require":
        raise KernelError(f"MPCPIPE_KERNELS=require, but {reason}; install a C++ compiler and mpcpipe again")
    return None, reason


def _checked(library: NativeLibrary) -> NativeLibrary:
    """The library; without AVX-512 if its kernels compute wrongly here. They were written where none could be run."""
    if library.isa == "avx512" and not _right(library):
        library.set_isa("avx2")
    return library


def _right(library: NativeLibrary) -> bool:
    """Are a few products as torch has them? A millisecond."""
    for dtype in (torch.int64, torch.int32):
        a = torch.arange(1, 1 + 19 * 37, dtype=torch.int64).mul_(-0x61C8864680B583EB).to(dtype).view(19, 37)
        b = a.flip(0, 1).reshape(37, 19)
        x, w = a.reshape(1, 1, 19, 37), b[:3, :3].reshape(1, 1, 3, 3)
        shape = conv_shape((1, 1, 19, 37), (1, 1, 3, 3), (1, 1), (1, 1), (1, 1), 1)
        y = torch.nn.functional.conv2d(x, w, None, padding=1)
        if not (torch.equal(library.matmul(a, b), a @ b) and torch.equal(library.conv2d(shape, x, w), y)):
            return False
    return True


@lru_cache(maxsize=1)
def _loaded() -> tuple[NativeLibrary | None, str]:
    return _load(_mode())


def load() -> NativeLibrary | None:
    """The native library, or None where there is none. Raises KernelError where MPCPIPE_KERNELS cannot be obeyed."""
    return _loaded()[0]


def status() -> dict[str, str | bool | None]:
    """What is used and why: `path`, `isa`, `aes` (whether there are AES instructions) and, if not loaded, `reason`."""
    library, reason = _loaded()
    if library is None:
        return {"path": None, "isa": None, "aes": False, "reason": reason}
    return {"path": str(library.path), "isa": library.isa, "aes": library.has_aes, "reason": None}
