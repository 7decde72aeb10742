"""Which launcher, which rank, which seat: from the environment alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mpcpipe.cli.rank import needs_nobody
from mpcpipe.errors import PlanError, UsageError
from mpcpipe.job.load import load
from mpcpipe.job.schema import Job
from mpcpipe.launch.addresses import addresses_of, of_worker
from mpcpipe.launch.environment import SLURM_FIRST_PORT, Launched, first_node, launched
from mpcpipe.launch.ranks import Seat, Seating, local_seating, seating
from mpcpipe.plan.schedule import build
from tests import tiny

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "RANK": "1",
    "WORLD_SIZE": "3",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_MCA_orte_hnp_uri": "854720512.0;tcp://192.0.2.2:36021;tcp6://[fd00::2]:49155",
}
SRUN = {
    "SLURM_PROCID": "4",
    "SLURM_NTASKS": "6",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_NODELIST": "gpu[003-005,9],login",
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "3",
}


def test_each_launcher_is_recognized() -> None:
    assert launched({"HOME": "/root"}) is None
    assert launched(TORCHRUN) == Launched("torchrun", 1, 3, ("10.0.0.1", 29500), store=True)
    assert launched(OPEN_MPI) == Launched("mpirun", 2, 6, ("192.0.2.2", 36021))
    assert launched({"PMI_RANK": "0", "PMI_SIZE": "3"}) == Launched("mpirun", 0, 3)
    assert launched(SRUN) == Launched("srun", 4, 6, ("gpu003", SLURM_FIRST_PORT + 31 * 12 + 3))
    assert launched({**SRUN, "MPCPIPE_PORT": "4000"}) == Launched("srun", 4, 6, ("gpu003", 4000))


def test_the_innermost_launcher_counts() -> None:
    assert launched({**SRUN, **OPEN_MPI}) == launched(OPEN_MPI)
    assert launched({**SRUN, **TORCHRUN}) == launched(TORCHRUN)
    # Slurm's own PMI is Slurm.
    assert launched({**SRUN, "PMI_RANK": "4", "PMI_SIZE": "6"}) == launched(SRUN)


def test_the_script_of_a_batch_job_and_a_shell_are_no_ranks() -> None:
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "3", "SLURM_JOB_ID": "12", "SLURM_NODELIST": "n1"}
    assert launched(batch) is None
    assert launched({**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}) is None


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({**TORCHRUN, "MASTER_PORT": ""}, "MASTER_PORT is not set"),
        ({**TORCHRUN, "RANK": "first"}, "RANK is 'first', not a number"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is not set"),
        ({**SRUN, "SLURM_NODELIST": ""}, "where is rank 0"),
    ],
)
def test_half_an_environment(environment: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        launched(environment)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n1", "n1"), ("n1,n2", "n1"), ("gpu[003-005,9],x", "gpu003"), ("a[1-2]b[3,4]", "a1b3"), ("r[7]-n[2-3]", "r7-n2")],
)
def test_the_first_node_of_a_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


# Seats


def job(folder: Path, *overrides: str) -> Job:
    return load(tiny.columns(folder), overrides)


def test_ranks_and_seats(tmp_path: Path) -> None:
    described, schedule = job(tmp_path), build("1f1b", [1, 1], 2)
    parties = seating(described, schedule, 3, "mpirun")
    names = ("alice", "bob", "carol")
    assert parties.table() == [f"rank {i} -> {n}, 2 workers as threads" for i, n in enumerate(names)]
    workers = seating(described, schedule, 6, "mpirun")
    assert [workers.seat(rank) for rank in (0, 1, 5)] == [Seat(0, 0), Seat(0, 1), Seat(2, 1)]
    seats = [workers.seat(rank) for rank in range(6)]
    assert [workers.rank(seat.party, seat.worker or 0) for seat in seats] == list(range(6))
    assert workers.table()[3] == "rank 3 -> bob (worker 1, stage 1)"
    two = seating(described, build("interleaved", [1, 1, 1, 1], 2), 6, "srun")
    assert two.table()[0] == "rank 0 -> alice (worker 0, stages 0+2)"


@pytest.mark.parametrize("world", [1, 2, 4, 5, 9])
def test_numbers_that_fit_nothing(tmp_path: Path, world: int) -> None:
    with pytest.raises(UsageError, match=rf"started {world} ranks?;.* start 3 \(one a party\) or 6 \(one for each of"):
        seating(job(tmp_path), build("1f1b", [1, 1], 2), world, "mpirun")
    with pytest.raises(UsageError, match=r"1 worker a party: start 3 \(one a party\)$"):
        seating(job(tmp_path), build("sequential", [1], 2), world, "mpirun")


def test_a_job_that_asks_for_processes(tmp_path: Path) -> None:
    settings = ("pipeline.workers=processes", "pipeline.stages=[0, 1]", "pipeline.schedule=gpipe")
    described = job(tmp_path, *settings)
    with pytest.raises(UsageError, match=r"start 6 \(one for each of the 2 workers of each party\)$"):
        seating(described, build("gpipe", [1, 1], 1), 3, "mpirun")
    assert local_seating(described) == Seating(described.parties.names, build("gpipe", [1, 1], 1), 2)
    assert local_seating(job(tmp_path)) is None
    # One worker a party is one process a party.
    assert local_seating(job(tmp_path, "pipeline.workers=processes")) is None
    with pytest.raises(PlanError, match="one slot a stage"):
        local_seating(job(tmp_path, *settings, "pipeline.slots=[1, 2]", "pipeline.microbatches=2"))


# Addresses


def test_addresses(tmp_path: Path) -> None:
    described = job(tmp_path)
    assert addresses_of(described, "a, b:99,[::1]:7") == (("a", 17300), ("b", 99), ("::1", 7))
    assert addresses_of(described, "fd00::1,[fd00::2],c") == (("fd00::1", 17300), ("fd00::2", 17301), ("c", 17302))
    hosts = ("10.0.0.1:9001", "10.0.0.2:9001", "10.0.0.3:9001")
    given = dataclasses.replace(described, parties=dataclasses.replace(described.parties, hosts=hosts))
    assert addresses_of(given, None)[2] == ("10.0.0.3", 9001)
    here = (("h", 17300), ("h", 17301), ("h", 17302))
    taken = [place for worker in range(3) for place in of_worker(here, worker)]
    assert len(set(taken)) == 9 and taken[:3] == list(here)


@pytest.mark.parametrize("hosts", ["a,b", "a,b,c:0", "a,b,c:70000", "a,b,:5", "a,b,[::1", "a:1,a:1,b"])
def test_wrong_addresses(tmp_path: Path, hosts: str) -> None:
    with pytest.raises(UsageError, match="--hosts"):
        addresses_of(job(tmp_path), hosts)


def test_what_mpirun_can_do_without_mpi4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all addresses are known, a rank is a party by itself; where they are not, mpi4py is needed."""
    found, hosts = Launched("mpirun", 1, 3), "a,b,c"
    described = job(tmp_path)
    monkeypatch.setattr("mpcpipe.cli.rank.find_spec", lambda name: name)
    assert not needs_nobody(found, described, hosts), "with mpi4py, ranks meet"
    monkeypatch.setattr("mpcpipe.cli.rank.find_spec", lambda name: None)
    assert needs_nobody(found, described, hosts)
    assert not needs_nobody(found, described, None)
    assert not needs_nobody(Launched("mpirun", 1, 6), described, hosts)
    assert not needs_nobody(Launched("srun", 1, 3, ("a", 1)), described, hosts)
    assert not needs_nobody(found, job(tmp_path, "link.kind=mpi"), hosts)
