"""From a job to its plan, and from "auto" to the arrangement that the plan says.

Parties measure different seconds, so one plans for all: the launcher where all parties are here, or `mpcpipe plan`,
whose keys go into everybody's job file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mpcpipe.data.batches import Batches
from mpcpipe.errors import PlanError
from mpcpipe.job.digest import agreement, digest
from mpcpipe.job.model import build_chain
from mpcpipe.job.present import present_names
from mpcpipe.job.schema import Job
from mpcpipe.job.units import bytes_per_s
from mpcpipe.nn.layers import walk
from mpcpipe.plan.actions import Schedule
from mpcpipe.plan.drive import Setting
from mpcpipe.plan.given import read_schedule
from mpcpipe.plan.machine import Machine
from mpcpipe.plan.needs import Dealt, evaluation_dealt, step_dealt
from mpcpipe.plan.net import Net
from mpcpipe.plan.partition import Wish
from mpcpipe.plan.plan import Plan
from mpcpipe.plan.planner import plan_for
from mpcpipe.protocol.registry import protocol_named
from mpcpipe.runtime.openings import RIGHT_ANSWERS, expected_openings
from mpcpipe.runtime.recipe import loss_of, optimizer_of


def job_digest(job: Job) -> str:
    """Digest of everything that a plan depends on: the public keys of the job, but how it is to be worked on."""
    return digest({key: value for key, value in agreement(job).items() if not key.startswith("pipeline.")})


def plan_job(job: Job, net: Net, local_parties: int, machine: Machine | None = None) -> Plan:
    """The best plan for what the job leaves open. Measures this machine the first time, unless `machine` is given.

    A `link.rate` of the job is taken for that of all parties.
    Errors: PlanError for what cannot be had, ModelError and JobError as for training.
    """
    _, chain = build_chain(job)
    if job.link.rate is not None and job.link.kind == "tcp":
        net = replace(net, paced_bytes_per_s=bytes_per_s(job.link.rate))
    return plan_for(chain, setting_of(job), net, job_digest(job), wish_of(job), local_parties, machine)


def plan_here(job: Job) -> Plan:
    """The plan where all of the job's parties are on this machine. Errors as `plan_job`."""
    return plan_job(job, Net(), len(present_names(job)))


PACED = 0.99
"""Of a line's rate: what to send at most, so that its queue stays empty."""
_WORTH = 0.97


def link_rate_that_pays(
    job: Job, net: Net, plan: Plan, local_parties: int, machine: Machine | None = None
) -> tuple[str, Plan] | None:
    """A `link.rate` with which the step is shorter than the plan's by some percents, and the plan with it.

    None if the job has one, or it does not pay.
    """
    if job.link.rate is not None or job.link.kind != "tcp" or math.isinf(net.rate_bytes_per_s):
        return None
    rate = f"{PACED * net.rate_bytes_per_s * 8e-6:.4g}Mbit/s"
    paced = plan_job(replace(job, link=replace(job.link, rate=rate)), net, local_parties, machine)
    return (rate, paced) if paced.predicted_step_s < _WORTH * plan.predicted_step_s else None


def setting_of(job: Job) -> Setting:
    """All that the costs of the job's layers depend on, besides the layers. Where several own rows: the first."""
    owners = [job.data.features.owner] if job.data.features else [part.owner for part in job.data.rows]
    first = owners[0]
    assert first is not None, "checked by job.load"
    return Setting(
        protocol=protocol_named(job.protocol.name),
        make_loss=lambda: loss_of(job.train, job.protocol.fraction_bits),
        make_optimizer=lambda: optimizer_of(job.train),
        classes=job.data.classes,
        batch_size=job.train.batch_size,
        parties=len(job.parties.names),
        ring_bits=job.protocol.ring_bits,
        fraction_bits=job.protocol.fraction_bits,
        compare_bits=job.protocol.compare_bits,
        pieces=job.pipeline.pieces or 1,
        learning_rate=job.train.learning_rate,
        owner=None if job.data.sharing == "once" else job.number(first),
    )


