"""The C side as Python sees it: signatures, status numbers, and what every method checks of its tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch

from mpcpipe.errors import KernelError
from mpcpipe.ring.shapes import ConvShape

ABI_VERSION = 3
ISA_NAMES = ("portable", "avx2", "avx512", "neon")
"""Instruction sets by their number, `enum mpk_isa`."""

INTEGERS = (torch.int32, torch.int64)
OVERLAP = 6
STATUS_TEXTS = {
    1: "the sizes do not fit together",
    2: "a size is too large for this machine's addresses",
    3: "there is not enough memory for scratch space",
    4: "this processor lacks the instructions",
    5: "the system refused a resource, for example a thread",
}


class Conv(ctypes.Structure):
    """struct mpk_conv."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("batch", "in_channels", "height", "width", "out_channels", "kernel_h", "kernel_w"),
            *("stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w", "groups", "algorithm"),
        )
    ]


MOST_OPERANDS = 6


class Term(ctypes.Structure):
    """struct mpk_term."""

    _fields_ = [
        ("half", ctypes.c_int64),
        ("op", ctypes.c_int64),
        ("source", ctypes.c_int64 * MOST_OPERANDS),
        ("row", ctypes.c_int64 * MOST_OPERANDS),
        ("key", ctypes.c_char_p),
        ("key_bytes", ctypes.c_int64),
        ("suffix", ctypes.c_char_p),
        ("suffix_bytes", ctypes.c_int64),
        ("mask_at", ctypes.c_int64),
        ("rest_at", ctypes.c_int64),
        ("wire", ctypes.c_int64),
        ("tag_key", ctypes.c_char_p),
        ("tag_key_bytes", ctypes.c_int64),
        ("tag_suffix", ctypes.c_char_p),
        ("tag_suffix_bytes", ctypes.c_int64),
        ("tag", ctypes.c_int64),
    ]


class Rows(ctypes.Structure):
    """struct mpk_rows."""

    _fields_ = [("first", ctypes.c_void_p), ("stride", ctypes.c_int64), ("rows", ctypes.c_int64)]


class Use(ctypes.Structure):
    """struct mpk_use."""

    _fields_ = [
        ("label", ctypes.c_char_p),
        ("label_bytes", ctypes.c_int64),
        ("sources", ctypes.POINTER(Rows)),
        ("source_count", ctypes.c_int64),
        ("wires", ctypes.POINTER(ctypes.c_void_p)),
        ("wire_count", ctypes.c_int64),
        ("tags", ctypes.c_void_p),
        ("tag_count", ctypes.c_int64),
    ]


class Stream(ctypes.Structure):
    """struct mpk_stream."""

    _fields_ = [
        ("key", ctypes.c_char_p),
        ("key_bytes", ctypes.c_int64),
        ("label", ctypes.c_char_p),
        ("label_bytes", ctypes.c_int64),
    ]


class Pass(ctypes.Structure):
    """struct mpk_pass."""

    _fields_ = [
        (f"{name}{part}", kind)
        for name in ("next_key", "prev_key", "label")
        for part, kind in (("", ctypes.c_char_p), ("_bytes", ctypes.c_int64))
    ]


class Chunks(ctypes.Structure):
    """struct mpk_chunks."""

    _fields_ = [
        *((name, ctypes.c_int64 * 3) for name in ("n", "start", "words", "word_start")),
        *((name, ctypes.c_int64) for name in ("total", "total_words")),
    ]
    n: ctypes.Array[ctypes.c_int64]
    words: ctypes.Array[ctypes.c_int64]
    total: int
    total_words: int


@lru_cache(maxsize=1024)
def conv_struct(shape: ConvShape, as_products: bool) -> Conv:
    """The shape as the library takes it."""
    sizes = (*shape.x, shape.w[0], *shape.w[2:], *shape.stride, *shape.padding, *shape.dilation, shape.groups)
    return Conv(*sizes, as_products)


