"""The hooks of the trainer for services: what they are told, and the one number that parties exchange for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mpcpipe.job.schema import Job
from mpcpipe.link.base import Part
from mpcpipe.plan.actions import Schedule
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.rounds import Round
from mpcpipe.runtime.record import Measured, Span
from mpcpipe.services.base import RunFacts, Services, StepFacts


class Beside:
    """The services of a party, or none."""

    def __init__(
        self, services: Services | None, job: Job, p: Protocol, schedule: Schedule, run_folder: Path | None
    ) -> None:
        self._services, self._job, self._p = services, job, p
        self._schedule, self._run_folder = schedule, run_folder

    def begin(self, steps: int, origin_s: float) -> None:
        """Training begins."""
        if self._services is not None:
            names, party = self._job.parties.names, self._p.party
            facts = RunFacts(party, names[party], len(names), steps, self._schedule, origin_s, self._run_folder)
            self._services.begin(facts)

    def step(
        self, step: int, count: int, began_s: float, seconds: float, measured: Measured, spans: Sequence[Span]
    ) -> None:
        """`count` steps are done, the last of which is `step`."""
        if self._services is not None:
            compute_s, wait_s = measured.compute_s, measured.wait_s
            self._services.step(StepFacts(step, count, began_s, began_s + seconds, compute_s, wait_s, spans))

    async def exchange(self, step: int, count: int, steps: int) -> None:
        """Where the job says so: the shortest step that each party can do, in whole milliseconds, to all. 1 round.

        A party without the service says 0. Nothing else of it leaves a party: no power, no clock.
        Security: a time that all parties see anyhow, when they wait for each other.
        """
        every = self._job.services.power.exchange_every
        if not every or step >= steps or step // every == (step - count) // every:
            return
        own = 0 if self._services is None else math.ceil(1e3 * self._services.target_s())
        target_s = max(await _all_numbers(self._p.at(f"target {step}"), own)) / 1e3
        if self._services is not None and target_s > 0:
            self._services.agreed(target_s)

    def end(self) -> dict[str, Any]:
        """Training is over; what the services report."""
        if self._services is None:
            return {}
        reports = self._services.end()
        return {"services": reports} if reports else {}


async def _all_numbers(p: Protocol, own: int) -> list[int]:
    """Every party's number, at every party. They are public. 1 round."""
    others = p.peers
    sent = torch.tensor([own], dtype=torch.int64)
    part = [Part(torch.int64, 1)]
    received = await Round(p.label("target"), {party: [sent] for party in others}, dict.fromkeys(others, part))
    return [own, *(int(received[party][0].item()) for party in others)]
