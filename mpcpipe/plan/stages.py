"""Stages from layers: what each action of each stage takes, for any cut and any number of rows.

features │ layer 0  layer 1 │ layer 2 ... │ layer n-1  loss
         └──── stage 0 ─────┘└─ stage 1 ─┘└──── last ──────
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from mpcpipe.errors import PlanError
from mpcpipe.nn.grain import pieces_for
from mpcpipe.plan.actions import Action
from mpcpipe.plan.machine import Node
from mpcpipe.plan.trace import Timed, TimedTrace, Totals, side_by_side, totals

NodesOf = Callable[[int], tuple[Node, ...]]
"""Rows of a micro-batch -> the features' sharing, every layer, the loss; in seconds."""


def check_stages(stages: Sequence[int], layers: int, loss_alone: bool = False) -> None:
    """First layers of stages that make no cut of a chain of `layers` are a PlanError.

    loss_alone: a last stage that begins after the last layer, and has nothing but the loss, is allowed.
    """
    shown = f"stages = {list(stages)}"
    if not stages or stages[0] != 0:
        raise PlanError(f"{shown}: the first stage begins with layer 0; write the first layer of each stage")
    for before, after in itertools.pairwise(stages):
        if after <= before:
            raise PlanError(f"{shown}: {after} comes after {before}, but first layers must rise")
    last = layers if loss_alone else layers - 1
    if stages[-1] > last:
        raise PlanError(f"{shown}: there is no layer {stages[-1]}; the model has layers 0 to {layers - 1}")


@lru_cache(maxsize=256)
def split(rows: int, microbatches: int) -> tuple[int, ...]:
    """Rows of each micro-batch, the larger ones first (as `torch.tensor_split`)."""
    if microbatches > rows:
        raise PlanError(
            f"a batch of {rows} rows cannot be cut into {microbatches} micro-batches; use at most {rows} of them"
        )
    return tuple(rows // microbatches + (m < rows % microbatches) for m in range(microbatches))


def joined(traces: Iterable[TimedTrace]) -> TimedTrace:
    """One after another; computing that no round separates becomes one piece."""
    out: list[Timed] = []
    open_s, pieces = 0.0, 1
    for trace in traces:
        for piece in trace:
            if piece.pieces != pieces and open_s:
                out.append(Timed(open_s, pieces=pieces))
                open_s = 0.0
            pieces = piece.pieces
            open_s += piece.compute_s
            if piece.is_round:
                out.append(Timed(open_s, piece.sent_bytes, piece.received_bytes, pieces))
                open_s = 0.0
    return (*out, Timed(open_s, pieces=pieces)) if open_s else tuple(out)


def _sum(trace: TimedTrace) -> Timed:
    return Timed(
        sum(x.compute_s for x in trace), sum(x.sent_bytes for x in trace), sum(x.received_bytes for x in trace)
    )


def between(few: tuple[Node, ...], few_rows: int, many: tuple[Node, ...], many_rows: int) -> NodesOf:
    """Nodes for any number of rows on the line through two: what layers take is a constant and so much a row."""

    def at(rows: int) -> tuple[Node, ...]:
        share = (rows - few_rows) / (many_rows - few_rows) if many_rows != few_rows else 0.0

        def piece(a: Timed, b: Timed) -> Timed:
            return Timed(
                max(0.0, a.compute_s + share * (b.compute_s - a.compute_s)),
                round(a.sent_bytes + share * (b.sent_bytes - a.sent_bytes)),
                round(a.received_bytes + share * (b.received_bytes - a.received_bytes)),
            )

        def trace(a: TimedTrace, b: TimedTrace) -> TimedTrace:
            if len(a) == len(b):
                return tuple(piece(x, y) for x, y in zip(a, b, strict=True))
            # A protocol may take fewer rounds for few elements: the sums lie on the line, the pieces are the nearer's.
            near = b if share > 0.5 else a
            whole, own = piece(_sum(a), _sum(b)), _sum(near)
            compute, sent, received = (
                target / (base or 1)
                for target, base in (
                    (whole.compute_s, own.compute_s),
                    (whole.sent_bytes, own.sent_bytes),
                    (whole.received_bytes, own.received_bytes),
                )
            )
            return tuple(
                Timed(x.compute_s * compute, round(x.sent_bytes * sent), round(x.received_bytes * received))
                for x in near
            )

        def node(a: Node, b: Node) -> Node:
            return Node(a.name, {d: trace(mine, b.traces[d]) for d, mine in a.traces.items()}, a.row_numel)

        return tuple(node(a, b) for a, b in zip(few, many, strict=True))

    return at


@dataclass(frozen=True)
class Cut:
    """A chain cut into stages, for a batch in micro-batches. starts: first layer of each stage.

    pieces: as `nn.pieces`. overlap: one computes while another's messages travel; otherwise they share their rounds.
    """

    nodes_of: NodesOf
    starts: tuple[int, ...]
    batch_size: int
    microbatches: int
    pieces: int = 1
    overlap: bool = True
    _cache: dict[tuple[int, str, int], TimedTrace] = field(default_factory=dict, compare=False, repr=False)

    def trace(self, action: Action) -> TimedTrace:
        """What an action takes."""
        rows = split(self.batch_size, self.microbatches)[(action.microbatch or 0) % self.microbatches]
        key = (action.stage, action.kind, rows)
        if key not in self._cache:
            self._cache[key] = self._make(*key)
        return self._cache[key]

    def layers(self, stage: int) -> tuple[Node, ...]:
        """The layers of a stage, for the first micro-batch."""
        return self._parts(stage, split(self.batch_size, self.microbatches)[0])[1]

    def _parts(self, stage: int, rows: int) -> tuple[Node, tuple[Node, ...], Node]:
        features, *layers, loss = self.nodes_of(rows)
        ends = (*self.starts[1:], len(layers))
        nothing = Node("")
        return (
            features if stage == 0 else nothing,
            tuple(layers[self.starts[stage] : ends[stage]]),
            loss if stage + 1 == len(self.starts) else nothing,
        )

    def _make(self, stage: int, kind: str, rows: int) -> TimedTrace:
        features, layers, loss = self._parts(stage, rows)
        if kind == "U":
            return side_by_side([node.traces.get("U", ()) for node in layers])
        whole = {node.name: node for node in layers}
        parts = {node.name: node for node in self.nodes_of(-(-rows // self.pieces))} if self.pieces > 1 else {}

        def trace(name: str, direction: str) -> TimedTrace:
            node = whole[name]
            pieces = pieces_for(node.row_numel * rows, rows, self.pieces)
            if pieces == 1:
                return node.traces.get(direction, ())
            own = parts[name].traces.get(direction, ())
            return tuple(replace(one, pieces=pieces) for one in own) if self.overlap else side_by_side([own] * pieces)

        if kind == "F":
            own = [trace(node.name, "F") for node in layers]
            return joined([features.traces.get("F", ()), *own, loss.traces.get("F", ())])
        back = [trace(node.name, "I") for node in reversed(layers)]
        weights = [trace(node.name, "W") for node in layers]
        return joined({"I": back, "W": weights, "B": back + weights}[kind])

    def totals(self, stage: int) -> Totals:
        """Everything that a stage does in one step."""
        sums = totals(self.trace(Action(stage, "U")))
        for m in range(self.microbatches):
            for kind in "FB":
                sums += totals(self.trace(Action(stage, kind, m)))
        return sums