Functions = dict[torch.dtype, Callable[..., int]]
"""One C function for each dtype."""

_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_PASS, _CHUNKS, _STREAMS = ctypes.POINTER(Pass), ctypes.POINTER(Chunks), ctypes.POINTER(Stream)
_CONV = (ctypes.POINTER(Conv), *(_POINTER,) * 3, _INT, _INT)
_MATMUL = (_SIZE, _SIZE, _SIZE, *(_POINTER, _SIZE, _SIZE) * 3, _INT, _INT)
SIGNATURES: dict[str, tuple[type, ...]] = {
    "mpk_abi_version": (),
    "mpk_isa": (),
    "mpk_set_isa": (_INT,),
    "mpk_aes_level": (),
    **{f"mpk_matmul_{width}": _MATMUL for width in ("u32", "u64", "f32")},
    **{
        f"mpk_conv2d{direction}_{width}": _CONV
        for direction in ("", "_input_grad", "_weight_grad")
        for width in ("u32", "u64", "f32")
    },
    "mpk_bit_planes": (_POINTER, _SIZE, _INT, _INT, _POINTER),
    "mpk_unpack_bits": (_POINTER, _SIZE, _INT, _POINTER),
    "mpk_aes128_ctr": (ctypes.c_char_p, ctypes.c_uint64, _POINTER, _SIZE),
    "mpk_draw": (ctypes.c_char_p, _SIZE, ctypes.c_char_p, _SIZE, _POINTER, _SIZE, _INT, _INT),
    "mpk_sum_and_sign": (_POINTER, _POINTER, _SIZE, _POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "mpk_deal": (_POINTER, _POINTER, _POINTER, _SIZE, _INT, _INT, _INT, _POINTER),
    "mpk_quotient_half": (*(_POINTER,) * 5, _INT, _INT, _SIZE, _POINTER, _SIZE, _INT, _INT, _INT, _POINTER),
    "mpk_and_level": (*(_POINTER, _SIZE, _SIZE) * 3, *(_SIZE,) * 3, *(_POINTER,) * 3),
    "mpk_joint": (
        *(ctypes.POINTER(Term), _SIZE, ctypes.POINTER(Use), ctypes.POINTER(ctypes.c_int64 * 2), *(_INT,) * 4),
        *(_POINTER, _SIZE, _POINTER, _SIZE, _SIZE, _INT, _INT),
    ),
    "mpk_pass_masked": (_PASS, _POINTER, _SIZE, _INT, _POINTER),
    "mpk_pass_truncate_begin": (_PASS, _CHUNKS, *(_POINTER,) * 2, _INT, _INT, *(_POINTER,) * 5),
    "mpk_pass_truncate_half": (_PASS, _CHUNKS, _INT, *(_POINTER,) * 5, _INT, _INT, *(_POINTER,) * 2),
    "mpk_pass_truncate_end": (_PASS, _CHUNKS, *(_POINTER,) * 4, _INT, _POINTER),
    "mpk_pass_open_begin": (_PASS, _CHUNKS, _POINTER, _INT, _INT, *(_POINTER,) * 5),
    "mpk_pass_open_second": (_PASS, _CHUNKS, _INT, _INT, *(_POINTER,) * 9),
    "mpk_pass_open_end": (_CHUNKS, _INT, _INT, *(_POINTER,) * 3),
    "mpk_pass_sign_begin": (_PASS, _CHUNKS, *(_POINTER,) * 2, _INT, _INT, *(_POINTER,) * 4),
    "mpk_pass_sign_second": (_PASS, _CHUNKS, _INT, *(_POINTER,) * 5),
    "mpk_pass_tree_level": (_PASS, _SIZE, _SIZE, *(_POINTER, _SIZE) * 2, *(_POINTER,) * 5),
    "mpk_pass_select_begin": (_PASS, _CHUNKS, *(_POINTER,) * 3, _INT, _INT, *(_POINTER,) * 5),
    "mpk_pass_select_second": (_PASS, _CHUNKS, *(_POINTER,) * 3, _INT, *(_POINTER,) * 5),
    "mpk_tag": (*(ctypes.c_char_p, _SIZE) * 3, _POINTER, _SIZE, _POINTER),
    "mpk_take": (*(ctypes.c_char_p, _SIZE) * 3, _POINTER, _INT, _SIZE, _INT, _INT, _POINTER, _INT, _POINTER),
    "mpk_pair_sums": (_POINTER, _SIZE, _SIZE, _INT, _POINTER),
    "mpk_tell": (_POINTER, _POINTER, _INT, _STREAMS, _SIZE, _INT, _INT, *(_POINTER,) * 4),
    "mpk_vouch": (_POINTER, _POINTER, _INT, _STREAMS, _STREAMS, _SIZE, _INT, _INT, *(_POINTER,) * 3),
    "mpk_told": (_POINTER, _POINTER, _STREAMS, _SIZE, _INT, _INT, *(_POINTER,) * 2),
    "mpk_shifted": (_POINTER, _POINTER, _SIZE, _SIZE, _SIZE, _INT, _INT, _INT, _POINTER, _POINTER, _INT),
    "mpk_monomials": (_POINTER, _SIZE, _SIZE, _SIZE, _POINTER),
    "mpk_block_products": (_POINTER, _POINTER, _SIZE, _SIZE, _SIZE, _POINTER),
    "mpk_and_summands": (*(_POINTER, _SIZE, _SIZE) * 3, *(_SIZE,) * 3, _POINTER),
}


def open_library(path: Path) -> ctypes.CDLL:
    """The library at `path`, its functions declared. Raises KernelError if it is not one of ours."""
    try:
        c = ctypes.CDLL(str(path))
        for name, arguments in SIGNATURES.items():
            getattr(c, name).argtypes = arguments
            getattr(c, name).restype = ctypes.c_int
    except (OSError, AttributeError) as error:
        raise KernelError(f"{path} is not a library that can be loaded here: {error}; build it again") from error
    found = c.mpk_abi_version()
    if found != ABI_VERSION:
        raise KernelError(
            f"{path} has ABI version {found}, but this mpcpipe needs {ABI_VERSION}: install mpcpipe again"
        )
    return c


class Binding:
    """The loaded library, for the mixins that bind its functions."""

    c: ctypes.CDLL


def failure(status: int, what: str) -> KernelError:
    """What to raise for a status that is not 0."""
    reason = STATUS_TEXTS.get(status, f"unknown status {status}")
    return KernelError(f"the native library cannot compute {what}: {reason}")


def refuse(*tensors: torch.Tensor) -> ValueError:
    """What to raise for tensors that the library does not take."""
    found = ", ".join(f"{tensor.dtype} on {tensor.device}" for tensor in tensors)
    takes = "int32 or int64 CPU tensors (products float32 too), all of one dtype"
    return ValueError(f"the native library takes {takes}, not {found}")


def flat(x: torch.Tensor, n: int, dtype: torch.dtype) -> torch.Tensor:
    """x, checked to be n elements of `dtype`, laid out without gaps."""
    if x.dtype != dtype or dtype not in INTEGERS or not x.is_cpu:
        raise refuse(x)
    if x.numel() != n:
        raise ValueError(f"{x.numel()} elements do not fit {n}")
    return x.contiguous()


def plane_of(x: torch.Tensor, n: int) -> torch.Tensor:
    """x, checked to be a plane of n bits, laid out without gaps."""
    if x.dtype != torch.int64 or not x.is_cpu:
        raise refuse(x)
    if x.numel() != (n + 63) // 64:
        raise ValueError(f"a plane of {n} bits has {(n + 63) // 64} words, not {x.numel()}")
    return x.contiguous()
