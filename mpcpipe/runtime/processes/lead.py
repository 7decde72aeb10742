"""The first worker of a party whose workers are processes: it trains as if all were threads, and gives the orders.

layers    ──> each worker's layers and optimizers as they are here, before the first step and after `spread`
run       ──> steps to carry out;  <── what it took, losses, openings, evidence
collect   ──> <── the layers and optimizers of that worker's stages: for evaluations, checkpoints, the model
end       ──> the work is done
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mpcpipe.link.base import Mesh
from mpcpipe.nn.layers import walk
from mpcpipe.plan.actions import Schedule
from mpcpipe.runtime.crew import counts
from mpcpipe.runtime.memory import peak_rss_bytes
from mpcpipe.runtime.processes.fellows import Fellows
from mpcpipe.runtime.record import Measured, Span
from mpcpipe.runtime.stage import Stage
from mpcpipe.runtime.worker import Shared, Task, Worker


@dataclass(frozen=True)
class Took:
    """What one worker's part of a run took. clock_s: seconds from `perf_counter` to the time of day, on its machine."""

    clock: int
    wire_bytes: int
    payload_bytes: int
    cpu_s: float
    clock_s: float
    peak_rss_bytes: int


def clock_s() -> float:
    """What to add to `time.perf_counter` for the time of day."""
    return time.time() - time.perf_counter()


def carry_out(worker: Worker, schedule: Schedule, tasks: Sequence[Task], clock: int, evidence: Any) -> Took:
    """One worker's part, in its own process, from the round clock and evidence that all start with."""
    mesh = worker.mesh
    wire, payload = counts([mesh])
    cpu_s = time.process_time()
    mesh.clock = clock
    for stage in schedule.workers[worker.index].stages:
        worker.shared.stages[stage].begin()
    worker.p.learn(evidence)
    worker.run(schedule, tasks)
    sent = counts([mesh])
    return Took(mesh.clock, sent[0] - wire, sent[1] - payload, time.process_time() - cpu_s, clock_s(), peak_rss_bytes())


class LeadCrew:
    """In the place of a `Crew`: worker 0 is here, the others are behind `fellows`."""

    def __init__(self, shared: Shared, mesh: Mesh, fellows: Fellows, abort: Callable[[BaseException], None]) -> None:
        self.shared, self.fellows = shared, fellows
        self.worker = Worker(shared, mesh, 0)
        self._abort = abort
        self._spread = self._rows_given = False
        self._peaks: dict[int, int] = {}

    @property
    def elsewhere_rss_bytes(self) -> int:
        """The other processes' peaks of memory, added up."""
        return sum(self._peaks.values())

    def run(self, schedule: Schedule, tasks: Sequence[Task]) -> tuple[Measured, dict[int, float], list[Span]]:
        """As `Crew.run`."""
        try:
            return self._run(schedule, tasks)
        except BaseException as error:
            self.fellows.fail(error)
            self._abort(error)
            raise

    def _run(self, schedule: Schedule, tasks: Sequence[Task]) -> tuple[Measured, dict[int, float], list[Span]]:
        p, worker = self.shared.protocol, self.worker
        if not self._spread:
            self._give_layers(schedule)
            self._spread = True
        began, clock, evidence = time.perf_counter(), worker.mesh.clock, p.evidence()
        for other in self.fellows.others:
            self.fellows.tell(other, ("run", list(tasks), clock, evidence))
        own = carry_out(worker, schedule, tasks, clock, evidence)
        p.learn(worker.p.evidence())
        tooks, spans, losses = [own], list(worker.spans), dict(worker.losses)
        for other, (took, theirs, opened, openings, learned) in sorted(self.fellows.answers().items()):
            later_s = took["clock_s"] - own.clock_s
            spans += [_moved(span, later_s) for span in theirs]
            losses |= opened
            p.openings.extend(openings)
            p.learn(learned)
            self._peaks[other] = took["peak_rss_bytes"]
            tooks.append(Took(**took))
        self.shared.handover.forget()
        worker.mesh.clock = max(took.clock for took in tooks)
        seconds = time.perf_counter() - began
        count = len(tooks)
        wait_s = sum(span.wait_s for span in spans) / count
        busy_s = sum(span.end_s - span.begin_s - span.wait_s - span.idle_s - span.queued_s for span in spans) / count
        measured = Measured(
            compute_s=busy_s,
            cpu_s=sum(took.cpu_s for took in tooks),
            wait_s=wait_s,
            idle_s=max(0.0, seconds - wait_s - busy_s),
            sent_bytes=sum(took.wire_bytes for took in tooks),
            payload_bytes=sum(took.payload_bytes for took in tooks),
            rounds=worker.mesh.clock - clock,
        )
        return measured, losses, spans

    def _give_layers(self, schedule: Schedule) -> None:
        last = len(self.shared.stages) - 1
        for other in self.fellows.others:
            stages = schedule.workers[other].stages
            rows = self.shared.feed.kept if not self._rows_given and (0 in stages or last in stages) else None
            self.fellows.tell(other, ("layers", {s: state(self.shared.stages[s]) for s in stages}, rows))
        self._rows_given = True

    def collect(self) -> None:
        """Have all layers and optimizers here as they are at their workers now."""
        for other in self.fellows.others:
            self.fellows.tell(other, ("collect",))
        for states in self.fellows.answers().values():
            for stage, given in states.items():
                put_state(self.shared.stages[stage], given)

    def spread(self) -> None:
        """What is here has changed: before the next run, all workers get theirs again."""
        self._spread = False

    def end(self) -> None:
        """No more orders."""
        for other in self.fellows.others:
            self.fellows.tell(other, ("end",))
        self.fellows.answers()


def took_of(took: Took) -> dict[str, Any]:
    """As plain values."""
    return asdict(took)


def state(stage: Stage) -> dict[str, Any]:
    """All that a stage holds between two steps."""
    return {
        "layers": {leaf.name: (leaf.parameters, leaf.buffers) for leaf in walk(stage.layers)},
        "optimizers": {name: (made.state, made.public) for name, made in stage.optimizers.items()},
        "updates": stage.updates,
    }


def put_state(stage: Stage, given: dict[str, Any]) -> None:
    """The inverse."""
    for leaf in walk(stage.layers):
        leaf.parameters, leaf.buffers = given["layers"][leaf.name]
    for name, made in stage.optimizers.items():
        made.state, made.public = given["optimizers"][name]
    stage.updates = given["updates"]


def _moved(span: Span, later_s: float) -> Span:
    """A span of another process, by this one's clock."""
    waits = tuple((begin + later_s, end + later_s) for begin, end in span.waits)
    values = vars(span) | {"begin_s": span.begin_s + later_s, "end_s": span.end_s + later_s, "waits": waits}
    return Span(**values)
