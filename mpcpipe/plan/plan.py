"""A plan: the cut, slots, micro-batches, pieces and the schedule that a job runs with, and what they are to take."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mpcpipe.errors import PlanError
from mpcpipe.plan.actions import Action, Schedule, dumps, loads
from mpcpipe.plan.check import validate
from mpcpipe.plan.partition import Choice
from mpcpipe.plan.simulate import Span

FORMAT = 2
_RESOLUTION = 1000


@dataclass(frozen=True)
class StageCost:
    """What a stage does in one step, all micro-batches together: seconds of computing on one core of its own, payload
    bytes that this party sends, rounds one after another.
    """

    first: int
    layers: tuple[str, ...]
    slots: int
    compute_s: float
    sent_bytes: int
    rounds: int


@dataclass(frozen=True)
class Plan:
    """Frozen, and the same at every party. `job`: digest of the job that it was made for.

    pieces: of a micro-batch in large layers. predicted_step_s: simulated. sequential_step_s: of the run without a
    pipeline. bound_s, limited_by: `Bound`.
    compute_s, bytes_s, latency_s: C, B and L of a step. spans: who does what when in the simulated step.
    """

    job: str
    schedule: Schedule
    stages: tuple[StageCost, ...]
    batch_size: int
    pieces: int
    machine: str
    net: str
    cores: float
    predicted_step_s: float
    sequential_step_s: float
    bound_s: float
    limited_by: str
    compute_s: float
    bytes_s: float
    latency_s: float
    why: str
    spans: tuple[Span, ...] = ()

    @property
    def starts(self) -> tuple[int, ...]:
        """First layer of each stage."""
        return tuple(stage.first for stage in self.stages)

    @property
    def slots(self) -> tuple[int, ...]:
        """Workers of each stage."""
        return self.schedule.slots

    @property
    def microbatches(self) -> int:
        """Micro-batches of a step."""
        return self.schedule.microbatches

    def check_job(self, digest: str) -> None:
        """A plan that was made for another job is a PlanError."""
        if digest != self.job:
            raise PlanError(
                f"a plan made for another job: it is for {self.job[:16]}, and this job is {digest[:16]}; the model, "
                f"the batch size or another key that all parties agree on has changed; make the plan again"
            )

    def to_json(self) -> str:
        """As JSON: times in seconds, sizes in bytes."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain["format"] = FORMAT
        plain["schedule"] = dumps(self.schedule)
        plain["stages"] = [dataclasses.asdict(stage) for stage in self.stages]
        plain["spans"] = [[s.worker, str(s.action), s.start_s, s.end_s, s.computes] for s in self.spans]
        return json.dumps(plain, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The inverse. What is no plan, or has a schedule that is not right, is a PlanError."""
        try:
            plain = json.loads(text)
            form = plain.pop("format")
            if form != FORMAT:
                raise PlanError(f"the plan has format {form}; this version of mpcpipe reads {FORMAT}; make it again")
            plain["schedule"] = loads(plain["schedule"])
            plain["stages"] = tuple(_stage(stage) for stage in plain["stages"])
            plain["spans"] = tuple(Span(w, Action.parse(a), b, e, bool(c)) for w, a, b, e, c in plain["spans"])
            plan = cls(**plain)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PlanError(f"this is no plan of mpcpipe: {error}; make it again with `mpcpipe plan`") from error
        validate(plan.schedule)
        if len(plan.stages) != plan.schedule.stages:
            raise PlanError(f"the plan has {len(plan.stages)} stages, but a schedule of {plan.schedule.stages}")
        return plan


def _stage(plain: Mapping[str, Any]) -> StageCost:
    return StageCost(**{**plain, "layers": tuple(plain["layers"])})


def make_plan(choice: Choice, job: str, machine: str, net: str, cores: float) -> Plan:
    """The plan of a choice. machine, net: names of what it was made for. cores: this party's share."""
    best, limit = choice.best, choice.best.bound
    stages = []
    for number, first in enumerate(best.cut.starts):
        sums = best.cut.totals(number)
        names = tuple(node.name for node in best.cut.layers(number))
        slots = best.schedule.slots[number]
        stages.append(StageCost(first, names, slots, sums.compute_s, sums.sent_bytes, sums.rounds))
    return Plan(
        job,
        best.schedule,
        tuple(stages),
        best.cut.batch_size,
        best.cut.pieces,
        machine,
        net,
        cores,
        choice.simulation.step_s,
        choice.sequential_s,
        limit.bound_s,
        limit.limited_by,
        limit.compute_s,
        limit.bytes_s,
        limit.latency_s,
        choice.why(),
        _coarse(choice.simulation.spans),
    )


def _coarse(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """Neighbouring spans of an action in one, where they are shorter than a picture shows; the longer part decides."""
    least_s = max((span.end_s for span in spans), default=0.0) / _RESOLUTION
    out: list[Span] = []
    last: dict[int, int] = {}
    for span in spans:
        at = last.get(span.worker)
        before = out[at] if at is not None else None
        if at is not None and before is not None and before.action == span.action and before.end_s == span.start_s:
            both = (before, span)
            if before.computes == span.computes or min(s.end_s - s.start_s for s in both) < least_s:
                longer = max(both, key=lambda s: s.end_s - s.start_s)
                out[at] = Span(span.worker, span.action, before.start_s, span.end_s, longer.computes)
                continue
        last[span.worker] = len(out)
        out.append(span)
    return tuple(out)


def timeline(plan: Plan, width: int = 100) -> str:
    """A row for each worker and a column for each slice of the simulated time.

    A letter where the worker computes (F, B, I, W, U), a dot where it waits for the other parties, a blank where it
    waits for another worker of its own party, or is done.
    """
    end_s = max((span.end_s for span in plan.spans), default=0.0)
    names = [worker.name for worker in plan.schedule.workers]
    left = max(map(len, names), default=0)
    shares: list[list[dict[str, float]]] = [[{} for _ in range(width)] for _ in names]
    for span in plan.spans if end_s else ():
        sign = span.action.kind if span.computes else "."
        first, last = span.start_s / end_s * width, span.end_s / end_s * width
        for column in range(int(first), min(width - 1, int(last)) + 1):
            share = min(last, column + 1) - max(first, column)
            cell = shares[span.worker][column]
            cell[sign] = cell.get(sign, 0.0) + share
    rows = []
    for name, cells in zip(names, shares, strict=True):
        signs = [_most(cell) for cell in cells]
        rows.append(f"{name.rjust(left)} │{''.join(signs)}│")
    scale = f"{end_s:.3g} s"
    return "\n".join([*rows, f"{' ' * left} └{scale.rjust(width, '─')}┘"])


def _most(cell: Mapping[str, float]) -> str:
    best = max(cell, key=lambda sign: cell[sign], default=" ")
    return best if cell and sum(cell.values()) >= 0.5 else " "
