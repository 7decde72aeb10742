"""A dealer that deals beforehand: its side of the whole run, with files in the place of links.

    mpcpipe deal JOB --out OUT        OUT/alice, OUT/bob: a folder a party, to be handed to it and nobody else

The dealer runs the program that it would run beside the others: it needs no data, and nobody sends it anything.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mpcpipe.dealt.links import IntoStore
from mpcpipe.dealt.records import Writer
from mpcpipe.dealt.ticket import TICKET, Ticket, sync_folder, write_new
from mpcpipe.errors import JobError, StoreError
from mpcpipe.job.model import build_chain
from mpcpipe.job.schema import Job
from mpcpipe.launch.machine import PartyOptions
from mpcpipe.launch.party import agreed_of, trainer_of
from mpcpipe.launch.stored import insecure_keys
from mpcpipe.link.base import Mesh
from mpcpipe.protocol.registry import protocol_named
from mpcpipe.random.keys import own_key
from mpcpipe.random.tape import Holders
from mpcpipe.runtime.events import Event
from mpcpipe.runtime.memory import keep_freed_memory
from mpcpipe.runtime.pipeline import arrange

RECEIVER = 1
"""The party that is sent corrections."""


def deal(
    job: Job, out: Path, emit: Callable[[Event], None], insecure: int | None = None, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Deal a whole run of the job into the new folder `out`, which appears when all is on disk. What was dealt.

    Errors: JobError for a protocol without a dealer, StoreError if `out` exists or cannot be written.
    """
    dealer = protocol_named(job.protocol.name).dealer
    if dealer is None:
        raise JobError(f"protocol.name: {job.protocol.name} has no dealer, and needs nothing dealt; additive2 has one")
    if out.exists():
        raise StoreError(f"--out {out}: there is something already; say a folder that does not exist yet")
    draft = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    try:
        draft.mkdir(parents=True, mode=0o700)
        try:
            made = _deal(job, draft, dealer, emit, insecure)
            sync_folder(draft)
            draft.rename(out)
            sync_folder(out.parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise StoreError(f"--out {out}: it cannot be written: {error.strerror or error}") from error
    return made


def _deal(job: Job, draft: Path, dealer: int, emit: Callable[[Event], None], insecure: int | None) -> dict[str, Any]:
    keep_freed_memory()
    names, store = job.parties.names, secrets.token_hex(16)
    module, chain = build_chain(job)
    arrangement = arrange(job, chain.layers)
    sealed = [own_key() for _ in range(dealer)]
    keys: dict[Holders, bytes] = {(party, dealer): key for party, key in enumerate(sealed)}
    if insecure is not None:
        keys = insecure_keys(keys, insecure)
    keys[(dealer,)] = own_key()
    for name in names[:dealer]:
        (draft / name).mkdir(mode=0o700)
    writers = [
        Writer(draft / names[RECEIVER], worker, sealed[RECEIVER], store)
        for worker in range(len(arrangement.schedule.workers))
    ]
    meshes = [
        Mesh(
            dealer,
            dealer + 1,
            {party: IntoStore(party, writer if party == RECEIVER else None) for party in range(dealer)},
        )
        for writer in writers
    ]
    try:
        trainer = trainer_of(
            job,
            PartyOptions(job="", party=dealer),
            keys,
            meshes,
            lambda error: None,
            module,
            chain,
            arrangement,
            emit,
            range(dealer),
        )
        report = trainer.run()
        for writer in writers:
            writer.finish()
    finally:
        for writer in writers:
            writer.close()
    for party, name in enumerate(names[:dealer]):
        given = writers if party == RECEIVER else []
        ticket = Ticket(
            store,
            party,
            name,
            agreed_of(job, module, arrangement),
            tuple(writer.records for writer in given),
            tuple(writer.nbytes for writer in given),
        )
        write_new(draft / name / TICKET, ticket.pack(sealed[party]))
        sync_folder(draft / name)
    return {
        "store": store,
        "dealer": names[dealer],
        "steps": len(report["steps_s"]),
        "step_s": report["step_s"],
        "seconds": sum(report["steps_s"]),
        "dealt_bytes_per_step": report["payload_bytes_per_step"][0],
        "dealt_bytes": sum(mesh.sent_payload_bytes for mesh in meshes),
        "stored_bytes": {
            name: sum(writer.nbytes for writer in writers) if party == RECEIVER else 0
            for party, name in enumerate(names[:dealer])
        },
    }
