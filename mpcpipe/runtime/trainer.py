"""The training of one party: epochs, steps, evaluations, and at the end the model to whom the job names."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mpcpipe.data.batches import Batches
from mpcpipe.data.owners import Owner
from mpcpipe.errors import CheckpointError
from mpcpipe.job.schema import Job
from mpcpipe.link.base import Mesh
from mpcpipe.nn.chain import Chain, state_dict
from mpcpipe.nn.loss import count_correct
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.rounds import gather, run
from mpcpipe.ring import native
from mpcpipe.ring.fixed import FixedPoint
from mpcpipe.runtime import record
from mpcpipe.runtime.beside import Beside
from mpcpipe.runtime.checkpoints import Checkpoints
from mpcpipe.runtime.clear import own_test_rows, right_answers
from mpcpipe.runtime.crew import Crew
from mpcpipe.runtime.events import Emit
from mpcpipe.runtime.feed import Feed
from mpcpipe.runtime.memory import peak_rss_bytes
from mpcpipe.runtime.model import ready_weights, reveal_model, save_model, save_shares, secrets, start_weights
from mpcpipe.runtime.openings import MODEL_DIGEST, RIGHT_ANSWERS, evaluated_after
from mpcpipe.runtime.pipeline import Arrangement
from mpcpipe.runtime.processes.fellows import Fellows
from mpcpipe.runtime.processes.follow import follow
from mpcpipe.runtime.processes.lead import LeadCrew
from mpcpipe.runtime.recipe import schedule_of
from mpcpipe.runtime.record import Measured, Span, StepLog
from mpcpipe.runtime.shared import shared_of
from mpcpipe.runtime.stage import infer
from mpcpipe.runtime.worker import Task
from mpcpipe.services.base import Services


@dataclass
class Trainer:
    """What one party needs to train. `batches` plans the rows of each step; `train` and `test` share them."""

    job: Job
    protocol: Protocol
    meshes: Sequence[Mesh]
    arrangement: Arrangement
    module: torch.nn.Module
    chain: Chain
    owner: Owner
    train: Feed
    test: Feed
    batches: Batches
    emit: Emit
    abort: Callable[[BaseException], None]
    run_folder: Path | None = None
    model_digest: bool = False
    cores: int = 1
    checkpoints: Checkpoints | None = None
    fellows: Fellows | None = None
    services: Services | None = None
    origin_s: float = 0.0
    origin_unix_s: float = 0.0

    @property
    def mesh(self) -> Mesh:
        """What is not a step (sharing all rows, evaluations, the model) goes over the first worker's links."""
        return self.meshes[0]

    def run(self) -> dict[str, Any]:
        """Train, evaluate, hand over the model. Returns the party's report."""
        self.origin_s, self.origin_unix_s = time.perf_counter(), time.time()
        job, p = self.job, self.protocol
        fixed = FixedPoint(p.ring, job.protocol.fraction_bits)
        start_weights(self.chain, p, fixed)
        crew = self._crew()
        losses: dict[int, float] = {}
        step, right_of = self._begin(crew, losses)
        self._keep_all_if_asked()
        log = StepLog()
        epochs, steps = job.train.epochs, self.batches.steps
        rate = schedule_of(job.train, self.batches.steps_per_epoch)
        self.emit({"event": "ready", "party": p.party, "steps": steps, "slow": native.status()["reason"]})
        beside = Beside(self.services, job, p, self.arrangement.schedule, self.run_folder)
        beside.begin(steps, self.origin_s)
        crew.shared.told = None if self.services is None else self.services.action
        for epoch in range(step // self.batches.steps_per_epoch + 1, epochs + 1):
            first = (epoch - 1) * self.batches.steps_per_epoch
            indices = list(self.batches.index(epoch - 1))[: steps - first]
            tasks = [self._task(first + 1 + i, rows, rate(first + i)) for i, rows in enumerate(indices)]
            for part in parts(tasks, self.arrangement.without_flush, done=step - first):
                began = time.perf_counter()
                measured, losses_by_step, spans = crew.run(self.arrangement.schedule_of(len(part)), part)
                run(p.at(f"check {step + len(part)}").check(), self.mesh)
                ended = time.perf_counter()
                for seconds in record.steps_seconds(spans, began, ended, len(part)):
                    log.add(seconds, measured.per_step(len(part)))
                step += len(part)
                losses |= losses_by_step
                beside.step(step, len(part), began, ended - began, measured, spans)
                run(beside.exchange(step, len(part), steps), self.mesh)
                self._write_down(spans, step)
                self._tell(step, epoch, log, losses_by_step)
                if part[-1] is tasks[-1] and evaluated_after(job, epochs if step >= steps else epoch, epochs):
                    crew.collect()
                    right_of = self._evaluate(step)
                if self.checkpoints is not None and self.checkpoints.due(step - len(part), step):
                    crew.collect()
                    self.checkpoints.take(step, crew.shared.stages, right_of, losses)
                    crew.spread()
            if step >= steps:
                break
        served = beside.end()
        crew.collect()
        crew.end()
        digest = self._model_digest() if self.model_digest else None
        values = self._hand_over_model(step)
        if values is not None and job.evaluate.how == "revealed":
            right_of = self._evaluate_revealed(values, step)
        own = log.mean(peak_rss_bytes() + crew.elsewhere_rss_bytes)
        measured_by_party = run(record.exchange(p.at("figures"), own), self.mesh)
        return self._report(log, losses, right_of, measured_by_party, digest) | served

    def _begin(self, crew: Crew | LeadCrew, losses: dict[int, float]) -> tuple[int, tuple[int, int] | None]:
        """Ready the weights: those of the start, or of the checkpoint to go on from. How many steps are done, and what
        the last evaluation said; puts the losses opened so far into `losses`.
        """
        if self.checkpoints is None or not self.checkpoints.resumes:
            run(ready_weights(self.chain, self.protocol), self.mesh)
            return 0, None
        found = self.checkpoints.resume(crew.shared.stages)
        if found.step > self.batches.steps:
            raise CheckpointError(
                f"the checkpoint is of step {found.step}, and the job ends after {self.batches.steps}: "
                "raise train.steps or train.epochs"
            )
        losses |= found.losses
        return found.step, found.right

    def _crew(self) -> Crew | LeadCrew:
        shared = shared_of(self.job, self.protocol, self.arrangement, self.chain, self.train, self.fellows)
        if self.fellows is not None:
            return LeadCrew(shared, self.mesh, self.fellows, self.abort)
        return Crew(shared, self.meshes, self.abort, self.cores)

    def follow(self, fellows: Fellows) -> None:
        """As a worker process, but the first: start as all do, then do what the first says."""
        start_weights(self.chain, self.protocol, FixedPoint(self.protocol.ring, self.job.protocol.fraction_bits))
        shared = shared_of(self.job, self.protocol, self.arrangement, self.chain, self.train, fellows)
        follow(shared, self.mesh, fellows, self.arrangement, self.abort)

    def _task(self, step: int, rows: torch.Tensor, rate: float) -> Task:
        reveal = self.job.reveal.loss_every
        parts = rows.tensor_split(self.arrangement.schedule.microbatches)
        return Task(step, parts, rate, reveal > 0 and step % reveal == 0)

    def _write_down(self, spans: Sequence[Span], step: int) -> None:
        """The workers' actions, as JSON lines in the run folder."""
        if self.run_folder is None:
            return
        name = self.job.parties.names[self.protocol.party]
        with (self.run_folder / f"events.{name}.jsonl").open("a") as file:
            file.writelines(span.line(step, self.origin_s) for span in spans)

    def _tell(self, step: int, epoch: int, log: StepLog, losses: dict[int, float]) -> None:
        self.emit(
            {
                "event": "step",
                "party": self.protocol.party,
                "step": step,
                "epoch": epoch,
                "seconds": log.steps_s[-1],
                "loss": losses.get(step),
            }
        )

    def _keep_all_if_asked(self) -> None:
        if self.job.data.sharing == "once":
            run(self.train.keep_all(self.protocol.at("all training rows")), self.mesh)

    def _evaluate(self, step: int) -> tuple[int, int] | None:
        """Count right answers on the test rows. Only their number is opened, to all parties."""
        size = self.job.evaluate.batch_size or self.job.train.batch_size
        test, p = self.test, self.protocol

        async def of(rows: torch.Tensor, part: int) -> torch.Tensor:
            scope = f"evaluation {step}/{part}"
            x, y = await gather(
                test.features(p.at(f"{scope}/features"), rows), test.labels(p.at(f"{scope}/labels"), rows)
            )
            return await count_correct(p.at(f"{scope}/count"), await infer(self.chain.layers, p, scope, x), y)

        parts = torch.arange(test.count).split(size)  # type: ignore[no-untyped-call]
        right = torch.stack([run(of(rows, part), self.mesh) for part, rows in enumerate(parts)]).sum(
            0, dtype=p.ring.dtype
        )
        opened = run(p.at(f"evaluation {step}").reveal(right, None, RIGHT_ANSWERS), self.mesh)
        if opened is None:  # a dealer
            return None
        self.emit({"event": "evaluated", "party": p.party, "step": step, "right": int(opened), "of": test.count})
        return int(opened), test.count

    def _hand_over_model(self, step: int) -> dict[tuple[str, str], torch.Tensor] | None:
        """The model to the party that the job names, or as shares to every party's own folder."""
        job, p = self.job, self.protocol
        if job.model.reveal_to is None:
            if self.run_folder is not None:
                save_shares(self.run_folder / f"model.{job.parties.names[p.party]}.shares.safetensors", self.chain)
            return None
        to = job.number(job.model.reveal_to)
        values = run(reveal_model(p.at("model"), self.chain, to), self.mesh)
        if values is not None and self.run_folder is not None:
            save_model(self.run_folder / "model.safetensors", self.chain, values, step)
        return values

    def _evaluate_revealed(self, values: dict[tuple[str, str], torch.Tensor], step: int) -> tuple[int, int]:
        """By the party that got the model, in the clear, on test rows of its own; told to nobody else."""
        self.module.load_state_dict(state_dict(self.chain, values, step))
        return right_answers(self.module, own_test_rows(self.owner, self.batches))

    def _model_digest(self) -> str | None:
        """SHA-256 of the trained weights as ring values. For comparing runs; opens the model to all parties."""
        digest = hashlib.sha256()
        for (layer, key), value in secrets(self.chain.layers).items():
            opened = run(self.protocol.at(f"digest/{layer}.{key}").reveal(value.data, None, MODEL_DIGEST), self.mesh)
            if opened is None:  # a dealer
                return None
            digest.update(f"{layer}.{key} {value.fraction_bits}".encode() + opened.numpy().tobytes())
        return digest.hexdigest()

    def _report(
        self,
        log: StepLog,
        losses: dict[int, float],
        right_of: tuple[int, int] | None,
        measured: list[Measured],
        digest: str | None,
    ) -> dict[str, Any]:
        own = measured[self.protocol.present.index(self.protocol.party)]
        accuracy = right_of[0] / right_of[1] if right_of else None
        report: dict[str, Any] = {
            "party": self.protocol.party,
            "origin_unix_s": self.origin_unix_s,
            "step_s": log.median_s,
            "steps_s": log.steps_s,
            "losses": [losses[step] if math.isfinite(losses[step]) else None for step in sorted(losses)],
            "loss_steps": sorted(losses),
            "accuracy": accuracy,
            "right": list(right_of) if right_of else None,
            "sent_bytes_per_step": [round(b) for b in record.column(measured, "sent_bytes")],
            "payload_bytes_per_step": [round(b) for b in record.column(measured, "payload_bytes")],
            "rounds_per_step": round(own.rounds, 2),
            "compute_s": record.column(measured, "compute_s"),
            "cpu_s": record.column(measured, "cpu_s"),
            "wait_s": record.column(measured, "wait_s"),
            "idle_s": record.column(measured, "idle_s"),
            "peak_rss_bytes": [round(b) for b in record.column(measured, "peak_rss_bytes")],
            "reveals": [{"why": o.why, "to": o.to, "shape": list(o.shape)} for o in self.protocol.openings],
            "protocol": self.protocol.name,
            "schedule": self.arrangement.schedule.name,
            "stages": list(self.arrangement.firsts),
            "slots": list(self.arrangement.schedule.slots),
            "microbatches": self.arrangement.schedule.microbatches,
            "pieces": self.job.pipeline.pieces,
        }
        if digest is not None:
            report["model_sha256"] = digest
        if self.checkpoints is not None:
            report["checkpoints"] = self.checkpoints.report()
        return report


def parts(tasks: Sequence[Task], without_flush: int, done: int) -> list[Sequence[Task]]:
    """The tasks of an epoch as they run through, from flush to flush, without the first `done`."""
    cut = [tasks[max(first, done) : first + without_flush] for first in range(0, len(tasks), without_flush)]
    return [part for part in cut if part]
