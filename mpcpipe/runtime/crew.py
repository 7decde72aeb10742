"""All workers of one party: one of them runs in the caller's thread, several in threads of their own.

Kernels and sockets let go of the interpreter's lock, so workers compute and communicate at the same time. The first
worker that fails ends all, at this party and at the others, with its cause.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from mpcpipe.link.base import Mesh
from mpcpipe.plan.actions import Schedule
from mpcpipe.runtime.record import Measured, Span
from mpcpipe.runtime.turns import Turns
from mpcpipe.runtime.worker import Shared, Task, Worker


class Crew:
    """Worker i works on `meshes[i]`, at most `cores` of them at a time. `abort` tells the others of a failure."""

    def __init__(
        self, shared: Shared, meshes: Sequence[Mesh], abort: Callable[[BaseException], None], cores: int = 1
    ) -> None:
        self.shared = shared
        self._turns = Turns(cores) if len(meshes) > cores else None
        self.workers = [Worker(shared, mesh, index) for index, mesh in enumerate(meshes)]
        self._abort = abort

    elsewhere_rss_bytes = 0
    """Memory of this party's other processes: there are none."""

    def collect(self) -> None:
        """Have all weights here: where workers are threads, they are."""
        return None

    def spread(self) -> None:
        """What is here has changed, and all are to have it before the next run: threads do."""
        return None

    def end(self) -> None:
        """No more runs."""
        return None

    @property
    def meshes(self) -> list[Mesh]:
        """The workers' meshes."""
        return [worker.mesh for worker in self.workers]

    def run(self, schedule: Schedule, tasks: Sequence[Task]) -> tuple[Measured, dict[int, float], list[Span]]:
        """Carry out `schedule`, whose steps are `tasks`. What it took in all, the losses opened, by step, and
        when
        which worker did what."""
        before = counts(self.meshes)
        began, cpu_s = time.perf_counter(), time.process_time()
        clock = max(mesh.clock for mesh in self.meshes)
        for mesh in self.meshes:
            mesh.clock = clock
        for stage in self.shared.stages:
            stage.begin()
        before_all = self.shared.protocol.evidence()
        for worker in self.workers:
            worker.p.learn(before_all)
        self._all(schedule, tasks)
        for worker in self.workers:
            self.shared.protocol.learn(worker.p.evidence())
        self.shared.handover.forget()
        spans = [span for worker in self.workers for span in worker.spans]
        losses = {step: loss for worker in self.workers for step, loss in worker.losses.items()}
        seconds = time.perf_counter() - began
        wire, payload = (after - start for after, start in zip(counts(self.meshes), before, strict=True))
        # Waiting and idling workers of several are averaged: a step's seconds are divided into three.
        count = len(self.workers)
        wait_s = sum(span.wait_s for span in spans) / count
        busy_s = sum(span.end_s - span.begin_s - span.wait_s - span.idle_s - span.queued_s for span in spans) / count
        return (
            Measured(
                compute_s=busy_s,
                cpu_s=time.process_time() - cpu_s,
                wait_s=wait_s,
                idle_s=max(0.0, seconds - wait_s - busy_s),
                sent_bytes=wire,
                payload_bytes=payload,
                rounds=max(mesh.clock for mesh in self.meshes) - clock,
            ),
            losses,
            spans,
        )

    def _all(self, schedule: Schedule, tasks: Sequence[Task]) -> None:
        if len(self.workers) == 1:
            try:
                self.workers[0].run(schedule, tasks)
            except BaseException as error:
                self._abort(error)
                raise
            return
        failures: list[BaseException] = []

        def work(worker: Worker) -> None:
            worker.mesh.turn = self._turns
            try:
                worker.run(schedule, tasks)
            except BaseException as error:
                failures.append(error)
                self.shared.handover.fail(error)
                self._abort(error)
            finally:
                worker.mesh.turn = None

        threads = [
            threading.Thread(target=work, args=(worker,), name=f"worker {worker.index}") for worker in self.workers
        ]
        for thread in threads:
            thread.daemon = True
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException as error:  # a signal, in the main thread
            self.shared.handover.fail(error)
            self._abort(error)
            raise
        if failures:
            raise failures[0]


def counts(meshes: Sequence[Mesh]) -> tuple[int, int]:
    """Bytes sent so far over all links of these: on the wire, and payload."""
    links = [link for mesh in meshes for link in mesh.links.values()]
    return sum(link.traffic.sent_wire_bytes for link in links), sum(link.traffic.sent_payload_bytes for link in links)
