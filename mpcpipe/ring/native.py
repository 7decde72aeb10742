"""Binding of the native CPU library (kernels/mpcpipe_kernels.h): found and loaded at the first use, never at import.

The environment variable MPCPIPE_KERNELS says what to do:

    (not set)   use the library if it is there, with the best instruction set of this processor
    portable    use it without any special instructions
    require     raise KernelError if it is not there
    off         do not use it

Functions take int32 and int64 CPU tensors. The global interpreter lock is free while a kernel runs.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch

from mpcpipe.errors import KernelError
from mpcpipe.ring.shapes import ConvShape, matmul_shape, require_shape

ABI_VERSION = 1
LIBRARY_NAME = "libmpcpipe_cpu.so"
ISA_NAMES = ("portable", "avx2")
MODES = ("", "portable", "require", "off")
STATUS_TEXTS = {
    1: "the sizes do not fit together",
    2: "a size is too large for this machine's addresses",
    3: "there is not enough memory for scratch space",
    4: "this processor lacks the instructions",
    5: "the system refused a resource, for example a thread",
}
_OVERLAP = 6


class _Conv(ctypes.Structure):
    """struct mpk_conv."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("batch", "in_channels", "height", "width", "out_channels", "kernel_h", "kernel_w"),
            *("stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w", "groups"),
        )
    ]


@lru_cache(maxsize=1024)
def _conv_struct(shape: ConvShape) -> _Conv:
    return _Conv(*shape.x, shape.w[0], *shape.w[2:], *shape.stride, *shape.padding, *shape.dilation, shape.groups)


_Functions = dict[torch.dtype, Callable[..., int]]

