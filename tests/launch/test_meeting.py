"""Ranks on several machines: where they listen, how workers of a party meet, and what must not be in the clear.

Machines are told apart by a key, so here threads of one process say that they are on several.
"""

from __future__ import annotations

import dataclasses
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mpcpipe.errors import AuthError, ConnectError, PlanError, UsageError
from mpcpipe.job.load import load
from mpcpipe.job.schema import Job
from mpcpipe.launch import identity
from mpcpipe.launch.environment import Launched
from mpcpipe.launch.identity import protection
from mpcpipe.launch.meeting import Machine, channels, check_place, fabric_of, hosts_of, machines, meet, places
from mpcpipe.launch.rank import planned_by_first
from mpcpipe.launch.ranks import Seating
from mpcpipe.link.distributed import Store
from mpcpipe.link.tls import Connection, TlsSocket
from mpcpipe.plan.schedule import build
from tests import tiny

NAMES = ("alice", "bob", "carol")
WORKERS = 2
SEATS = Seating(NAMES, build("1f1b", [1] * WORKERS, 2), WORKERS)


class Table:
    """A meeting of threads."""

    def __init__(self, world: int) -> None:
        self.said: list[str] = [""] * world
        self.barrier = threading.Barrier(world, timeout=30)

    def meetings(self) -> list[AtTable]:
        return [AtTable(self, rank) for rank in range(len(self.said))]


class AtTable:
    def __init__(self, table: Table, rank: int) -> None:
        self.table, self.rank, self.world = table, rank, len(table.said)

    def exchange(self, text: str) -> list[str]:
        self.table.said[self.rank] = text
        self.table.barrier.wait()
        said = list(self.table.said)
        self.table.barrier.wait()
        return said

    def close(self) -> None: ...


def together(work: Callable[[AtTable], Any], world: int = SEATS.world) -> list[Any]:
    """What each rank returns or raises."""

    def one(meeting: AtTable) -> Any:
        try:
            return work(meeting)
        except Exception as error:
            return error

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(one, Table(world).meetings()))


def job(folder: Path, *overrides: str) -> Job:
    return load(tiny.columns(folder), ["run.connect_s=20", *overrides])


def with_tls(folder: Path) -> Job:
    pins = [identity.new(name, folder)[1] for name in NAMES]
    return job(folder, f"parties.fingerprints={pins}", f"parties.keys={folder}")


def on(*keys: str) -> list[Machine]:
    return [Machine(key, key, "127.0.0.1") for key in keys]


def say_hello(
    meeting: AtTable, described: Job, where: Sequence[Machine], strangers: bool = False
) -> tuple[list[int], set[type]]:
    """Connect with the party's other workers, and tell each who this is: what all of them say, and over what."""
    with places(meeting, described, SEATS, where, None) as found:
        if strangers and found.channel_listener is not None:
            for said in (bytes(20), b"\x16\x03\x01" + bytes(60), b""):
                with socket.create_connection(found.channel_listener.getsockname()) as stranger:
                    stranger.sendall(said)
        made = channels(meeting, described, SEATS, found)
        found.listener.close()
    own = SEATS.seat(meeting.rank)
    heard = []
    for sock in made.values():
        sock.sendall(bytes([own.party, own.worker or 0]))
        sock.settimeout(20)
    for worker, sock in made.items():
        party, said = sock.recv(2)
        assert (party, said) == (own.party, worker)
        heard.append(worker)
    kinds = {kind(sock) for sock in made.values()}
    meeting.exchange("said")
    for sock in made.values():
        sock.close()
    return heard, kinds


def kind(sock: Connection) -> Any:
    return TlsSocket if isinstance(sock, TlsSocket) else sock.family


def test_workers_of_one_machine_meet_over_unix_sockets(tmp_path: Path) -> None:
    described = job(tmp_path)
    found = together(lambda meeting: say_hello(meeting, described, on(*"aabbcc")))
    assert found == [([1], {socket.AF_UNIX}), ([0], {socket.AF_UNIX})] * 3


def test_workers_of_several_machines_meet_over_tls_with_their_partys_key(tmp_path: Path) -> None:
    described = with_tls(tmp_path)
    found = together(lambda meeting: say_hello(meeting, described, on(*"ababab")))
    assert found == [([1], {TlsSocket}), ([0], {TlsSocket})] * 3


