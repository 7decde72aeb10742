"""One party of a job, from its job file to its report. `launch.start` is what the launcher starts."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import mpcpipe
from mpcpipe.data.batches import Batches
from mpcpipe.data.owners import Owner
from mpcpipe.errors import DataError, Interrupted, JobError, MpcpipeError
from mpcpipe.job.digest import agreement
from mpcpipe.job.load import load
from mpcpipe.job.model import build_chain, digests
from mpcpipe.job.present import present_names
from mpcpipe.job.schema import Job
from mpcpipe.job.units import bytes_per_s
from mpcpipe.launch.around import Around, inherited
from mpcpipe.launch.identity import identity_of, protection
from mpcpipe.launch.machine import PartyOptions
from mpcpipe.launch.ranks import worker_name
from mpcpipe.launch.stored import insecure_keys, stored_of
from mpcpipe.link.base import Mesh
from mpcpipe.link.mesh import connect
from mpcpipe.link.network import Network
from mpcpipe.link.pacer import Pacer
from mpcpipe.nn.chain import Chain
from mpcpipe.nn.layers import walk
from mpcpipe.protocol.registry import protocol_named
from mpcpipe.random.tape import Holders, PrgTape
from mpcpipe.ring import native, shadow
from mpcpipe.ring.fixed import FixedPoint
from mpcpipe.ring.ring import Ring
from mpcpipe.runtime.checkpoints import RESUMES, open_checkpoints
from mpcpipe.runtime.events import Emit, to_file_descriptor
from mpcpipe.runtime.feed import Feed
from mpcpipe.runtime.kernels import choose_kernels, write_choice
from mpcpipe.runtime.memory import keep_freed_memory
from mpcpipe.runtime.pipeline import Arrangement, arrange
from mpcpipe.runtime.processes.channel import Channel
from mpcpipe.runtime.processes.fellows import Fellows
from mpcpipe.runtime.trainer import Trainer
from mpcpipe.services.base import Services
from mpcpipe.services.registry import services_of

DEALER_AHEAD_BYTES = 32 << 20
"""What a worker of a dealer, which waits for nobody, may have ready before the others have taken it."""

READ_AHEAD_BYTES = 64 << 20
"""What the workers of a party may together have of a dealer's before it is their turn."""

DEALER_DEADLINE_S = 7 * 86_400.0
"""A dealer that is done waits for the end of the others' training. That they live, it knows from their heartbeats."""

# A launcher kills what has not ended about a second after it asked.
_SAID_BY_THEN_S = 0.3


def run_party(job: Job, options: PartyOptions, emit: Emit, around: Around | None = None) -> dict[str, Any]:
    """Connect, train, report. Errors are raised here and, by then, told to all other parties.

    Where workers are processes (`options.worker`), this is one of them; all but the first report nothing.
    """
    keep_freed_memory()
    torch.set_num_threads(_cores(job, options))
    around = around or inherited(options)
    module, chain = build_chain(job)
    arrangement = arrange(job, chain.layers)
    if options.worker is None:
        return _run(job, options, emit, around, module, chain, arrangement, None)
    workers = arrangement.schedule.workers
    names = [worker_name(job.parties.names[options.party], index, worker) for index, worker in enumerate(workers)]
    channels = {index: Channel(sock) for index, sock in around.channels.items()}
    fellows = Fellows(options.worker, channels, names, arrangement.schedule)
    try:
        return _run(job, options, emit, around, module, chain, arrangement, fellows)
    except BaseException as error:
        fellows.fail(error)
        raise
    finally:
        fellows.close()


def _run(
    job: Job,
    options: PartyOptions,
    emit: Emit,
    around: Around,
    module: torch.nn.Module,
    chain: Chain,
    arrangement: Arrangement,
    fellows: Fellows | None,
) -> dict[str, Any]:
    def tell(text: str) -> None:
        emit({"event": "note", "party": options.party, "text": text})

    # Also before the parties meet: it may take a second, and nobody should wait for it.
    chosen = choose_kernels(job)
    if not options.worker:
        write_choice(chosen, Path(options.run_folder) if options.run_folder else None, job.parties.names[options.party])
    # Before the parties meet: what a party's own services lack is its own affair, and told at once.
    services = services_of(job, tell) if not options.worker else None
    try:
        return _run_with(job, options, emit, around, module, chain, arrangement, fellows, services)
    finally:
        if services is not None:
            services.close()


