"""A run without a dealer's process: what it dealt beforehand comes from this party's store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mpcpipe.dealt.links import FromStore
from mpcpipe.dealt.records import Reader, check_file
from mpcpipe.dealt.ticket import Ticket, claim, look
from mpcpipe.errors import StoreError, UsageError
from mpcpipe.job.digest import apart
from mpcpipe.job.schema import Job
from mpcpipe.launch.around import Around
from mpcpipe.launch.machine import PartyOptions
from mpcpipe.link.base import Mesh
from mpcpipe.protocol.registry import known_protocol
from mpcpipe.random.tape import Holders


def insecure_keys(holders: Iterable[Holders], seed: int) -> dict[Holders, bytes]:
    """Keys that anybody can work out: for comparing runs bit for bit, on data that nobody minds losing."""
    return {held: hashlib.sha256(f"insecure {seed} {held}".encode()).digest() for held in holders}


class Stored:
    """One party's store, looked at and not used yet."""

    def __init__(self, folder: Path, ticket: Ticket, party: int, dealer: int) -> None:
        self._folder, self._ticket = folder, ticket
        self._holders = (party, dealer)
        self._links: list[FromStore] = []

    @property
    def agreement(self) -> dict[str, str]:
        """What the parties must have the same: parts of one store, and not of two."""
        return {"protocol.store": self._ticket.store}

    def use(self, meshes: Sequence[Mesh], insecure: int | None) -> dict[Holders, bytes]:
        """Mark the store as used, and put it in the place of the links to the dealer; the key shared with the dealer.

        Errors: StoreError if another run was faster. insecure: the number of the insecure keys that it was dealt with.
        """
        dealer = self._holders[1]
        key = claim(self._folder, self._ticket)
        for worker, mesh in enumerate(meshes):
            reader = None
            if self._ticket.records:
                reader = Reader(self._folder, worker, key, self._ticket.store, self._ticket.records[worker])
            link = FromStore(dealer, reader)
            self._links.append(link)
            mesh.links = {**mesh.links, dealer: link}
            mesh.parties = dealer + 1
        return {self._holders: key} if insecure is None else insecure_keys([self._holders], insecure)

    def close(self) -> None:
        """Close its files."""
        for link in self._links:
            link.close()


def stored_of(
    job: Job, options: PartyOptions, agreed: Mapping[str, str], workers: int, around: Around
) -> Stored | None:
    """This party's store, if the job has one. Nothing of it is used up here.

    agreed: what the parties agree on; workers: how many files there should be. Errors: StoreError for a store that
    cannot be used for this run, UsageError for a run that cannot use one.
    """
    if job.protocol.store is None:
        return None
    dealer = known_protocol(job.protocol.name).dealer
    assert dealer is not None, "checked by job.load"
    name = job.parties.names[options.party]
    if options.party == dealer:
        raise UsageError(
            f"{name} is the dealer, and with protocol.store there is nothing for it to do: start the others"
        )
    if options.resume is not None:
        raise UsageError(
            "--resume does not go with protocol.store: a store holds a run from its first step on. Resume with a "
            "dealer's process"
        )
    if job.checkpoint.every:
        raise UsageError(
            "checkpoint.every does not go with protocol.store: after a checkpoint the shares are new, and a store has "
            "nothing for that. Say checkpoint.every = 0, or take a dealer's process"
        )
    if options.worker is not None or around.fabric is not None:
        raise UsageError(
            "protocol.store goes with links over TCP and workers that are threads; for workers that are processes, or "
            "links over MPI, take a dealer's process"
        )
    root = Path(job.protocol.store)
    folder = root / name if (root / name).is_dir() else root
    ticket = look(folder)
    _check(ticket, folder, options.party, name, agreed)
    if options.party and len(ticket.records) != workers:
        raise StoreError(
            f"the store {folder} is for {len(ticket.records)} workers, and this run has {workers}: deal a new one"
        )
    for worker, nbytes in enumerate(ticket.nbytes):
        check_file(folder, worker, nbytes)
    return Stored(folder, ticket, options.party, dealer)


def _check(ticket: Ticket, folder: Path, party: int, name: str, agreed: Mapping[str, str]) -> None:
    if (ticket.party, ticket.name) != (party, name):
        raise StoreError(
            f"the store {folder} is {ticket.name}'s, and this is {name}: with it, {name} would know the masks of "
            f"{ticket.name}. Give every party its own folder, and deal a new store"
        )
    different = apart(ticket.job, agreed)
    if different is not None:
        raise StoreError(
            f"the store {folder} was dealt for another job: {different}. Deal a new one, for the job as it is now"
        )
