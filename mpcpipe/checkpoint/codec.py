"""Tensors and text as a stream of bytes in the safetensors format, piece by piece: a model is never in memory twice.

    8 bytes      length of the header, little-endian
    header       JSON: by name dtype, shape and place of each tensor; under "__metadata__" texts by name
    the tensors  one behind the other, little-endian

Any program that reads safetensors reads such a file. Nothing in it is ever executed.

Source: the format's description, https://huggingface.co/docs/safetensors/index#format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch

from mpcpipe.errors import CheckpointError

DTYPES = {"I64": torch.int64, "I32": torch.int32, "U8": torch.uint8}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
MOST_HEADER_BYTES = 1 << 28


class Source(Protocol):
    """Where bytes come from, in order."""

    def fill(self, target: memoryview) -> None:
        """Fill all of `target` with the next bytes. CheckpointError if there are not so many."""
        ...

    def left(self) -> int:
        """How many bytes there are still."""
        ...


def encoded(tensors: Mapping[str, torch.Tensor], texts: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The pieces of the stream, in order."""
    table: dict[str, Any] = {"__metadata__": dict(texts)}
    place = 0
    for name, tensor in tensors.items():
        table[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, place + tensor.nbytes],
        }
        place += tensor.nbytes
    header = json.dumps(table).encode()
    header += b" " * (-len(header) % 8)
    yield len(header).to_bytes(8, "little")
    yield header
    for tensor in tensors.values():
        yield raw(tensor.contiguous())


def decoded(source: Source) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors and texts. CheckpointError unless the stream is exactly what `encoded` makes."""
    size = int.from_bytes(_bytes(source, 8), "little")
    if not 2 <= size <= min(MOST_HEADER_BYTES, source.left()):
        raise CheckpointError("its header says that it is longer than the file")
    try:
        table = json.loads(_bytes(source, size))
        texts = {str(name): str(text) for name, text in table.pop("__metadata__", {}).items()}
        entries = [(name, DTYPES[e["dtype"]], e["shape"], e["data_offsets"]) for name, e in table.items()]
        numbers = [n for _, _, shape, places in entries for n in (*shape, *places)]
        if any(type(n) is not int or not 0 <= n < 1 << 63 for n in numbers):
            raise ValueError("not a size")
        if any(math.prod(max(n, 1) for n in shape) >= 1 << 60 for _, _, shape, _ in entries):
            raise ValueError("not a shape")
        places = [(first, last) for _, _, _, (first, last) in entries]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError("its header is no table of tensors") from error
    starts = [0, *(last for _, last in places)]
    sizes = [math.prod(shape) * dtype.itemsize for _, dtype, shape, _ in entries]
    if any((first, last) != (start, start + n) for (first, last), start, n in zip(places, starts, sizes, strict=False)):
        raise CheckpointError("its header places tensors where they cannot be")
    if starts[-1] != source.left():
        raise CheckpointError(f"it has {source.left()} bytes of tensors where its header says {starts[-1]}")
    tensors = {}
    for name, dtype, shape, _ in entries:
        tensor = torch.empty(shape, dtype=dtype)
        source.fill(raw(tensor))
        tensors[name] = tensor
    return tensors, texts


def raw(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    if not tensor.numel():
        return memoryview(bytearray())
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def _bytes(source: Source, count: int) -> bytes:
    if count > source.left():
        raise CheckpointError("it is cut off")
    target = bytearray(count)
    source.fill(memoryview(target))
    return bytes(target)