def _run_with(
    job: Job,
    options: PartyOptions,
    emit: Emit,
    around: Around,
    module: torch.nn.Module,
    chain: Chain,
    arrangement: Arrangement,
    fellows: Fellows | None,
    services: Services | None,
) -> dict[str, Any]:
    identity, pins = identity_of(job, options.party)
    dealer = protocol_named(job.protocol.name).dealer
    deals = options.party == dealer
    workers, worker = arrangement.schedule.workers, options.worker
    agreed = agreed_of(job, module, arrangement)
    stored = stored_of(job, options, agreed, len(workers), around)
    agreed[RESUMES] = "no" if options.resume is None else "yes"
    names = present_names(job)
    # Not a daemon: a process that ends in the middle of torch's imports could end otherwise than it says.
    warming = threading.Thread(target=shadow.warm, name="warm")
    if deals:  # while the parties meet, so that the first step does not wait for it
        warming.start()
    network = connect(
        options.party,
        options.addresses,
        workers=len(workers) if worker is None else 1,
        agreement=agreed
        | ({} if stored is None else stored.agreement)
        | ({} if worker is None else {"worker": str(worker)}),
        names=names if worker is None else [worker_name(name, worker, workers[worker]) for name in names],
        deadline_s=job.run.connect_s,
        message_deadline_s=DEALER_DEADLINE_S if deals else job.run.deadline_s,
        insecure_plaintext=job.parties.insecure_plaintext,
        listener=around.listener,
        identity=identity,
        pins=pins[: len(names)],
        fabric=around.fabric,
        first_worker=worker or 0,
        pacer=pacer_of(job, 1 if worker is None else len(workers)),
        together=around.together,
    )
    for index in range(network.workers):
        if deals:
            network.mesh(index).ahead_bytes = DEALER_AHEAD_BYTES
        elif dealer is not None and dealer in network.mesh(index).links:
            network.mesh(index).links[dealer].read_ahead(READ_AHEAD_BYTES // len(workers))
    with network, _cause_first(network, around):
        if deals:
            warming.join()
        keys = network.keys if options.insecure_keys is None else insecure_keys(network.keys, options.insecure_keys)
        if fellows is not None:
            network.watch(fellows.fail)
            fellows.watch(network.abort)
            # One set of keys a party: a mask is the same whichever worker draws it.
            if worker:
                _, keys = fellows.hear()
            for other in fellows.others if not worker else []:
                fellows.tell(other, keys)
        meshes = [network.mesh(index) for index in range(network.workers)]
        if stored is not None:
            keys |= stored.use(meshes, options.insecure_keys)
        absent = () if stored is None or dealer is None else (dealer,)
        trainer = trainer_of(job, options, keys, meshes, network.abort, module, chain, arrangement, emit, absent)
        trainer.fellows, trainer.services = fellows, services
        if worker:
            assert fellows is not None
            trainer.follow(fellows)
            return {}
        trainer.checkpoints = checkpoints = open_checkpoints(
            job,
            trainer.run_folder,
            options.resume,
            trainer.protocol,
            trainer.mesh,
            chain,
            agreed,
            network.session.identity.hex(),
            emit,
        )
        try:
            report = trainer.run()
        finally:
            if checkpoints is not None:
                checkpoints.store.close()
            if stored is not None:
                stored.close()
    report["versions"] = versions()
    report["kernels"] = native.status() | {"choice": job.services.kernels}
    hosts = [host for host, _ in options.addresses]
    report["link"] = f"TCP, {protection(job, hosts)}" if around.fabric is None else around.fabric.description
    report["workers"] = "threads" if worker is None else "processes"
    return report


def pacer_of(job: Job, processes: int = 1) -> Pacer | None:
    """For `link.rate`, which so many processes of this party share evenly."""
    return None if job.link.rate is None else Pacer(bytes_per_s(job.link.rate) / processes)


@contextmanager
def _cause_first(network: Network, around: Around) -> Iterator[None]:
    """Where a launcher ends all processes because of one, what the parties tell each other is what happened."""
    try:
        yield
    except Interrupted:
        cause = network.wait_failure(_SAID_BY_THEN_S) if around.ended_together else None
        if cause is not None:
            raise cause from None
        raise


def agreed_of(job: Job, module: torch.nn.Module, arrangement: Arrangement) -> dict[str, str]:
    """What all parties must have the same of a run from its beginning."""
    return {
        "mpcpipe.version": mpcpipe.__version__,
        **agreement(job),
        **digests(job, module),
        **arrangement.agreement(),
    }


def trainer_of(
    job: Job,
    options: PartyOptions,
    keys: dict[Holders, bytes],
    meshes: Sequence[Mesh],
    abort: Callable[[BaseException], None],
    module: torch.nn.Module,
    chain: Chain,
    arrangement: Arrangement,
    emit: Emit,
    absent: Sequence[int] = (),
) -> Trainer:
    """A party's trainer on these links. absent: the parties that are not in the run, see `Protocol.absent`."""
    kind = protocol_named(job.protocol.name)
    ring = Ring(job.protocol.ring_bits)
    for layer in walk(chain.layers):
        layer.working_bits = job.protocol.fraction_bits
    protocol = kind(
        party=options.party,
        ring=ring,
        tape=PrgTape(keys),
        compare_bits=job.protocol.compare_bits,
        parties=len(job.parties.names),
        absent=frozenset(absent),
    )
    try:
        owner = Owner(job, options.party)
    except (DataError, JobError):  # also from the owner's own function, of which nobody knows what it says
        # What exactly is wrong with the data is their owner's business: the others learn whose, and no more.
        abort(DataError("it cannot use its data, and its own messages say why; nothing was trained"))
        raise
    batches = Batches(job)
    fixed = FixedPoint(ring, job.protocol.fraction_bits, job.protocol.limit)
    shape, classes = job.data.shape, job.data.classes
    return Trainer(
        job=job,
        protocol=protocol,
        meshes=meshes,
        arrangement=arrangement,
        module=module,
        chain=chain,
        owner=owner,
        train=Feed(batches.train_rows_of, batches.train_rows, owner, fixed, shape, classes),
        test=Feed(batches.test_rows_of, batches.test_rows, owner, fixed, shape, classes),
        batches=batches,
        emit=emit,
        abort=abort,
        run_folder=Path(options.run_folder) if options.run_folder else None,
        model_digest=options.model_digest,
        cores=_cores(job, options),
    )


def _cores(job: Job, options: PartyOptions) -> int:
    """How many cores this party may use: the job's word, or its share of this machine, at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return job.run.threads or max(1, cores // options.local_parties)


def versions() -> dict[str, str]:
    """What a figure depends on."""
    return {
        "mpcpipe": mpcpipe.__version__,
        "torch": torch.__version__,
        "python": ".".join(str(part) for part in sys.version_info[:3]),
    }


def stop_on_signals() -> None:
    """SIGINT and SIGTERM stop this party, and with it all others, by an `Interrupted` in the main thread."""

    def stop(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise Interrupted("stopped by the user")

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)


def run_for_launcher(options: PartyOptions) -> int:
    """A party that `launch.start` was asked for: reports by events, its output is its log. Returns the exit code."""
    assert options.events_fd is not None
    stop_on_signals()
    emit = to_file_descriptor(options.events_fd)
    try:
        report = run_party(load(options.job, options.overrides), options, emit)
        emit({"event": "done", "party": options.party, "report": report})
    except MpcpipeError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        failed = {"kind": type(error).__name__, "message": str(error), "exit_code": error.exit_code}
        emit({"event": "failed", "party": options.party} | failed)
        return error.exit_code
    return 0
