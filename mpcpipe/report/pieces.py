"""What a worker did when, in pieces, and in columns of a picture.

    action  0F3 ├──────────────────────────────┤
    pieces      ├ idle ┤ F ├ wait ┤ F ├ wait ┤ F
    columns          FF...FF..FFF

A sign stands for each kind: a letter where the worker computes (F, B, I, W, U), a dot where it waits for other parties,
a blank where it has nothing to do (another worker of its party has to finish first).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

WAITING, IDLE = ".", " "
COMPUTING = "FBIWU"


@dataclass(frozen=True)
class Piece:
    """From begin_s to end_s a worker did what `sign` stands for."""

    begin_s: float
    end_s: float
    sign: str


@dataclass(frozen=True)
class Row:
    """A worker and its pieces, in order and without overlap."""

    worker: str
    pieces: tuple[Piece, ...]


def columns(pieces: Iterable[Piece], begin_s: float, end_s: float, count: int) -> str:
    """A sign for each of `count` equal slices from begin_s to end_s: what took the most of it."""
    shares: list[dict[str, float]] = [{} for _ in range(count)]
    width_s = (end_s - begin_s) / count
    if width_s <= 0:
        return IDLE * count
    for piece in pieces:
        first, last = (piece.begin_s - begin_s) / width_s, (piece.end_s - begin_s) / width_s
        for at in range(max(0, int(first)), min(count, int(last) + 1)):
            share = min(last, at + 1) - max(first, at)
            if share > 0:
                shares[at][piece.sign] = shares[at].get(piece.sign, 0.0) + share
    return "".join(map(_most, shares))


def runs(signs: str) -> Iterator[tuple[str, int, int]]:
    """(sign, first column, one past the last) of every run of the same sign, without idle ones."""
    at = 0
    for sign, group in groupby(signs):
        length = len(list(group))
        if sign != IDLE:
            yield sign, at, at + length
        at += length


def _most(share: dict[str, float]) -> str:
    """The largest share; what is not covered was idle."""
    rest = 1.0 - sum(share.values())
    best = max(share, key=lambda sign: share[sign], default=IDLE)
    return best if share and share[best] >= rest else IDLE
