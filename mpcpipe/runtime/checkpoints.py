"""Checkpoints of a training: when, what of the model, how the parties agree, and how a run goes on from one.

    take      own shares to disk ──> "I have step 20" to all ──> marked complete ──> older ones removed ──> refresh
    resume    "I have these" to all ──> the newest that everybody has ──> own shares from disk ──> refresh

The refresh gives every secret tensor new shares (`Protocol.refresh`), in a run that goes on as in one that resumes:
what is on disk is never what is computed with, and a run that resumes does just what the other would have done.

Security: what the parties tell each other is steps and the ids of sessions. Masks never repeat: a session has fresh
keys, and within one no step is done twice.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mpcpipe.checkpoint.folder import checkpoint_folder
from mpcpipe.checkpoint.key import read_key
from mpcpipe.checkpoint.shard import Record, Shard, check_owner
from mpcpipe.checkpoint.store import Identity, Store, identity_of
from mpcpipe.errors import CheckpointError
from mpcpipe.job.schema import Job
from mpcpipe.link.base import Mesh, Part
from mpcpipe.nn.chain import Chain
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.rounds import Round, run
from mpcpipe.runtime.events import Emit
from mpcpipe.runtime.stage import Stage
from mpcpipe.runtime.state import kept, optimizers, refreshed, restore

MOST_TOLD = 32
"""Of so many checkpoints, the newest, a party tells the others."""

RESUMES = "--resume"
"""Agreed on as well: do all parties go on from a checkpoint?"""

FREE_KEYS = (
    RESUMES,
    "mpcpipe.version",
    "job.name",
    "model.initial_sha256",
    "parties.insecure_plaintext",
    "parties.fingerprints",
    "pipeline.stages",
    "pipeline.slots",
    "pipeline.schedule",
    "pipeline.workers",
    "pipeline.arrangement",
    "link.kind",
    "train.epochs",
    "train.steps",
    "evaluate.every",
    "evaluate.batch_size",
    "evaluate.clear_twin",
    "checkpoint.every",
)
"""What may differ between a job and the one that goes on: how it is worked on, where it stops, not what is computed."""


def bound_keys(agreed: Mapping[str, str]) -> dict[str, str]:
    """Of what the parties agree on, what a checkpoint is bound to: all that is not free, tomorrow's keys too."""
    return {key: value for key, value in agreed.items() if key not in FREE_KEYS}


@dataclass(frozen=True)
class Taken:
    """What a party's checkpoints took: seconds of each, until the refresh was done, and bytes of a file."""

    seconds: list[float] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)


