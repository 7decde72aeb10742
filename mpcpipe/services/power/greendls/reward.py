"""What the agent sees, and what it is rewarded for."""

from __future__ import annotations

from mpcpipe.services.power.setting import Observation

MARGIN = 0.92
"""Of the objective, what a request may take."""
WAIT_FACTOR = 1.2
"""Waiting times count this much in the guard."""
_FIRST = (0.1, 0.0, 0.0)


IN_TIME = 200.0
"""What the requests of one objective's time are divided by; at 200 ms it is the published rate / 1000."""


def state(observation: Observation, slo_s: float, tdp_w: float) -> tuple[float, float, float, float]:
    """(mean power of the last batch over the power limit, its wait and its run over the objective, load).

    Wait and run are cut at 1. load: requests within an objective's time, over 200; the published agent has rate / 1000
    at 200 ms, and the rate / 10 at 10 s. Source: GREENDLS's published agent.
    """
    rate = load(observation.rate_per_s or 0.0, slo_s)
    if observation.power_mean_w is None or observation.exec_s is None or observation.latency_s is None:
        return (*_FIRST, rate)
    wait_s = observation.latency_s - observation.exec_s
    return observation.power_mean_w / tdp_w, min(1.0, wait_s / slo_s), min(1.0, observation.exec_s / slo_s), rate


def load(rate_per_s: float, slo_s: float) -> float:
    """The last entry of the state."""
    return rate_per_s * slo_s / IN_TIME


def published_reward(delay_s: float, predicted_j: float, slo_s: float) -> float:
    """150 * delay / energy in time, 0.92 SLO - delay when late; delay in ms, energy in mJ a request.

    In time it grows with the delay, too: it asks for the use of the slack as well as for little energy.
    Source: GREENDLS's published agent.
    """
    late_ms = (MARGIN * slo_s - delay_s) * 1e3
    return 150.0 * delay_s / predicted_j if late_ms >= 0 else late_ms


def reward(delay_s: float, spent_j: float, reference_j: float, slo_s: float) -> float:
    """-energy a request over a reference; 1 less when late, and less the later.

    spent_j: what a request costs beyond a GPU at rest, the waiting for its batch included: a clock that idles at 60 W
    is no bargain. Energy is all that counts in time, and a violation costs more than any saving brings. Beyond twice
    the objective later is no worse: one long queue must not outweigh all else that was learned.
    """
    cost = spent_j / reference_j
    late = min(delay_s / slo_s, 2.0) - MARGIN
    return -cost if late <= 0 else -cost - 1.0 - late


def guarded(batch: int, queue: int, age_s: float, rate_per_s: float, slo_s: float) -> int:
    """The batch that may be waited for, at least 1.

    w = 1.2 (age of the oldest request + (b - queue) / rate). From the objective on: what is there. From 0.92 of it:
    85 % of b. Source: GREENDLS's published agent; it can give 0 there, which is no batch.
    """
    wait_s = WAIT_FACTOR * (age_s + (batch - queue) / rate_per_s)
    if wait_s >= slo_s:
        return max(1, queue)
    return max(1, int(0.85 * batch)) if wait_s >= MARGIN * slo_s else batch
