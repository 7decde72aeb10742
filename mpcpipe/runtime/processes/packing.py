"""Values that the processes of one party hand to each other: JSON beside raw tensors. No pickle: only what is listed.

    value ──> {"#": "Fixed", "v": [{"T": 0}, 16]}  +  [tensor 0]        known classes go field by field

A tensor may carry what a protocol keeps with it (`vars`): that goes along. A dealer's tensors (`meta`) have no values.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import torch

from mpcpipe.errors import FrameError
from mpcpipe.nn.fixed import Fixed
from mpcpipe.plan.actions import Action, Done
from mpcpipe.protocol.additive2.linear import Operand
from mpcpipe.protocol.base import Opening
from mpcpipe.protocol.replicated4.evidence import Snapshot
from mpcpipe.runtime.record import Span
from mpcpipe.runtime.worker import Task

KINDS: dict[str, type] = {kind.__name__: kind for kind in (Fixed, Action, Done, Opening, Snapshot, Span, Task, Operand)}
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
        torch.float64,
        torch.float32,
    )
}


def pack(value: Any) -> tuple[bytes, list[torch.Tensor]]:
    """The value's JSON, and the tensors with values in it, flat or not, contiguous."""
    tensors: list[torch.Tensor] = []
    described: list[list[Any]] = []
    plain = _plain(value, tensors, described)
    return json.dumps({"v": plain, "t": described}, separators=(",", ":")).encode(), tensors


def unpack(data: bytes, tensors: Sequence[torch.Tensor]) -> Any:
    """The inverse. FrameError for what `pack` never makes."""
    try:
        content = json.loads(data)
        given = iter(tensors)
        made = [
            torch.empty(shape, dtype=_DTYPES[dtype], device="meta")
            if meta
            else next(given).view(_DTYPES[dtype]).reshape(shape)
            for dtype, shape, meta in content["t"]
        ]
        return _value(content["v"], made)
    except (ValueError, KeyError, TypeError, IndexError, StopIteration, RuntimeError, RecursionError) as error:
        raise FrameError("what another process of this party handed over cannot be read") from error


def sizes(data: bytes) -> list[int]:
    """Bytes of each tensor with values, as the JSON says."""
    try:
        return [
            _DTYPES[dtype].itemsize * torch.Size(shape).numel()
            for dtype, shape, meta in json.loads(data)["t"]
            if not meta
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise FrameError("what another process of this party handed over cannot be read") from error


def _plain(value: Any, tensors: list[torch.Tensor], described: list[list[Any]]) -> Any:
    def inner(one: Any) -> Any:
        return _plain(one, tensors, described)

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        described.append([str(value.dtype).removeprefix("torch."), list(value.shape), value.is_meta])
        at = len(described) - 1
        if not value.is_meta:
            tensors.append(value.detach().contiguous())
        return {"T": at, "k": {key: inner(kept) for key, kept in vars(value).items()}} if vars(value) else {"T": at}
    if isinstance(value, list | tuple):
        return {"l": [inner(one) for one in value]} if isinstance(value, list) else [inner(one) for one in value]
    if isinstance(value, bytes):
        return {"b": value.hex()}
    if type(value).__name__ in KINDS and dataclasses.is_dataclass(value):
        return {"#": type(value).__name__, "v": [inner(getattr(value, f.name)) for f in dataclasses.fields(value)]}
    if hasattr(value, "items"):
        return {"d": [[inner(key), inner(one)] for key, one in value.items()]}
    raise TypeError(f"{type(value).__name__} is not handed from process to process")


def _value(plain: Any, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(plain, list):
        return tuple(_value(one, tensors) for one in plain)
    if not isinstance(plain, dict):
        return plain
    if "T" in plain:
        tensor = tensors[plain["T"]]
        for key, kept in plain.get("k", {}).items():
            vars(tensor)[key] = _value(kept, tensors)
        return tensor
    if "l" in plain:
        return [_value(one, tensors) for one in plain["l"]]
    if "b" in plain:
        return bytes.fromhex(plain["b"])
    if "d" in plain:
        return {_value(key, tensors): _value(one, tensors) for key, one in plain["d"]}
    kind = KINDS[plain["#"]]
    return kind(*(_value(one, tensors) for one in plain["v"]))
