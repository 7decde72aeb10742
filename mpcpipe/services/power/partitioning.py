"""How to cut a GPU among equal workers, and which clocks then use the power that there is.

Greedy: give the worker that adds most requests a second for each percent of the GPU, one after another, with the SM
clock solved so that the power is at the cap. Values in, values out.

Source: PctoDL's algorithms 1 and 2, after its authors' description; where this differs, `greedy` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from mpcpipe.errors import PowerError
from mpcpipe.services.power.policies.base import Predictor
from mpcpipe.services.power.setting import Setting, Slice

STEP = 5
"""Percent of the GPU."""
LADDER = (4, 8, 16, 32, 64, 96, 128, 192, 256)


@dataclass(frozen=True)
class Room:
    """What may be chosen. slo_s: no batch may take longer; None is no such limit."""

    predictor: Predictor
    sm_clocks_mhz: tuple[int, ...]
    memory_clocks_mhz: tuple[int, ...]
    batches: tuple[int, ...]
    cap_w: float
    slo_s: float | None = None
    max_workers: int = 5

    def feasible(self, setting: Setting) -> bool:
        """Within the cap and the latency."""
        if self.predictor.power_w(setting) > self.cap_w:
            return False
        return self.slo_s is None or self.predictor.exec_s(setting) <= self.slo_s


def highest_clock(room: Room, setting: Setting) -> Setting | None:
    """The setting with the highest SM clock whose power is within the cap; None if not even the lowest is.

    By bisection over the card's clocks: power rises with the clock, so log2(clocks) predictions do.
    """
    clocks = room.sm_clocks_mhz

    def fits(index: int) -> bool:
        return room.predictor.power_w(replace(setting, sm_clock_mhz=clocks[index])) <= room.cap_w

    if not fits(0):
        return None
    low, high = 0, len(clocks)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return replace(setting, sm_clock_mhz=clocks[low])


def best_clocks(room: Room, workers: tuple[Slice, ...]) -> tuple[float, Setting] | None:
    """(requests a second, setting) of the best memory clock and the SM clock that then fits; None if none does."""
    best: tuple[float, Setting] | None = None
    for memory in room.memory_clocks_mhz:
        found = highest_clock(room, as_setting(workers, memory))
        if found is None or not room.feasible(found):
            continue
        rate = room.predictor.throughput_per_s(found)
        if best is None or rate > best[0]:
            best = rate, found
    return best


def as_setting(workers: tuple[Slice, ...], memory_clock_mhz: int | None = None) -> Setting:
    """Workers as a setting; a single one that has all is no partition."""
    if len(workers) == 1 and workers[0].percent == 100:
        return Setting(None, memory_clock_mhz, workers[0].batch)
    return Setting(None, memory_clock_mhz, workers[0].batch, workers)


@lru_cache(maxsize=64)  # a replay asks the same for every seed
def greedy(room: Room, climbs: int = 1) -> Setting:
    """The published greedy plan, then what is left of the GPU by turns, then the best of it and of equal shares.

    Unlike the published one it stops when no further worker gains, and compares its plan with all equal partitions,
    from the whole GPU for one on: a greedy plan that begins with small shares cannot go back. climbs: from how many
    of the best plans small moves are tried.
    """
    plan: tuple[Slice, ...] = ()
    gained = 0.0
    while len(plan) < room.max_workers and 100 - _used(plan) >= STEP:
        best: tuple[float, float, Slice] | None = None
        for percent, batch in _candidates(room, 100 - _used(plan)):
            found = best_clocks(room, (*plan, Slice(percent, batch)))
            if found is not None:
                density = (found[0] - gained) / percent
                if best is None or density > best[0]:
                    best = density, found[0], Slice(percent, batch)
        if best is None or best[0] <= 0:
            break
        gained, plan = best[1], (*plan, best[2])
    plans = [_filled(plan)] if plan else []
    plans += [equal(count, batch) for count in range(1, room.max_workers + 1) for batch in room.batches]
    found_plans = [found for found in (best_clocks(room, workers) for workers in plans) if found is not None]
    if not found_plans:
        raise PowerError(nothing_fits(room))
    found_plans.sort(key=lambda pair: -pair[0])
    return max((_climbed(room, *pair) for pair in found_plans[:climbs]), key=lambda pair: pair[0])[1]


def checked_shares(shares: Sequence[int], max_workers: int) -> tuple[int, ...]:
    """Percents of a GPU, one a worker; none leaves them to be planned. Errors: PowerError for what is no such list."""
    right = isinstance(shares, list | tuple) and all(type(part) is int and part > 0 for part in shares)
    if not right or len(shares) > max_workers or sum(shares) > 100:
        raise PowerError(
            f"shares {shares!r}: percents of the GPU, one for each of at most {max_workers} workers, that add up to "
            "100 or less, such as [50, 50]"
        )
    return tuple(shares)


def exhaustive(room: Room, most_workers: int) -> Setting:
    """The best of all partitions in steps of 5 % that use the whole GPU: for small cases, to check `greedy`."""
    best: tuple[float, Setting] | None = None
    for shares in _shares(100, most_workers, 100):
        for batches in _multisets(room.batches, len(shares)):
            workers = tuple(Slice(p, b) for p, b in zip(shares, batches, strict=True))
            found = best_clocks(room, workers)
            if found is not None and (best is None or found[0] > best[0]):
                best = found
    if best is None:
        raise PowerError(nothing_fits(room))
    return best[1]


def equal(count: int, batch: int) -> tuple[Slice, ...]:
    """As equal as steps of 5 % allow."""
    steps, more = divmod(100 // STEP, count)
    return tuple(Slice(STEP * (steps + (i < more)), batch) for i in range(count))


def _candidates(room: Room, free: int) -> Iterator[tuple[int, int]]:
    for percent in range(STEP, free + 1, STEP):
        for batch in room.batches:
            if max(4, 0.8 * percent) <= batch <= 6.4 * percent:
                yield percent, batch


def _filled(plan: tuple[Slice, ...]) -> tuple[Slice, ...]:
    filled = list(plan)
    for turn in range((100 - _used(plan)) // STEP):
        at = turn % len(filled)
        filled[at] = replace(filled[at], percent=filled[at].percent + STEP)
    return tuple(filled)


def _climbed(room: Room, rate: float, setting: Setting) -> tuple[float, Setting]:
    """Better by small moves, as long as there are any: a batch one rung up or down, 5 % from one worker to another."""
    while True:
        moves = [found for found in (best_clocks(room, w) for w in neighbours(setting.workers, room.batches)) if found]
        best = max(moves, key=lambda pair: pair[0], default=None)
        if best is None or best[0] <= rate * 1.001:
            return rate, setting
        rate, setting = best


def neighbours(workers: tuple[Slice, ...], ladder: Sequence[int], rungs: int = 1) -> Iterator[tuple[Slice, ...]]:
    """Plans one move away with as many workers."""
    for i, worker in enumerate(workers):
        at = min(range(len(ladder)), key=lambda rung: abs(ladder[rung] - worker.batch))
        for rung in range(max(0, at - rungs), min(len(ladder), at + rungs + 1)):
            if ladder[rung] != worker.batch:
                yield (*workers[:i], replace(worker, batch=ladder[rung]), *workers[i + 1 :])
        for j, other in enumerate(workers):
            if i != j and worker.percent > STEP:
                moved = list(workers)
                moved[i] = replace(worker, percent=worker.percent - STEP)
                moved[j] = replace(other, percent=other.percent + STEP)
                yield tuple(moved)


def _used(plan: tuple[Slice, ...]) -> int:
    return sum(worker.percent for worker in plan)


def _shares(total: int, most: int, at_most: int) -> Iterator[tuple[int, ...]]:
    """Falling shares that make `total`."""
    if total == 0:
        yield ()
    elif most:
        for first in range(min(total, at_most), 0, -STEP):
            for rest in _shares(total - first, most - 1, first):
                yield (first, *rest)


def _multisets(batches: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    import itertools

    yield from itertools.product(batches, repeat=count)


def nothing_fits(room: Room) -> str:
    """Why no setting does, for an error."""
    low = Setting(room.sm_clocks_mhz[0], room.memory_clocks_mhz[0], room.batches[0])
    power, exec_s = room.predictor.power_w(low), room.predictor.exec_s(low)
    wanted = f"a cap of {room.cap_w:g} W"
    if room.slo_s is None:
        return f"no setting keeps {wanted}: the lowest clocks with batch {low.batch} already take {power:.0f} W"
    fast = replace(low, sm_clock_mhz=room.sm_clocks_mhz[-1], memory_clock_mhz=room.memory_clocks_mhz[-1])
    return (
        f"no setting keeps {wanted} with batches of at most {1000 * room.slo_s:g} ms: the lowest clocks take "
        f"{power:.0f} W and {1000 * exec_s:.1f} ms, the highest {1000 * room.predictor.exec_s(fast):.1f} ms with batch "
        f"{low.batch}"
    )
