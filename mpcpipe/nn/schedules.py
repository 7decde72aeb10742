"""Learning-rate schedules: functions from the step (counted from 0) to the rate, the same bits on every machine."""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[int], float]


def constant(learning_rate: float) -> Schedule:
    """Always the same."""
    return lambda step: learning_rate


def stepped(learning_rate: float, every: int, gamma: float) -> Schedule:
    """Times gamma after every `every` steps (torch's StepLR)."""

    def rate(step: int) -> float:
        value = learning_rate
        for _ in range(step // every):
            value *= gamma
        return value

    return rate


def _cosine(x: float) -> float:
    """cos(x) for x in [0, pi] by its series: the same bits on every machine, unlike a C library's."""
    term = total = 1.0
    for n in range(1, 16):
        term *= -x * x / ((2 * n - 1) * (2 * n))
        total += term
    return total


def cosine(learning_rate: float, steps: int, lowest: float = 0.0) -> Schedule:
    """Half a cosine from learning_rate to `lowest` over `steps` (torch's CosineAnnealingLR), then `lowest`."""

    def rate(step: int) -> float:
        done = min(step, steps) / steps
        return lowest + (learning_rate - lowest) * 0.5 * (1.0 + _cosine(math.pi * done))

    return rate


def warmed_up(schedule: Schedule, steps: int) -> Schedule:
    """The first `steps` steps rise linearly to the schedule's own rate: step i has (i + 1) / steps of it."""
    return lambda step: schedule(step) * min(1.0, (step + 1) / steps)
