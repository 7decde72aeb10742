"""From a rank to what it does: one rank a party, or one rank for each worker of each party.

    mpirun -n 3     rank 0  alice            mpirun -n 6     rank 0  alice, worker 0 (stage 0)
                    rank 1  bob                              rank 1  alice, worker 1 (stage 1)
                    rank 2  carol                            rank 2  bob,   worker 0 (stage 0) ...

A party's workers have consecutive ranks, so launchers that fill one machine after the other keep them together.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpcpipe.errors import PlanError, UsageError
from mpcpipe.job.schema import Job
from mpcpipe.plan.actions import Schedule, Worker
from mpcpipe.plan.given import given_schedule


@dataclass(frozen=True)
class Seat:
    """What one process does: all of a party (worker None), or one of its workers."""

    party: int
    worker: int | None = None


@dataclass(frozen=True)
class Seating:
    """Which rank does what. workers: processes a party; 0: one, with all workers as its threads."""

    names: tuple[str, ...]
    schedule: Schedule
    workers: int = 0

    @property
    def world(self) -> int:
        """How many processes there are."""
        return len(self.names) * max(1, self.workers)

    def seat(self, rank: int) -> Seat:
        """What `rank` does."""
        return Seat(*divmod(rank, self.workers)) if self.workers else Seat(rank)

    def rank(self, party: int, worker: int = 0) -> int:
        """Who does that."""
        return party * max(1, self.workers) + worker

    def name(self, seat: Seat) -> str:
        """In words: `alice`, or `alice (worker 1, stage 1)`."""
        name = self.names[seat.party]
        return name if seat.worker is None else worker_name(name, seat.worker, self.schedule.workers[seat.worker])

    def table(self) -> list[str]:
        """A line for each rank."""
        threads = len(self.schedule.workers)
        also = f", {threads} workers as threads" if threads > 1 and not self.workers else ""
        return [f"rank {rank} -> {self.name(self.seat(rank))}{also}" for rank in range(self.world)]


def worker_name(party: str, index: int, worker: Worker) -> str:
    """A party's worker in words."""
    stages = "stage" if len(worker.stages) == 1 else "stages"
    return f"{party} (worker {index}, {stages} {'+'.join(map(str, worker.stages))})"


def seating(job: Job, schedule: Schedule, world: int, by: str) -> Seating:
    """The seats for `world` ranks. UsageError, with the numbers that fit, if they are neither one a party nor one a
    worker; PlanError if every worker would be a process and a stage has several slots."""
    names, workers = job.parties.names, len(schedule.workers)
    asked = job.pipeline.workers == "processes"
    if world == len(names) and not (asked and workers > 1):
        return Seating(names, schedule)
    if world == len(names) * workers:
        check_processes(schedule)
        return Seating(names, schedule, workers)
    fits = [f"{len(names)} (one a party)"] if not asked or workers == 1 else []
    if workers > 1:
        fits.append(f"{len(names) * workers} (one for each of the {workers} workers of each party)")
    counted = f"{len(names)} parties ({', '.join(names)})"
    raise UsageError(
        f"{by} started {world} rank{'s' if world != 1 else ''}; the job has {counted} and {workers} "
        f"worker{'s' if workers != 1 else ''} a party: start {' or '.join(fits)}"
    )


def local_seating(job: Job) -> Seating | None:
    """All seats, where the job says that workers are processes; else None. Errors: PlanError."""
    if job.pipeline.workers == "threads":
        return None
    schedule = given_schedule(job)
    check_processes(schedule)
    return Seating(job.parties.names, schedule, len(schedule.workers)) if len(schedule.workers) > 1 else None


def check_processes(schedule: Schedule) -> None:
    """PlanError if two workers share a stage's weights: then they must share memory, too."""
    for stage, slots in enumerate(schedule.slots):
        if slots > 1:
            raise PlanError(
                f"pipeline.slots gives stage {stage} {slots} slots, whose workers share its weights; workers that are "
                'processes need one slot a stage. Give each stage one slot, or say pipeline.workers = "threads" '
                f"and start one process a party ({schedule.stages} stages with one slot each would be "
                f"{schedule.stages} processes a party)"
            )
