"""One rank of those that mpirun, torchrun or srun started: from its environment to its part of the job."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpcpipe.errors import Interrupted, MpcpipeError, PlanError
from mpcpipe.job.schema import Job
from mpcpipe.launch.around import Around
from mpcpipe.launch.environment import Launched
from mpcpipe.launch.machine import PartyOptions
from mpcpipe.launch.meeting import Machine, Meeting, channels, check_place, fabric_of, hosts_of, machines, meet, places
from mpcpipe.launch.ranks import Seat, Seating, seating
from mpcpipe.launch.runs import new_folder
from mpcpipe.link.fabric import Fabric
from mpcpipe.plan.given import given_schedule
from mpcpipe.runtime.events import Emit


@dataclass(frozen=True)
class Company:
    """All ranks of a job, as one of them sees them. folder: of the run, the same name at all."""

    found: Launched
    meeting: Meeting
    job: Job
    changes: tuple[str, ...]
    seating: Seating
    machines: list[Machine]
    folder: Path

    @property
    def seat(self) -> Seat:
        """What this rank does."""
        return self.seating.seat(self.meeting.rank)

    def hosts(self, given: Sequence[tuple[str, int]] | None) -> list[str]:
        """Where the ranks listen; given: each party's address, if its users say it."""
        return hosts_of(self.machines) if given is None else [host for host, _ in given]

    @property
    def here(self) -> int:
        """How many ranks share this machine."""
        own = self.machines[self.meeting.rank].key
        return sum(machine.key == own for machine in self.machines)


class Alike(Exception):
    """All ranks have found the same mistake, in the job or in their number: one need say it."""

    def __init__(self, error: MpcpipeError, meeting: Meeting) -> None:
        super().__init__(str(error))
        self.error, self.meeting = error, meeting

    def say(self, how: Callable[[MpcpipeError], None]) -> None:
        """Rank 0 says it before any rank ends."""
        if self.meeting.rank == 0:
            how(self.error)
        with contextlib.suppress(MpcpipeError):
            self.meeting.exchange("said")


def join(
    found: Launched,
    job: Job,
    changes: list[str],
    environment: Mapping[str, str],
    plan: Callable[[Job, int], list[str]],
) -> Company:
    """Meet all ranks. `plan` chooses what a job leaves open, for so many parties on one machine, and says it as `--set`
    would; rank 0 does it for all.

    Errors: Alike, if the number of ranks fits neither parties nor workers, or a link is not for several machines;
    UsageError for a link that does not go with the launcher; ConnectError.
    """
    meeting = meet(found, job)
    where = machines(meeting, found, environment)
    if job.pipeline.leaves_choice:
        beside = sum(machine.key == where[0].key for machine in where)
        job, changes = planned_by_first(meeting, job, changes, min(beside, len(job.parties.names)), plan)
    try:
        check_place(job, where)
        seats = seating(job, given_schedule(job), found.world, found.by)
    except MpcpipeError as error:
        raise Alike(error, meeting) from error
    own = new_folder(job) if meeting.rank == 0 else None
    # Of what the first rank says only the name counts: where this party's files go is its own job's affair.
    folder = Path(job.run.output, Path(meeting.exchange(str(own or ""))[0]).name.lstrip("."))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Company(found, meeting, job, tuple(changes), seats, where, folder)


def planned_by_first(
    meeting: Meeting, job: Job, changes: list[str], beside: int, plan: Callable[[Job, int], list[str]]
) -> tuple[Job, list[str]]:
    """The job and its changes with what rank 0 has planned. PlanError if it says anything but a pipeline."""
    from mpcpipe.runtime.planning import CHOSEN_KEYS, with_choice

    said = meeting.exchange("\n".join(plan(job, beside)) if meeting.rank == 0 else "")[0].splitlines()
    for line in said:  # another party says it: it chooses a pipeline, and nothing else of this party's job
        if line.partition("=")[0] not in CHOSEN_KEYS:
            raise PlanError(f"the first rank says {line!r:.99} where it should say what it plans. Start all again")
    return with_choice(job, said), [*changes, *said]


def work(
    company: Company,
    options: PartyOptions,
    emit: Emit,
    given: tuple[tuple[str, int], ...] | None,
) -> dict[str, Any]:
    """This rank's part, to its end; its party's report if it leads the party, else {}."""
    from mpcpipe.launch.party import run_party

    job, meeting, seats, seat = company.job, company.meeting, company.seating, company.seat
    with places(meeting, job, seats, company.machines, given) as found:
        connections = channels(meeting, job, seats, found)
    fabric: Fabric | None = fabric_of(meeting, job, seats)
    worker = seat.worker or 0
    options = replace(
        options,
        party=seat.party,
        worker=seat.worker,
        addresses=tuple(found.addresses[seats.rank(party, worker)] for party in range(len(seats.names))),
        local_parties=company.here,
        run_folder=str(company.folder),
    )
    report = run_party(job, options, emit, Around(found.listener, fabric, connections, ended_together=True))
    if fabric is not None:
        fabric.close()
    meeting.close()
    return report


@contextlib.contextmanager
def stopped_by(found: Launched) -> Iterator[None]:
    """SIGTERM, which a launcher sends to all ranks when one has failed, and Ctrl-C, as an `Interrupted`."""

    def stop(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise Interrupted(
            "stopped by the user"
            if number == signal.SIGINT
            else f"stopped by {found.by}, which ends all ranks when one fails: the other messages say which"
        )

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
