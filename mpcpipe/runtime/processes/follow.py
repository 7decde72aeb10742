"""A worker of a party whose workers are processes, but the first: it does what the first says (`lead`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpcpipe.link.base import Mesh
from mpcpipe.runtime.pipeline import Arrangement
from mpcpipe.runtime.processes.fellows import Fellows
from mpcpipe.runtime.processes.lead import carry_out, put_state, state, took_of
from mpcpipe.runtime.worker import Shared, Worker

LEADER = 0


def follow(
    shared: Shared,
    mesh: Mesh,
    fellows: Fellows,
    arrangement: Arrangement,
    abort: Callable[[BaseException], None],
) -> None:
    """Carry out the first worker's orders until it says that the work is done."""
    worker = Worker(shared, mesh, fellows.index)
    try:
        while True:
            _, (kind, *rest) = fellows.hear()
            if kind == "end":
                return fellows.tell(LEADER, None)
            if kind == "run":
                fellows.tell(LEADER, _run(worker, arrangement, *rest))
            elif kind == "collect":
                own = arrangement.schedule.workers[fellows.index].stages
                fellows.tell(LEADER, {stage: state(shared.stages[stage]) for stage in own})
            else:
                states, rows = rest
                shared.feed.kept = shared.feed.kept if rows is None else rows
                for stage, given in states.items():
                    put_state(shared.stages[stage], given)
    except BaseException as error:
        fellows.fail(error)
        abort(error)
        raise


def _run(worker: Worker, arrangement: Arrangement, tasks: list[Any], clock: int, evidence: Any) -> tuple[Any, ...]:
    p = worker.shared.protocol
    before = len(p.openings)
    took = carry_out(worker, arrangement.schedule_of(len(tasks)), tasks, clock, evidence)
    worker.shared.handover.forget()
    return took_of(took), worker.spans, worker.losses, p.openings[before:], worker.p.evidence()
