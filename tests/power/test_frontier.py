"""The frontier against brute force on small graphs, and its cuts against the definition of a minimum cut."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcpipe.errors import PowerError
from mpcpipe.services.power.frontier import Choice, Flow, Frontier, Node, longest_path_s


def convex(name: str, least: int, steps: Sequence[int], after: tuple[str, ...]) -> Node:
    """Takes least, least + 1, ... seconds; each second saves less than the one before: `steps`, falling."""
    saved = sorted(steps, reverse=True)
    total = sum(saved)
    choices = [Choice(900 - k, float(least + k), float(total - sum(saved[:k]))) for k in range(len(saved) + 1)]
    return Node(name, tuple(choices), after)


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    count = draw(st.integers(1, 5))
    nodes: list[Node] = []
    for i in range(count):
        after = tuple(f"n{j}" for j in range(i) if draw(st.booleans()))
        if draw(st.integers(0, 3)) == 0:
            nodes.append(Node(f"n{i}", (Choice(0, float(draw(st.integers(0, 3))), 0.0),), after))
        else:
            steps = draw(st.lists(st.integers(1, 20), min_size=1, max_size=3))
            nodes.append(convex(f"n{i}", draw(st.integers(1, 3)), steps, after))
    return nodes


def brute_force(nodes: Sequence[Node], target_s: float) -> float:
    """The least energy of all combinations that are done by target_s."""
    best = math.inf
    for chosen in itertools.product(*(node.choices for node in nodes)):
        seconds = {node.name: choice.seconds for node, choice in zip(nodes, chosen, strict=True)}
        if longest_path_s(nodes, seconds) <= target_s:
            best = min(best, sum(choice.joules for choice in chosen))
    return best


@settings(max_examples=150, deadline=None, derandomize=True)
@given(nodes=graphs())
def test_every_point_costs_what_brute_force_finds(nodes: list[Node]) -> None:
    frontier = Frontier(nodes, 1.0)
    points = list(frontier.points())
    lengths = [point.seconds for point in points]
    assert lengths == [lengths[0] - k for k in range(len(lengths))], "one unit at a time"
    for point in points:
        assert point.joules == pytest.approx(brute_force(nodes, point.seconds))
        seconds = {name: choice.seconds for name, choice in frontier.choices_at(point).items()}
        assert longest_path_s(nodes, seconds) <= point.seconds
    fastest = longest_path_s(nodes, {node.name: node.choices[0].seconds for node in nodes})
    assert points[-1].seconds == fastest


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_minimum_cut_is_the_least_of_all_cuts(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 5))
    pairs = [pair for pair in itertools.permutations(range(count), 2) if data.draw(st.booleans())]
    edges = [(a, b, float(data.draw(st.integers(0, 9)))) for a, b in pairs]
    flow = Flow(count)
    for a, b, room in edges:
        flow.add(a, b, 0.0, room)
    near = flow.minimum_cut(0, count - 1)
    assert near is not None and near[0] and not near[count - 1]

    def cost(side: Sequence[bool]) -> float:
        return sum(room for a, b, room in edges if side[a] and not side[b])

    others = ([True, *middle, False] for middle in itertools.product([True, False], repeat=count - 2))
    assert cost(near) == min(map(cost, others))


def test_slack_is_used_and_the_critical_path_is_not() -> None:
    """Two branches meet; the short one gets the time that the long one takes anyway."""
    fast, slow = Choice(1000, 2.0, 10.0), Choice(500, 4.0, 4.0)
    long = Node("long", (fast, slow))
    wait = Node("wait", (Choice(0, 3.0, 0.0),), ("long",))
    short = Node("short", (fast, slow))
    end = Node("end", (fast, slow), ("wait", "short"))
    frontier = Frontier([long, wait, short, end], 1.0)
    point = frontier.point_for(7.0)
    assert {name: c.clock_mhz for name, c in frontier.choices_at(point).items()} == {
        "long": 1000,
        "wait": 0,
        "short": 500,
        "end": 1000,
    }
    assert point.joules == 24.0


def test_a_target_that_cannot_be_met_gives_the_fastest() -> None:
    node = Node("a", (Choice(1000, 2.0, 10.0), Choice(500, 4.0, 4.0)))
    point = Frontier([node], 1.0).point_for(1.0)
    assert point.seconds == 2.0


def test_a_clock_that_is_slower_and_dearer_is_never_taken() -> None:
    node = Node("a", (Choice(1000, 1.0, 10.0), Choice(500, 2.0, 4.0), Choice(100, 9.0, 5.0)))
    frontier = Frontier([node], 0.25)
    first = next(frontier.points())
    assert first.seconds == 2.0
    assert frontier.choices_at(first)["a"].clock_mhz == 500


def test_a_circle_is_refused() -> None:
    one = Choice(1, 1.0, 1.0)
    with pytest.raises(PowerError, match="circle"):
        Frontier([Node("a", (one,), ("b",)), Node("b", (one,), ("a",))], 1.0)
    with pytest.raises(PowerError, match="not in the graph"):
        Frontier([Node("a", (one,), ("b",))], 1.0)