_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_CONV = (ctypes.POINTER(_Conv), *(_POINTER,) * 3, _INT, _INT)
_MATMUL = (_SIZE, _SIZE, _SIZE, *(_POINTER, _SIZE, _SIZE) * 3, _INT, _INT)
_SIGNATURES: dict[str, tuple[type, ...]] = {
    "mpk_abi_version": (),
    "mpk_isa": (),
    "mpk_set_isa": (_INT,),
    "mpk_aes_level": (),
    **{f"mpk_matmul_{width}": _MATMUL for width in ("u32", "u64")},
    **{
        f"mpk_conv2d{direction}_{width}": _CONV
        for direction in ("", "_input_grad", "_weight_grad")
        for width in ("u32", "u64")
    },
    "mpk_bit_planes": (_POINTER, _SIZE, _INT, _INT, _POINTER),
    "mpk_unpack_bits": (_POINTER, _SIZE, _INT, _POINTER),
    "mpk_aes128_ctr": (ctypes.c_char_p, ctypes.c_uint64, _POINTER, _SIZE),
    "mpk_draw": (ctypes.c_char_p, _SIZE, ctypes.c_char_p, _SIZE, _POINTER, _SIZE, _INT, _INT),
    "mpk_sum_and_sign": (_POINTER, _POINTER, _SIZE, _POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "mpk_deal": (_POINTER, _POINTER, _POINTER, _SIZE, _INT, _INT, _INT, _POINTER),
    "mpk_quotient_half": (*(_POINTER,) * 5, _INT, _INT, _SIZE, _POINTER, _SIZE, _INT, _INT, _INT, _POINTER),
    "mpk_and_level": (*(_POINTER, _SIZE, _SIZE) * 3, *(_SIZE,) * 3, *(_POINTER,) * 3),
}


def _failure(status: int, what: str) -> KernelError:
    reason = STATUS_TEXTS.get(status, f"unknown status {status}")
    return KernelError(f"the native library cannot compute {what}: {reason}")


def _refuse(*tensors: torch.Tensor) -> ValueError:
    found = ", ".join(f"{tensor.dtype} on {tensor.device}" for tensor in tensors)
    return ValueError(f"the native library takes int32 or int64 CPU tensors, all of one dtype, not {found}")


class NativeLibrary:
    """The loaded library, with one method for each kernel.

    `out`, where there is one, is contiguous, of the result's shape and dtype; `accumulate` adds to it. `threads` is how
    many threads may work on one call, this one included; the result does not depend on it.
    """

    def __init__(self, path: Path, isa: str | None = None) -> None:
        """Loads the library at `path`. Raises KernelError if it is not one of ours or lacks the instruction set."""
        self.path = path
        try:
            self._c = ctypes.CDLL(str(path))
            for name, arguments in _SIGNATURES.items():
                getattr(self._c, name).argtypes = arguments
                getattr(self._c, name).restype = ctypes.c_int
        except (OSError, AttributeError) as error:
            raise KernelError(f"{path} is not a library that can be loaded here: {error}; build it again") from error
        found = self._c.mpk_abi_version()
        if found != ABI_VERSION:
            raise KernelError(
                f"{path} has ABI version {found}, but this mpcpipe needs {ABI_VERSION}: install mpcpipe again"
            )
        self._matmul = self._for_dtypes("mpk_matmul")
        self._conv2d = self._for_dtypes("mpk_conv2d")
        self._conv2d_input_grad = self._for_dtypes("mpk_conv2d_input_grad")
        self._conv2d_weight_grad = self._for_dtypes("mpk_conv2d_weight_grad")
        if isa is not None:
            self.set_isa(isa)

    def _for_dtypes(self, name: str) -> _Functions:
        return {torch.int64: getattr(self._c, f"{name}_u64"), torch.int32: getattr(self._c, f"{name}_u32")}

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return ISA_NAMES[self._c.mpk_isa()]

    def set_isa(self, name: str) -> None:
        """Uses the instruction set `name` in this whole process from now on; KernelError if the processor lacks it."""
        if name not in ISA_NAMES:
            raise KernelError(f"there is no instruction set {name!r}, only {', '.join(ISA_NAMES)}")
        status = self._c.mpk_set_isa(ISA_NAMES.index(name))
        if status:
            raise _failure(status, f"with {name}")

    @property
    def has_aes(self) -> bool:
        """Whether `aes128_ctr` works on this processor."""
        return bool(self._c.mpk_aes_level())

    def matmul(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor | None = None,
        accumulate: bool = False,
        threads: int = 1,
    ) -> torch.Tensor:
        """a (m, k) times b (k, n), any strides."""
        shape = matmul_shape(a.shape, b.shape)
        dtype = a.dtype
        function = self._matmul.get(dtype)
        if function is None or b.dtype != dtype or not (a.is_cpu and b.is_cpu):
            raise _refuse(a, b)
        target = _target(out, shape, dtype, accumulate)
        (m, n), k = shape, a.shape[1]
        inputs = (m, n, k, a.data_ptr(), *a.stride(), b.data_ptr(), *b.stride())
        status = function(*inputs, target.data_ptr(), n, 1, accumulate and out is target, threads)
        if status == _OVERLAP:
            target = torch.empty(shape, dtype=dtype)
            status = function(*inputs, target.data_ptr(), n, 1, False, threads)
        if status:
            raise _failure(status, f"the product of {tuple(a.shape)} and {tuple(b.shape)}")
        return target if out is None or out is target else _deliver(target, out, accumulate)

    def conv2d(
        self,
        shape: ConvShape,
        x: torch.Tensor,
        w: torch.Tensor,
        out: torch.Tensor | None = None,
        accumulate: bool = False,
        threads: int = 1,
    ) -> torch.Tensor:
        """y from x and w."""
        require_shape("x", x.shape, shape.x)
        require_shape("the filter", w.shape, shape.w)
        return self._conv(self._conv2d, shape, x, w, shape.y, out, accumulate, threads)

    def conv2d_input_grad(
        self,
        shape: ConvShape,
        dy: torch.Tensor,
        w: torch.Tensor,
        out: torch.Tensor | None = None,
        accumulate: bool = False,
        threads: int = 1,
    ) -> torch.Tensor:
        """dx from dy and w."""
        require_shape("dy", dy.shape, shape.y)
        require_shape("the filter", w.shape, shape.w)
        return self._conv(self._conv2d_input_grad, shape, dy, w, shape.x, out, accumulate, threads)

    def conv2d_weight_grad(
        self,
        shape: ConvShape,
        x: torch.Tensor,
        dy: torch.Tensor,
        out: torch.Tensor | None = None,
        accumulate: bool = False,
        threads: int = 1,
    ) -> torch.Tensor:
        """dw from x and dy."""
        require_shape("x", x.shape, shape.x)
        require_shape("dy", dy.shape, shape.y)
        return self._conv(self._conv2d_weight_grad, shape, x, dy, shape.w, out, accumulate, threads)

    def bit_planes(self, x: torch.Tensor, count: int) -> torch.Tensor:
        """The lowest `count` bits of x (n,), sliced into int64 (count, words)."""
        if x.dtype not in self._matmul or not x.is_cpu:
            raise _refuse(x)
        x = x.contiguous()
        n = x.numel()
        planes = torch.empty((count, (n + 63) // 64), dtype=torch.int64)
        status = self._c.mpk_bit_planes(x.data_ptr(), n, x.element_size(), count, planes.data_ptr())
        if status:
            raise _failure(status, f"{count} bit planes of {n} elements")
        return planes

    def unpack_bits(self, plane: torch.Tensor, n: int, dtype: torch.dtype) -> torch.Tensor:
        """One plane, int64 (words,), as n elements 0 or 1."""
        require_shape("the plane", plane.shape, ((n + 63) // 64,))
        if plane.dtype != torch.int64 or dtype not in self._matmul or not plane.is_cpu:
            found = f"{plane.dtype} on {plane.device} to {dtype}"
            raise ValueError(f"an int64 plane on the CPU is unpacked to int32 or int64, not {found}")
        plane = plane.contiguous()
        out = torch.empty(n, dtype=dtype)
        status = self._c.mpk_unpack_bits(plane.data_ptr(), n, out.element_size(), out.data_ptr())
        if status:
            raise _failure(status, f"{n} unpacked bits")
        return out

    def aes128_ctr(self, key: bytes, first_block: int, out: torch.Tensor) -> None:
        """Fills `out` (contiguous, CPU) with the AES-128-CTR key stream from block `first_block` on.

        Block b is the cipher of b as a 16-byte big-endian number. KernelError where `has_aes` is false.
        """
        if len(key) != 16:
            raise ValueError(f"an AES-128 key has 16 bytes, not {len(key)}")
        if not 0 <= first_block < 1 << 64:
            raise ValueError(f"a block number lies from 0 to 2^64 - 1, unlike {first_block}")
        if out.device.type != "cpu" or not out.is_contiguous():
            raise ValueError("the key stream is written to contiguous CPU tensors only")
        nbytes = out.numel() * out.element_size()
        status = self._c.mpk_aes128_ctr(key, first_block, out.data_ptr(), nbytes)
        if status:
            raise _failure(status, f"{nbytes} bytes of AES key stream")

    def draw(self, key: bytes, label: bytes, out: torch.Tensor, bits: int) -> None:
        """Fills `out` (contiguous, CPU) with the key stream of HMAC-SHA256(key, label), in the range of `bits` bits.

        The key has at most 64 bytes. KernelError where `has_aes` is false.
        """
        if out.dtype not in self._matmul or not out.is_cpu or not out.is_contiguous():
            raise _refuse(out)
        n, width = out.numel(), out.element_size()
        status = self._c.mpk_draw(key, len(key), label, len(label), out.data_ptr(), n, width, bits)
        if status:
            raise _failure(status, f"a draw of {n} elements of {bits} bits")

    def sum_and_sign(
        self, x: torch.Tensor, y: torch.Tensor | None, mask: torch.Tensor, bits: int, constant: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x + y + constant modulo 2^bits, and where it is >= 0, packed, xor `mask`."""
        n, width = x.numel(), x.element_size()
        x, mask = self._flat(x, n, x.dtype), self._plane(mask, n)
        if y is not None:
            y = self._flat(y, n, x.dtype)
        total, plane = torch.empty_like(x), torch.empty_like(mask)
        status = self._c.mpk_sum_and_sign(
            *(x.data_ptr(), None if y is None else y.data_ptr(), constant, mask.data_ptr()),
            *(n, width, bits, total.data_ptr(), plane.data_ptr()),
        )
        if status:
            raise _failure(status, f"{n} sums of {bits} bits")
        return total, plane

    def deal(self, r_a: torch.Tensor, r_b: torch.Tensor, c0: torch.Tensor, bits: int, nbytes: int) -> torch.Tensor:
        """The lowest `nbytes` bytes of (r_a & r_b) - c0 modulo 2^bits, flat uint8."""
        n, width = c0.numel(), c0.element_size()
        c0, r_a, r_b = self._flat(c0, n, c0.dtype), self._plane(r_a, n), self._plane(r_b, n)
        out = torch.empty(n * nbytes, dtype=torch.uint8)
        status = self._c.mpk_deal(r_a.data_ptr(), r_b.data_ptr(), c0.data_ptr(), n, width, bits, nbytes, out.data_ptr())
        if status:
            raise _failure(status, f"{n} dealt corrections of {bits} bits")
        return out

    def quotient_half(
        self,
        summand: torch.Tensor,
        own: torch.Tensor,
        alpha: torch.Tensor,
        beta: torch.Tensor,
        correction: torch.Tensor,
        mask: torch.Tensor | None,
        bits: int,
        shift: int,
        first: bool,
        constant: int,
    ) -> torch.Tensor:
        """As `reference.quotient_half`; the correction as elements or as bytes (uint8)."""
        n, width = summand.numel(), summand.element_size()
        summand = self._flat(summand, n, summand.dtype)
        own, alpha, beta = self._plane(own, n), self._plane(alpha, n), self._plane(beta, n)
        correction = correction.contiguous()
        if mask is not None:
            mask = self._flat(mask, n, summand.dtype)
        nbytes = correction.nbytes // n if n else 1
        if not correction.is_cpu or correction.nbytes != n * nbytes:
            raise ValueError(f"a correction of {correction.nbytes} bytes does not fit {n} elements")
        out = torch.empty_like(summand)
        status = self._c.mpk_quotient_half(
            *(summand.data_ptr(), own.data_ptr(), alpha.data_ptr(), beta.data_ptr(), correction.data_ptr(), nbytes),
            *(first, constant, None if mask is None else mask.data_ptr(), n, width, bits, shift, out.data_ptr()),
        )
        if status:
            raise _failure(status, f"{n} quotients by 2^{shift}")
        return out

    def and_level(
        self, p: torch.Tensor, g: torch.Tensor, q: torch.Tensor, mask_0: torch.Tensor, mask_1: torch.Tensor
    ) -> torch.Tensor:
        """As `reference.and_level`: z, int64 (planes, words)."""
        planes, words = p.shape[1:]
        q_planes = q.shape[1]
        require_shape("g", g.shape, (2, planes, words))
        require_shape("q", q.shape, (2, q_planes, words))
        p, g, q = (x if x.stride(2) == 1 else x.contiguous() for x in (p, g, q))
        z = torch.empty((planes + q_planes, words), dtype=torch.int64)
        for mask in (mask_0, mask_1):
            require_shape("a mask", mask.shape, z.shape)
        mask_0, mask_1 = mask_0.contiguous(), mask_1.contiguous()
        if not all(x.dtype == torch.int64 and x.is_cpu for x in (p, g, q, mask_0, mask_1)):
            raise _refuse(p, g, q, mask_0, mask_1)
        status = self._c.mpk_and_level(
            *(p.data_ptr(), *p.stride()[:2], g.data_ptr(), *g.stride()[:2], q.data_ptr(), *q.stride()[:2]),
            *(planes, q_planes, words, mask_0.data_ptr(), mask_1.data_ptr(), z.data_ptr()),
        )
        if status:
            raise _failure(status, f"ANDs of {planes} and {q_planes} planes")
        return z

    def _flat(self, x: torch.Tensor, n: int, dtype: torch.dtype) -> torch.Tensor:
        """x, checked to be n elements of `dtype`, laid out without gaps."""
        if x.dtype != dtype or dtype not in self._matmul or not x.is_cpu:
            raise _refuse(x)
        if x.numel() != n:
            raise ValueError(f"{x.numel()} elements do not fit {n}")
        return x.contiguous()

    def _plane(self, x: torch.Tensor, n: int) -> torch.Tensor:
        """x, checked to be a plane of n bits, laid out without gaps."""
        if x.dtype != torch.int64 or not x.is_cpu:
            raise _refuse(x)
        if x.numel() != (n + 63) // 64:
            raise ValueError(f"a plane of {n} bits has {(n + 63) // 64} words, not {x.numel()}")
        return x.contiguous()

    def _conv(
        self,
        functions: _Functions,
        shape: ConvShape,
        first: torch.Tensor,
        second: torch.Tensor,
        result: tuple[int, ...],
        out: torch.Tensor | None,
        accumulate: bool,
        threads: int,
    ) -> torch.Tensor:
        dtype = first.dtype
        function = functions.get(dtype)
        if function is None or second.dtype != dtype or not (first.is_cpu and second.is_cpu):
            raise _refuse(first, second)
        first, second = first.contiguous(), second.contiguous()
        target = _target(out, result, dtype, accumulate)
        inputs = (_conv_struct(shape), first.data_ptr(), second.data_ptr())
        status = function(*inputs, target.data_ptr(), accumulate and out is target, threads)
        if status == _OVERLAP:
            target = torch.empty(result, dtype=dtype)
            status = function(*inputs, target.data_ptr(), False, threads)
        if status:
            raise _failure(status, f"a direction of {shape}")
        return target if out is None or out is target else _deliver(target, out, accumulate)


def _target(out: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, accumulate: bool) -> torch.Tensor:
    """Where the kernel writes: `out`, or new memory where there is no `out` or it is not contiguous."""
    if out is None:
        if accumulate:
            raise ValueError("accumulate needs `out`, the tensor that the result is added to")
        return torch.empty(shape, dtype=dtype)
    require_shape("out", out.shape, shape)
    if out.dtype != dtype or not out.is_cpu:
        raise ValueError(f"out must be {dtype} on the CPU, as the inputs are, not {out.dtype} on {out.device}")
    return out if out.is_contiguous() else torch.empty(shape, dtype=dtype)


def _deliver(target: torch.Tensor, out: torch.Tensor, accumulate: bool) -> torch.Tensor:
    return out.add_(target) if accumulate else out.copy_(target)


def _candidates() -> list[Path]:
    """Where the library may lie: beside the sources, or, of an editable install, in site-packages."""
    folders = [Path(__file__).parent.parent]
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
                return NativeLibrary(path, "portable" if mode == "portable" else None), ""
            except KernelError as error:
                reason = str(error)
    if mode == "require":
        raise KernelError(f"MPCPIPE_KERNELS=require, but {reason}; install a C++ compiler and mpcpipe again")
    return None, reason


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
