"""The openings that took place, in groups: what, to whom, how many numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mpcpipe.protocol.base import Opening

TO_ALL = "all parties"


@dataclass(frozen=True)
class Opened:
    """Openings of one kind to the same parties. numbers: values in all of them. which: what sets them apart."""

    what: str
    to: str
    count: int
    numbers: int
    which: str


def openings_of(reveals: Sequence[Mapping[str, Any]]) -> tuple[Opening, ...]:
    """Those of a result."""
    return tuple(Opening(str(r["why"]), r["to"], tuple(r["shape"])) for r in reveals)


def grouped(openings: Sequence[Opening], names: Sequence[str]) -> tuple[Opened, ...]:
    """Tensors of the model together, losses together, and so on; in the order in which each kind came first."""
    groups: dict[tuple[str, int | None], list[Opening]] = {}
    for opening in openings:
        groups.setdefault((_kind(opening.why), opening.to), []).append(opening)
    return tuple(
        Opened(
            what,
            TO_ALL if to is None else names[to] if to < len(names) else f"party {to}",
            len(found),
            sum(math.prod(opening.shape) for opening in found),
            _which(found),
        )
        for (what, to), found in groups.items()
    )


def _kind(why: str) -> str:
    if why.startswith("model ") and "." in why:
        return "the trained model"
    return re.sub(r"loss of step \d+", "the mean loss of a step", why)


def _which(found: Sequence[Opening]) -> str:
    rests = [opening.why.rpartition(" ")[2] for opening in found]
    if len(found) == 1:
        return ""
    if all(rest.isdigit() for rest in rests):
        return f"steps {', '.join(rests)}" if len(rests) <= 4 else f"steps {rests[0]}, {rests[1]}, ... {rests[-1]}"
    return ", ".join(rests) if len(set(rests)) == len(rests) else ""
