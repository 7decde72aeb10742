"""What a chain costs, layer by layer and direction by direction: exact rounds and bytes, and work in units.

Nothing is declared for it: the real layers and the real protocol run on tensors without values (`drive`), and every
round they ask for is written down with the work before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mpcpipe.nn.chain import Chain
from mpcpipe.nn.pieces import row_numel
from mpcpipe.plan.drive import FEATURES, LOSS, Setting, Solo, SoloTape, drive_step
from mpcpipe.plan.trace import Recorded, Segment, Trace, Work
from mpcpipe.protocol.base import Cost
from mpcpipe.protocol.rounds import Round

_NO_WORK = {"empty", "new_empty", "empty_like", "empty_strided", "detach", "_to_copy"}


@dataclass(frozen=True)
class ChainCosts:
    """What one party does in a step, for micro-batches of `rows`.

    layers: a `Recorded` for sharing the features, one for each layer, and one for the loss.
    """

    rows: int
    party: int
    layers: tuple[Recorded, ...]


def cost(trace: Trace) -> Cost:
    """Rounds, payload bytes that this party sends, and multiply-adds of matrix products and convolutions."""
    return Cost(
        sum(segment.is_round for segment in trace),
        sum(sum(segment.sent) for segment in trace),
        sum(segment.work.macs for segment in trace),
    )


def chain_costs(chain: Chain, setting: Setting, rows: int, party: int = 0) -> ChainCosts:
    """Costs of every layer of the chain for a micro-batch of `rows`, by a dry run. Tens of milliseconds a network.

    Party 0 never does less than the others: chunks that do not divide evenly are larger at the front.
    """
    meter = Meter(setting.parties)
    tape = SoloTape(_shadow, meter.draw)
    solo = Solo(_shadow, meter.watch)
    names = [FEATURES, *(layer.name for layer in chain.layers), LOSS]
    found: dict[tuple[str, str], list[Segment]] = {}

    def enter(name: str, direction: str) -> None:
        meter.take()
        meter.segments = found.setdefault((name, direction), [])

    with meter:
        drive_step(chain, setting, setting.party(party, tape), rows, solo, enter)
    shaped = zip(chain.layers, chain.output_shapes, strict=True)
    numels = {layer.name: row_numel(layer, shape) for layer, shape in shaped}
    layers = tuple(
        Recorded(name, {d: tuple(found[name, d]) for d in "FIWU" if (name, d) in found}, numels.get(name, 0))
        for name in names
    )
    return ChainCosts(rows, party, layers)


def _shadow(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the work of every torch operation while it is active, and cuts it at rounds."""

    def __init__(self, parties: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parties = parties
        self.segments: list[Segment] = []
        self._work = Work()

    def take(self) -> Work:
        """The work since the last time."""
        work, self._work = self._work, Work()
        return work

    def draw(self, nbytes: int) -> None:
        """A stream of so many bytes was made."""
        self._work += Work(drawn_bytes=nbytes, calls=1)

    def watch(self, step: Round | None) -> None:
        """A round, or the end of an operation."""
        sent, received = [0] * self.parties, [0] * self.parties
        if step is not None:
            for peer, tensors in step.send.items():
                sent[peer] = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            for peer, parts in step.receive.items():
                received[peer] = sum(part.nbytes for part in parts)
        self.segments.append(Segment(self.take(), tuple(sent), tuple(received)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in _NO_WORK or any(
            r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns
        ):
            return out
        if name == "mm":
            self._work += Work(macs=args[0].numel() * args[1].shape[1], calls=1)
        elif name == "convolution":
            self._work += Work(macs=out.numel() * args[1].numel() // args[1].shape[0], calls=1)
        elif name == "convolution_backward":
            self._work += Work(macs=args[0].numel() * args[2].numel() // args[2].shape[0], calls=1)
        else:
            self._work += Work(touched_bytes=_nbytes(args) + _nbytes((out,)), calls=1)
        return out


def _nbytes(values: Sequence[Any]) -> int:
    total = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            total += value.numel() * value.element_size()
        elif isinstance(value, list | tuple):
            total += _nbytes(value)
    return total