@dataclass
class Checkpoints:
    """One party's. `bound`: see `bound_keys`; `session`: the id of this session, which no other has."""

    job: Job
    store: Store
    p: Protocol
    mesh: Mesh
    chain: Chain
    bound: Mapping[str, str]
    session: str
    emit: Emit
    resumes: bool = False
    resumed: Identity | None = None
    taken: Taken = field(default_factory=Taken)

    @property
    def name(self) -> str:
        """This party's."""
        return self.job.parties.names[self.p.party]

    def due(self, before: int, after: int) -> bool:
        """Whether one is to be taken now that steps `before` + 1 to `after` are done."""
        every = self.job.checkpoint.every
        return every > 0 and before // every < after // every

    def take(
        self, step: int, stages: Sequence[Stage], right: tuple[int, int] | None, losses: Mapping[int, float]
    ) -> None:
        """All of the training after `step`, at every party or at none."""
        began_s = time.perf_counter()
        shard = self._captured(step, stages, right, losses)
        identity = identity_of(shard)
        self._tell(step, "begun")
        nbytes = self.store.write(shard)
        self._tell(step, "written")
        run(_confirmed(self.p.at(f"checkpoint {step}"), identity, self.job.parties.names), self.mesh)
        self.store.mark(identity, list(self.job.parties.names))
        self._tell(step, "complete")
        own = [found for found in self.store.complete() if found[1] == identity[1]]
        former = [] if self.resumed is None else [self.resumed]
        self.store.prune([*own, *former][: self.job.checkpoint.keep])
        self._tell(step, "pruned")
        run(refreshed(self.p, step, self.chain, stages), self.mesh)
        self._tell(step, "refreshed")
        self.taken.seconds.append(time.perf_counter() - began_s)
        self.taken.nbytes.append(nbytes)

    def resume(self, stages: Sequence[Stage]) -> Record:
        """Model and optimizers as they were after the newest step that all parties have. Its record.

        CheckpointError, at all parties, if there is none.
        """
        usable, newest, damage = self._usable()
        for said in damage:  # before another party's failure can be the one that is reported
            self.emit({"event": "note", "party": self.p.party, "text": f"{said}: passed over"})
        told = run(_everybodys(self.p.at("resume"), list(usable)), self.mesh)
        common = set.intersection(*(set(one) for one in told))
        if not common:
            raise CheckpointError(self._none_in_common(told, damage))
        self.resumed = max(common)
        # Who tells the others different things could make them go on from different ones: shares of two models.
        run(_confirmed(self.p.at("resume/chosen"), self.resumed, self.job.parties.names, "goes on from"), self.mesh)
        shard = newest if newest and identity_of(newest) == self.resumed else self.store.read(self.resumed)
        restore(shard, self.p, self.chain, stages)
        step = shard.record.step
        run(refreshed(self.p, step, self.chain, stages), self.mesh)
        run(self.p.at(f"resume {step}/check").check(), self.mesh)
        self.emit({"event": "resumed", "party": self.p.party, "step": step, "unusable": damage})
        return shard.record

    def report(self) -> dict[str, Any]:
        """What they took, and where the run went on from."""
        step = None if self.resumed is None else self.resumed[0]
        return {"seconds": self.taken.seconds, "bytes": self.taken.nbytes, "resumed_from": step}

    def _tell(self, step: int, phase: str) -> None:
        self.emit({"event": "checkpoint", "party": self.p.party, "step": step, "phase": phase})

    # what is kept

    def _captured(
        self, step: int, stages: Sequence[Stage], right: tuple[int, int] | None, losses: Mapping[int, float]
    ) -> Shard:
        named = kept(self.chain, stages)
        record = Record(
            step=step,
            session=self.session,
            party=self.name,
            job=self.bound,
            fraction_bits={name: value.fraction_bits for name, value in named.items()},
            blank={name: list(value.data.shape) for name, value in named.items() if value.data.is_meta},
            public={leaf: dict(optimizer.public) for leaf, optimizer in optimizers(stages).items()},
            right=right,
            losses=losses,
        )
        return Shard(record, {name: value.data for name, value in named.items() if not value.data.is_meta})

    def _usable(self) -> tuple[dict[Identity, Path], Shard | None, list[str]]:
        """This party's checkpoints that are whole, the newest of them, and what is wrong with the others.

        CheckpointError for one of another party or another job: that is a mistake, not damage.
        """
        usable: dict[Identity, Path] = {}
        newest: Shard | None = None
        damage: list[str] = []
        for identity, path in self.store.shards().items():
            try:
                shard = self.store.read(identity)
            except CheckpointError as error:
                damage.append(str(error))
                continue
            check_owner(shard.record, self.name, self.bound, path)
            usable[identity] = path
            newest = newest or shard
        return usable, newest, damage

    def _none_in_common(self, told: Sequence[Sequence[Identity]], damage: Sequence[str]) -> str:
        has = "; ".join(
            f"{name} has {', '.join(f'step {step}' for step, _ in one) or 'none that can be used'}"
            for name, one in zip(self.job.parties.names, told, strict=True)
        )
        return "\n".join([f"there is no checkpoint that all parties have: {has}", *damage])


def open_checkpoints(
    job: Job,
    run_folder: Path | None,
    resume: str | None,
    p: Protocol,
    mesh: Mesh,
    chain: Chain,
    agreed: Mapping[str, str],
    session: str,
    emit: Emit,
) -> Checkpoints | None:
    """What `job` and --resume ask for; None if neither does. Errors: JobError (the key file), CheckpointError."""
    if resume is None and not job.checkpoint.every:
        return None
    if run_folder is None:
        raise CheckpointError("checkpoint.every: this run has no folder to keep checkpoints in")
    key = None if job.checkpoint.key_file is None else read_key(Path(job.checkpoint.key_file))
    folder = checkpoint_folder(job, run_folder, resume) / job.parties.names[p.party]
    return Checkpoints(job, Store(folder, key), p, mesh, chain, bound_keys(agreed), session, emit, resume is not None)


async def _confirmed(p: Protocol, identity: Identity, names: Sequence[str], does: str = "has written") -> None:
    """Every party has its file of this step and session. 1 round."""
    for party, told in zip(p.present, await _everybodys(p, [identity]), strict=True):
        if told != [identity]:
            raise CheckpointError(f"{names[party]} {does} another checkpoint than step {identity[0]}")


async def _everybodys(p: Protocol, own: Sequence[Identity]) -> list[list[Identity]]:
    """What each party has, at every party. 1 round, 512 bytes."""
    rows = torch.zeros((MOST_TOLD, 2), dtype=torch.int64)
    for row, (step, session) in zip(rows, own, strict=False):
        row[0], row[1] = step + 1, int.from_bytes(bytes.fromhex(session), "big", signed=True)
    others = p.peers
    part = [Part(torch.int64, rows.numel())]
    received = await Round(p.label("have"), {party: [rows.flatten()] for party in others}, dict.fromkeys(others, part))
    told = {party: received[party][0].reshape(MOST_TOLD, 2) for party in others} | {p.party: rows}
    return [[(step - 1, _hex(session)) for step, session in told[party].tolist() if step > 0] for party in p.present]


def _hex(session: int) -> str:
    return session.to_bytes(8, "big", signed=True).hex()