def test_workers_of_several_machines_do_not_meet_in_the_clear(tmp_path: Path) -> None:
    """Loopback addresses are allowed; where they would leave the machine is for the rule that all links have."""
    described = job(tmp_path)
    found = together(lambda meeting: say_hello(meeting, described, on(*"ababab")))
    assert [kinds for _, kinds in found] == [{socket.AF_INET}] * 6


def test_strangers_who_call_first_are_sent_away(tmp_path: Path) -> None:
    for described in (with_tls(tmp_path / "tls"), job(tmp_path / "clear")):
        found = together(lambda meeting: say_hello(meeting, described, on(*"ababab"), strangers=True))  # noqa: B023
        assert [heard for heard, _ in found] == [[1], [0]] * 3


@pytest.mark.parametrize("link", ["mpi", "torch"])
def test_what_does_not_encrypt_stays_on_one_machine(tmp_path: Path, link: str) -> None:
    described = job(tmp_path, f"link.kind={link}")
    with pytest.raises(AuthError, match=r"does not encrypt.*insecure_plaintext = true"):
        check_place(described, on(*"aaaabb"))
    check_place(described, on(*"aaaaaa"))
    check_place(job(tmp_path, f"link.kind={link}", "parties.insecure_plaintext=true"), on(*"aaaabb"))
    check_place(job(tmp_path), on(*"aaaabb"))
    assert fabric_of(Table(SEATS.world).meetings()[0], job(tmp_path), SEATS) is None


def test_links_that_do_not_go_with_a_launcher(tmp_path: Path) -> None:
    described = job(tmp_path)

    def of(kind: str) -> Job:
        return dataclasses.replace(described, link=dataclasses.replace(described.link, kind=kind))

    with pytest.raises(UsageError, match=r"mpirun started this process: start it with torchrun"):
        meet(Launched("mpirun", 0, 3), of("torch"))
    with pytest.raises(UsageError, match=r"torchrun started this process: start it with mpirun"):
        meet(Launched("torchrun", 0, 3, ("localhost", 1), True), of("mpi"))


def test_machines(tmp_path: Path) -> None:
    found = Launched("srun", 0, 2, ("127.0.0.1", 9))
    said = together(lambda meeting: machines(meeting, found, {"MPCPIPE_HOST": f"10.0.0.{meeting.rank}"}), 2)
    assert said[0] == said[1] and [machine.host for machine in said[0]] == ["10.0.0.0", "10.0.0.1"]
    assert said[0][0].key == said[0][1].key and said[0][0].name == socket.gethostname()
    assert together(lambda meeting: machines(meeting, found, {}), 1)[0][0].host == "127.0.0.1"


def test_where_ranks_listen_is_what_the_banner_goes_by(tmp_path: Path) -> None:
    described = job(tmp_path)
    here, there = (Machine(key, key, "10.0.0.1") for key in "ab")
    assert protection(described, hosts_of([here, here])) == "plaintext (loopback)"
    assert protection(described, hosts_of([here, there])) == "PLAINTEXT"


def test_a_rank_that_does_not_come_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    first = Store("127.0.0.1", port, 0, 3, 0.5, open_here=True)
    second = Store("127.0.0.1", port, 1, 3, 0.5, open_here=False)
    second.store.set("mpcpipe/1/1", "here")
    with pytest.raises(ConnectError, match="rank 2 did not come"):
        first.exchange("here")


def test_nobody_at_the_meeting_place() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConnectError, match=rf"rank 1 cannot reach .* 127\.0\.0\.1:{port} within 1 s"):
        Store("127.0.0.1", port, 1, 3, 1, open_here=False)


def test_the_first_rank_chooses_a_pipeline_and_nothing_else(tmp_path: Path) -> None:
    """It is another party: a rank does as it says where it is about stages, and not where it is about the model."""
    job = load(tiny.columns(tmp_path))
    choice = ["pipeline.stages=[0, 1]", "pipeline.slots=[1, 1]", "pipeline.microbatches=2", 'pipeline.schedule="1f1b"']

    def heard(lines: Sequence[str]) -> tuple[Job, list[str]]:
        first, second = Table(2).meetings()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(first.exchange, "\n".join(lines))
            return planned_by_first(second, job, ["train.epochs=1"], 1, lambda job, beside: [])

    planned, changes = heard(choice)
    assert (planned.pipeline.stages, planned.pipeline.microbatches) == ((0, 1), 2)
    assert changes == ["train.epochs=1", *choice]
    with pytest.raises(PlanError, match=r"the first rank says 'model\.reveal_to=.*where it should say what it plans"):
        heard([*choice, 'model.reveal_to="alice"'])
