"""From a job's [pipeline] to what runs: which layers are in which stage, and the schedule of the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mpcpipe.errors import PlanError
from mpcpipe.job.check import training_rows
from mpcpipe.job.schema import Job
from mpcpipe.nn.layers import BatchNorm, Layer, walk
from mpcpipe.plan.actions import Schedule, dumps
from mpcpipe.plan.given import given_schedule
from mpcpipe.plan.schedule import build
from mpcpipe.plan.stages import check_stages


@dataclass(frozen=True)
class Arrangement:
    """firsts: the first layer of each stage; schedule: what each worker does in one step.

    without_flush: how many steps may run through before everybody waits for everybody; 1 in exact schedules.
    """

    firsts: tuple[int, ...]
    schedule: Schedule
    without_flush: int = 1

    def cut(self, layers: Sequence[Layer]) -> list[Sequence[Layer]]:
        """The layers of each stage."""
        ends = [*self.firsts[1:], len(layers)]
        return [layers[first:end] for first, end in zip(self.firsts, ends, strict=True)]

    def schedule_of(self, steps: int) -> Schedule:
        """The schedule for so many steps at once."""
        one = self.schedule
        return one if steps == one.steps else build(one.name, one.slots, one.microbatches, steps)

    def agreement(self) -> dict[str, str]:
        """What the parties must agree on."""
        return {"pipeline.arrangement": f"stages {list(self.firsts)}, {dumps(self.schedule)}"}


def arrange(job: Job, layers: Sequence[Layer]) -> Arrangement:
    """The arrangement that the job asks for.

    Errors: PlanError for stages that do not exist, slots that do not fit, a schedule file that is not right.
    """
    pipeline = job.pipeline
    firsts, schedule = pipeline.stages, given_schedule(job)
    try:
        check_stages(firsts, len(layers))
    except PlanError as error:
        names = ", ".join(f"{number} {layer.name}" for number, layer in enumerate(layers))
        raise PlanError(f"pipeline.{error}. The layers are {names}") from error
    _check_order(firsts, schedule, layers)
    return Arrangement(firsts, schedule, training_rows(job) // job.train.batch_size if schedule.name == "async" else 1)


def _check_order(firsts: Sequence[int], schedule: Schedule, layers: Sequence[Layer]) -> None:
    """Running statistics depend on the order of micro-batches, which several slots do not keep."""
    ends = [*firsts[1:], len(layers)]
    for stage, (first, end) in enumerate(zip(firsts, ends, strict=True)):
        normalizing = [leaf.name for leaf in walk(layers[first:end]) if isinstance(leaf, BatchNorm)]
        if normalizing and schedule.slots[stage] > 1:
            raise PlanError(
                f"stage {stage} has {schedule.slots[stage]} slots, but {normalizing[0]} keeps running statistics, "
                "which depend on the order of the micro-batches; give that stage one slot"
            )
