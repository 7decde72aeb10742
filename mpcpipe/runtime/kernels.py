"""The job's choice of kernels, `services.kernels`: which back end computes each product of the training, and why.

    native, products, torch, reference     that one for all (see `ring.choice`)
    auto                                   for each operation and shape of the job, what a quick timing finds fastest

The calls are those of a dry run of the real layers. Timings are on small batches, and kept in the user's cache folder.
The choice never changes a result: all back ends give the same bits.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from mpcpipe.job.model import build_chain
from mpcpipe.job.schema import Job
from mpcpipe.nn.layers import walk
from mpcpipe.plan.cost import chain_costs
from mpcpipe.plan.measure import one_thread
from mpcpipe.plan.profile import cached
from mpcpipe.ring import native
from mpcpipe.ring.choice import Call, candidates, choice, compute, noted
from mpcpipe.ring.shapes import ConvShape, conv_shape
from mpcpipe.runtime.planning import setting_of

FILE = "kernels.{party}.json"
_MOST_MACS = 1 << 21
_RUNS = 3
_HOPELESS = 2.0
"""A back end that takes this many times the best so far is not timed again."""


def choose_kernels(job: Job) -> dict[str, Any] | None:
    """Make the job's choice in this process; what was chosen, as plain values, or None where the rule stands."""
    wish = job.services.kernels
    choice().use({}, "native" if wish == "auto" else wish)
    if wish == "native":
        return None
    if wish != "auto":
        return {"rule": wish}
    calls = sorted(calls_of(job), key=_text)
    timed = cached("kernels", {"calls": [_text(call) for call in calls]}, lambda: time_calls(calls))
    fastest = {call: min(timed[_text(call)], key=timed[_text(call)].__getitem__) for call in calls}
    choice().use(fastest)
    return {
        "rule": "auto",
        "chosen": [
            {"call": _text(call), "backend": backend, "microseconds": timed[_text(call)]}
            for call, backend in fastest.items()
        ],
    }


def write_choice(found: dict[str, Any] | None, run_folder: Path | None, party: str) -> None:
    """Into the run folder, for its party: what was chosen, with the times of all that was tried."""
    if found is not None and run_folder is not None:
        (run_folder / FILE.format(party=party)).write_text(json.dumps(found, indent=2) + "\n")


def calls_of(job: Job) -> set[Call]:
    """The products of one training step, by a dry run over each size of micro-batch."""
    _, chain = build_chain(job)
    for layer in walk(chain.layers):
        layer.working_bits = job.protocol.fraction_bits
    batch, parts = job.train.batch_size, job.pipeline.microbatches or 1
    with noted() as calls:
        for rows in {batch // parts, math.ceil(batch / parts)} - {0}:
            chain_costs(chain, setting_of(job), rows)
    return calls


def time_calls(calls: Sequence[Call]) -> dict[str, dict[str, float]]:
    """Microseconds of each back end for each call, cut to a small batch."""
    with one_thread():
        return {_text(call): _times(_smaller(call)) for call in calls}


def _times(call: Call) -> dict[str, float]:
    first, second = (torch.ones(shape, dtype=call.dtype) for shape in call.inputs)
    found: dict[str, float] = {}
    for backend in candidates(call):
        work = _work(backend, call, first, second)
        work()
        best = math.inf
        for _ in range(_RUNS):
            began = time.perf_counter()
            work()
            best = min(best, time.perf_counter() - began)
            if best > _HOPELESS * min(found.values(), default=math.inf) * 1e-6:
                break
        found[backend] = round(best * 1e6, 2)
    return found


def _work(backend: str, call: Call, first: torch.Tensor, second: torch.Tensor) -> Callable[[], torch.Tensor]:
    library = native.load()
    if backend not in ("native", "products") or library is None:
        return lambda: compute(backend, call, first, second)
    s = call.shape
    if not isinstance(s, ConvShape):
        return lambda: library.matmul(first, second)
    method = getattr(library, call.operator)
    return lambda: method(s, first, second, as_products=backend == "products")


def _smaller(call: Call) -> Call:
    """The same call on fewer rows or images, so that timing it takes milliseconds."""
    s = call.shape
    if isinstance(s, ConvShape):
        macs = math.prod(s.y) * math.prod(s.w[1:])
        images = max(1, min(s.x[0], s.x[0] * _MOST_MACS // max(1, macs)))
        x = (images, *s.x[1:])
        return Call(call.operator, call.dtype, conv_shape(x, s.w, s.stride, s.padding, s.dilation, s.groups))
    (m, k), (_, n) = s
    rows = max(1, min(m, _MOST_MACS // max(1, k * n)))
    return Call(call.operator, call.dtype, ((rows, k), (k, n)))


def _text(call: Call) -> str:
    """For people, and to sort by: the operation, the element, the shapes."""
    element = {torch.int64: "u64", torch.int32: "u32"}.get(call.dtype, str(call.dtype))
    s = call.shape
    if not isinstance(s, ConvShape):
        return f"{call.operator} {element} {_sizes(s[0])} {_sizes(s[1])}"
    how = f"stride {_sizes(s.stride)}, padding {_sizes(s.padding)}, dilation {_sizes(s.dilation)}, groups {s.groups}"
    return f"{call.operator} {element} x {_sizes(s.x)}, w {_sizes(s.w)}, {how}"


def _sizes(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
