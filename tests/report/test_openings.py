"""Openings in groups; nothing is left out."""

from __future__ import annotations

from mpcpipe.protocol.base import Opening
from mpcpipe.report.openings import Opened, grouped, openings_of
from mpcpipe.report.page import same_openings
from tests.report.runs import result


def test_groups() -> None:
    opened = openings_of(result()["reveals"])
    model = "0.weight, 0.bias, 3.weight, 3.bias, 7.weight, 7.bias, 9.weight, 9.bias"
    assert grouped(opened, ["alice", "bob", "carol"]) == (
        Opened("the mean loss of a step", "all parties", 3, 3, "steps 1, 2, 3"),
        Opened("number of right answers", "all parties", 1, 1, ""),
        Opened("the trained model", "alice", 8, 13_706, model),
    )


def test_unknown_ones_are_shown_as_they_are() -> None:
    opened = [
        Opening("something else", 5, (2, 3)),
        Opening("model digest", None, (4,)),
        Opening("model digest", None, ()),
    ]
    first, second = grouped(opened, ["alice"])
    assert first == Opened("something else", "party 5", 1, 6, "")
    assert second == Opened("model digest", "all parties", 2, 5, "")


def test_many_steps_are_shortened() -> None:
    opened = [Opening(f"loss of step {step}", None, ()) for step in range(10, 110, 10)]
    assert grouped(opened, [])[0].which == "steps 10, 20, ... 100"


def test_same_openings() -> None:
    one, other = Opening("a", None, ()), Opening("b", 1, (2,))
    assert same_openings([one, other], [other, one])
    assert not same_openings([one, one], [one])
    assert not same_openings([one], [Opening("a", 0, ())])
