"""Columns show what took the most of each slice, by hand-worked shares."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mpcpipe.report.pieces import IDLE, Piece, columns, runs


def test_the_larger_share_wins() -> None:
    pieces = [Piece(0.0, 0.6, "F"), Piece(0.6, 1.0, "."), Piece(1.0, 1.24, "B"), Piece(1.24, 2.0, ".")]
    assert columns(pieces, 0.0, 2.0, 2) == "F."
    assert columns(pieces, 0.0, 2.0, 1) == "."  # 0.4 + 0.76 of 2
    assert columns(pieces, 0.0, 2.0, 10) == "FFF..B...."


def test_what_is_not_covered_is_idle() -> None:
    assert columns([Piece(1.0, 1.4, "F")], 0.0, 3.0, 3) == "   "
    assert columns([Piece(1.0, 1.6, "F")], 0.0, 3.0, 3) == " F "
    assert columns([Piece(-5.0, 0.5, "U"), Piece(2.5, 9.0, "W")], 0.0, 3.0, 6) == "U    W"
    assert columns([], 1.0, 1.0, 4) == "    "


def test_runs() -> None:
    assert list(runs("  FF.F ")) == [("F", 2, 4), (".", 4, 5), ("F", 5, 6)]


@given(st.lists(st.sampled_from("FB. U"), min_size=1, max_size=40), st.integers(1, 5))
def test_pieces_on_the_grid_come_back(signs: list[str], fine: int) -> None:
    pieces = [Piece(at, at + 1.0, sign) for at, sign in enumerate(signs) if sign != IDLE]
    shown = columns(pieces, 0.0, len(signs), len(signs) * fine)
    assert shown == "".join(sign * fine for sign in signs)
    drawn = [IDLE] * len(shown)
    for sign, first, end in runs(shown):
        drawn[first:end] = sign * (end - first)
    assert "".join(drawn) == shown
