"""The graph of a step, from what the workers did: for each action its computing and its waiting, and what it waits for.

A span of a worker becomes two nodes: computing, which a slower clock stretches (queueing for the processor stretches
with it), and communication of fixed duration. Edges: the worker's own order, and the schedule's needs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpcpipe.plan.actions import Action, Schedule, leaves, needs
from mpcpipe.services.base import SpanOf
from mpcpipe.services.power.frontier import Choice, Node


@dataclass(frozen=True)
class Part:
    """An action, or several updates side by side: seconds of computing and of waiting for messages; worker: its index.
    after: positions of the parts before it."""

    name: str
    worker: int
    compute_s: float
    fixed_s: float
    after: tuple[int, ...]


def step_graph(schedule: Schedule, spans: Sequence[SpanOf]) -> list[Part]:
    """One part a span, each after those that come before it in time. spans: all of what `schedule` has, else ValueError
    says so: an incomplete picture would promise slack that is not there."""
    index = {worker.name: number for number, worker in enumerate(schedule.workers)}
    ordered = sorted(spans, key=lambda span: (span.begin_s, span.end_s))
    done: defaultdict[Action, list[int]] = defaultdict(list)
    for position, span in enumerate(ordered):
        for action in _actions(span):
            for leaf in leaves(action):
                done[leaf].append(position)
    times: Counter[Action] = Counter()
    last: dict[str, int] = {}
    parts: list[Part] = []
    for position, span in enumerate(ordered):
        after = {last[span.worker]} if span.worker in last else set()
        for action in _actions(span):
            times[action] += 1
            for need in needs(schedule, action, times[action] if action.kind == "U" else 1):
                if len(done[need.action]) < need.times:
                    raise ValueError(f"{action} needs {need.action}, of which there is no span")
                after.add(done[need.action][need.times - 1])
        last[span.worker] = position
        waited_s = span.wait_s
        compute_s = max(0.0, span.end_s - span.begin_s - span.idle_s - waited_s)
        # A span that overlaps what it needs (it began, and was idle) comes after it all the same.
        name = f"{span.worker} {span.action}"
        parts.append(Part(name, index[span.worker], compute_s, waited_s, tuple(sorted(after))))
    return parts


def _actions(span: SpanOf) -> list[Action]:
    return [Action.parse(word) for word in span.action.split()]


def longest_s(parts: Sequence[Part], slower: Callable[[int], float]) -> float:
    """How long the step takes if computing of worker w takes slower(w) times as long."""
    return max(ends_s(parts, slower).values(), default=0.0)


def ends_s(parts: Sequence[Part], slower: Callable[[int], float]) -> dict[int, float]:
    """When each part is done, by its position, if all begin as early as they can."""
    ends: dict[int, float] = {}

    def end(at: int) -> float:
        if at not in ends:
            part = parts[at]
            begin = max((end(before) for before in part.after), default=0.0)
            ends[at] = begin + part.compute_s * slower(part.worker) + part.fixed_s
        return ends[at]

    for at in range(len(parts)):
        end(at)
    return ends


def nodes_of(parts: Sequence[Part], choices: Callable[[Part], tuple[Choice, ...]]) -> list[Node]:
    """For `frontier`: of each part a node for its computing with these choices, then one for its communication."""
    nodes = []
    for at, part in enumerate(parts):
        before = tuple(f"{other}~" for other in part.after)
        nodes.append(Node(f"{at}", choices(part), before))
        nodes.append(Node(f"{at}~", (Choice(0, part.fixed_s, 0.0),), (f"{at}",)))
    return nodes
