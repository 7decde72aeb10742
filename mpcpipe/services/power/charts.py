"""What the pictures of a replay show, as numbers: the PNG (`plots`) and the page (`replay_page`) draw the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpcpipe.services.power.replay import Comparison, Task
from mpcpipe.services.power.serving import Interval

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a7a7a", "#000000")
"""Okabe and Ito (2008)."""
_MEAN_OF = 10


@dataclass(frozen=True)
class Curve:
    """A policy's values at xs; halves: of 95 % intervals."""

    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    halves: tuple[float, ...] = ()


@dataclass(frozen=True)
class Drawn:
    """A chart. steps: drawn as (x, y) corners of a line that is a limit, not a measurement."""

    title: str
    x_name: str
    y_name: str
    curves: tuple[Curve, ...]
    steps: tuple[tuple[float, float], ...] = ()


def charts(found: Comparison) -> tuple[Drawn, ...]:
    """Throughput and violations by cap, for each network with several single caps; power over time for the rest."""
    drawn: list[Drawn] = []
    networks: dict[str, list[Task]] = {}
    for task in found.tasks:
        if len(task.phases) == 1:
            networks.setdefault(task.world.grid.name, []).append(task)
        else:
            drawn.append(_followed(found, task))
    for network, tasks in networks.items():
        tasks = sorted(tasks, key=lambda task: task.phases[0].cap_w)
        if len(tasks) == 1:
            drawn.append(_followed(found, tasks[0]))
        else:
            drawn += [_by_cap(found, network, tasks), _saved(found, network, tasks)]
    return tuple(drawn)


def _by_cap(found: Comparison, network: str, tasks: list[Task]) -> Drawn:
    caps = tuple(task.phases[0].cap_w for task in tasks)
    curves = []
    for name in found.policies:
        at = [Interval.of([o.throughput_per_s for o in found.outcomes[task.name, name]]) for task in tasks]
        curves.append(Curve(name, caps, tuple(i.mean for i in at), tuple(i.half for i in at)))
    return Drawn(f"{network}: throughput", "cap, W", "requests/s", tuple(curves))


def _saved(found: Comparison, network: str, tasks: list[Task]) -> Drawn:
    caps = tuple(task.phases[0].cap_w for task in tasks)
    curves = []
    for name in found.policies:
        at = [Interval.of([1000 * o.gross_j for o in found.outcomes[task.name, name]]) for task in tasks]
        curves.append(Curve(name, caps, tuple(i.mean for i in at), tuple(i.half for i in at)))
    return Drawn(f"{network}: energy", "cap, W", "mJ a request", tuple(curves))


def _followed(found: Comparison, task: Task) -> Drawn:
    """Power of the first seed, means of a second."""
    curves = []
    for name in found.policies:
        rows = np.array(found.outcomes[task.name, name][0].trace)
        whole = len(rows) // _MEAN_OF * _MEAN_OF
        seconds, watts = (rows[:whole, i].reshape(-1, _MEAN_OF).mean(axis=1) for i in (0, 1))
        curves.append(Curve(name, tuple(seconds.tolist()), tuple(watts.tolist())))
    steps, at = [], 0.0
    for phase in task.phases:
        steps += [(at, phase.cap_w), (at + phase.seconds, phase.cap_w)]
        at += phase.seconds
    return Drawn(f"{task.name}: power", "seconds", "W", tuple(curves), tuple(steps))