@dataclass(frozen=True)
class Dealings:
    """What a job needs of its dealer: for a step, on top where a step's loss is opened, and for an evaluation; and how
    many there are of each.
    """

    step: Dealt
    loss: Dealt
    evaluation: Dealt
    steps: int
    losses: int
    evaluations: int

    @property
    def all(self) -> Dealt:
        """The whole job."""
        return self.step * self.steps + self.loss * self.losses + self.evaluation * self.evaluations


def dealings_of(job: Job) -> Dealings | None:
    """What the job needs of its dealer, exactly; None if its protocol has none. Opens no data file.

    Micro-batches and pieces that are left to the planner count as one.
    """
    if protocol_named(job.protocol.name).dealer is None:
        return None
    _, chain = build_chain(job)
    for layer in walk(chain.layers):
        layer.working_bits = job.protocol.fraction_bits
    setting, batches = setting_of(job), Batches(job)
    parts = torch.arange(job.train.batch_size).tensor_split(job.pipeline.microbatches or 1)
    step, loss = step_dealt(chain, setting, [len(part) for part in parts])
    whys = [opening.why for opening in expected_openings(job, chain, batches.steps_per_epoch)]
    evaluations, every = whys.count(RIGHT_ANSWERS), job.reveal.loss_every
    evaluation = Dealt()
    if evaluations:
        parts = torch.arange(batches.test_rows).split(job.evaluate.batch_size or job.train.batch_size)  # type: ignore[no-untyped-call]
        evaluation = evaluation_dealt(chain, setting, [len(part) for part in parts])
    return Dealings(step, loss, evaluation, batches.steps, batches.steps // every if every else 0, evaluations)


def wish_of(job: Job) -> Wish:
    p = job.pipeline
    schedule: str | Schedule | None = None if p.schedule == "auto" else p.schedule
    if p.file is not None:
        schedule = read_schedule(Path(p.file))
    return Wish(p.stages or None, p.slots or None, p.microbatches or None, schedule, p.pieces or None)


def planned(job: Job, plan: Plan) -> Job:
    """The job with the plan's choice in place of what it left open. PlanError for a plan of another job."""
    plan.check_job(job_digest(job))
    chosen = replace(
        job.pipeline,
        stages=plan.starts,
        slots=plan.slots,
        microbatches=plan.microbatches,
        pieces=plan.pieces,
        schedule=plan.schedule.name,
    )
    return replace(job, pipeline=chosen)


def overrides_of(plan: Plan) -> list[str]:
    """The plan's choice as `--set` would say it, and as a job file does."""
    return overrides_for(plan.starts, plan.schedule, plan.pieces)


CHOSEN_KEYS = ("pipeline.stages", "pipeline.slots", "pipeline.microbatches", "pipeline.pieces", "pipeline.schedule")
"""What a plan chooses of a job."""


def overrides_for(starts: Sequence[int], schedule: Schedule, pieces: int) -> list[str]:
    """The same for any pipeline: first layers of its stages, schedule, pieces of a micro-batch."""
    return [
        f"pipeline.stages={list(starts)}",
        f"pipeline.slots={list(schedule.slots)}",
        f"pipeline.microbatches={schedule.microbatches}",
        f"pipeline.pieces={pieces}",
        f'pipeline.schedule="{schedule.name}"',
    ]


def with_choice(job: Job, overrides: Sequence[str]) -> Job:
    """The job with what `overrides_of` says, in place of what it leaves open."""
    said = {key.partition(".")[2]: json.loads(value) for key, _, value in (one.partition("=") for one in overrides)}
    chosen: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}
    return replace(job, pipeline=replace(job.pipeline, **chosen))


def refuse_auto(job: Job, names: Sequence[str]) -> None:
    """Parties that are started one by one cannot each make a plan of its own."""
    if job.pipeline.leaves_choice:
        raise PlanError(
            f"pipeline: {' and '.join(names)} run on their own, and each would choose another pipeline; "
            "put the keys that `mpcpipe plan` prints into everybody's job file"
        )
