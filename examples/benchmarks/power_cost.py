"""What the power service costs a training: processor time of a reading, of a step's hand-over and of an action's.

    python examples/benchmarks/power_cost.py [--device simulated:a100-40gb] [--policy perseus]

A reading comes every 0.1 s, in a thread of its own, with all that follows: meter, cap, policy, guard. The trainer's
thread hands over a step, the workers' threads tell of actions. Steps are those of a pipeline of four stages and eight
micro-batches, one in each interval.
"""

from __future__ import annotations

import argparse
import time

from mpcpipe.plan.actions import Schedule
from mpcpipe.plan.schedule import build
from mpcpipe.runtime.record import Span
from mpcpipe.services.base import RunFacts, StepFacts
from mpcpipe.services.power.cards import card_named
from mpcpipe.services.power.service import INTERVAL_S, PowerService
from mpcpipe.services.power.simulated import Simulated

ROUNDS = 200


def spans_of(schedule: Schedule, began_s: float) -> list[Span]:
    """One after the other: how long they take does not matter here."""
    found, at_s = [], began_s
    remaining = [list(worker.actions) for worker in schedule.workers]
    names = [worker.name for worker in schedule.workers]
    order = sorted(
        ((action.kind == "U", action.microbatch or 0, action.kind != "F",
          action.stage if action.kind == "F" else -action.stage, index, str(action))
         for index, actions in enumerate(remaining) for action in actions)
    )  # fmt: skip
    for *_, index, action in order:
        found.append(Span(names[index], action, at_s, at_s + 0.002, 0.001, 0.0))
        at_s += 0.002
    return found


def main() -> None:
    """Print the three figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="simulated:a100-40gb")
    parser.add_argument("--policy", default="perseus")
    parser.add_argument("--cap", type=float, default=200.0)
    words = parser.parse_args()
    options = {"policy": words.policy, "device": words.device, "cap_w": words.cap, "deadline_s": 0}
    schedule = build("1f1b", (1, 1, 1, 1), 8)
    now = [0.0]
    kind, _, card = words.device.partition(":")
    device = Simulated(card_named(card), now=lambda: now[0]) if kind == "simulated" else None
    service = PowerService(options, print, device, now=lambda: now[0])
    service.begin(RunFacts(0, "alice", 3, ROUNDS, schedule, 0.0))
    service._end_thread()  # its thread's work is done here
    service._stop.clear()
    reading_s = step_s = action_s = 0.0
    for number in range(1, ROUNDS + 1):
        done = StepFacts(number, 1, now[0], now[0] + INTERVAL_S, 0.05, 0.03, spans_of(schedule, now[0]))
        now[0] += INTERVAL_S
        began = time.thread_time()
        service.step(done)
        step_s += time.thread_time() - began
        began = time.thread_time()
        for span in done.spans:
            service.action(span.worker, span.action, True)
            service.action(span.worker, span.action, False)
        action_s += (time.thread_time() - began) / len(done.spans)
        began = time.thread_time()
        service.tick()
        reading_s += time.thread_time() - began
    service.close()
    share = reading_s / ROUNDS / INTERVAL_S
    print(
        f"a reading, with a step of {len(done.spans)} actions in each: {1e3 * reading_s / ROUNDS:.3f} ms, "
        f"{share:.2%} of a core"
    )
    print(f"a step handed over: {1e6 * step_s / ROUNDS:.1f} us; an action told of: {1e6 * action_s / ROUNDS:.1f} us")


if __name__ == "__main__":
    main()
