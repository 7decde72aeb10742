"""The real launchers, each with a small job: the weights are those of `mpcpipe train` alone, bit for bit.

Every run has the same keys (`--insecure-keys`) and opens the digest of its weights.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import tiny
from tests.launch import frames
from tests.running import DEADLINE_S, Run, free_ports

MPI = pytest.mark.skipif(
    shutil.which("mpirun") is None or subprocess.run([sys.executable, "-c", "import mpi4py"], check=False).returncode,
    reason="no mpirun (Debian: openmpi-bin), or no mpi4py (the extra mpi)",
)
PYTHON = (sys.executable, "-m", "mpcpipe")
MPIRUN = ("mpirun", "--oversubscribe", "-n")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
HEAD = tiny.HEAD + '\n[pipeline]\nstages = [0, 1]\nmicrobatches = 2\nschedule = "1f1b"\n\n[reveal]\nloss_every = 1\n'
SAME = ("--insecure-keys", "3", "--model-digest", "--json", "result.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("launch")
    tiny.columns(folder, HEAD)
    return folder


def digest(folder: Path, file: str = "result.json") -> str:
    result = json.loads((folder / file).read_text())
    (folder / file).unlink()
    assert result["insecure_keys"] is True
    return str(result["model_sha256"])


def trained(folder: Path, program: Sequence[str], *arguments: str, **variables: str) -> tuple[str, Run]:
    run = Run(folder, "train", "job.toml", "--steps", "3", *SAME, *arguments, program=program, **AS_ROOT, **variables)
    try:
        run.ok()
        return digest(folder), run
    finally:
        run.close()


@pytest.fixture(scope="module")
def alone(folder: Path) -> str:
    """What `mpcpipe train` gives by itself: parties are processes, their workers threads."""
    return trained(folder, PYTHON)[0]


def test_workers_as_processes(folder: Path, alone: str) -> None:
    found, run = trained(folder, PYTHON, "--set", "pipeline.workers=processes")
    assert found == alone
    assert set(run.logs()) >= {"alice.log", "alice.1.log", "carol.1.log"}


@MPI
def test_mpirun_one_rank_a_party_over_mpi(folder: Path, alone: str) -> None:
    found, run = trained(folder, (*MPIRUN, "3", *PYTHON), "--set", "link.kind=mpi")
    assert found == alone
    assert "rank 1 -> bob, 2 workers as threads" in run.err and "MPI, NOT ENCRYPTED" in run.err
    assert run.err.count("rank 1 -> ") == 1


@MPI
def test_mpirun_one_rank_a_worker(folder: Path, alone: str) -> None:
    found, run = trained(folder, (*MPIRUN, "6", *PYTHON))
    assert found == alone
    assert "rank 3 -> bob (worker 1, stage 1)" in run.err and "TCP, plaintext (loopback)" in run.err


def test_torchrun_over_torch(folder: Path, alone: str) -> None:
    found, run = trained(folder, (*TORCHRUN, "3", "-m", "mpcpipe"), "--set", "link.kind=torch")
    assert found == alone
    assert "rank 2 -> carol" in run.err and "torch.distributed, NOT ENCRYPTED" in run.err


def together(runs: list[Run]) -> None:
    try:
        for run in runs:
            run.ok()
    finally:
        for run in runs:
            run.close()


def slurm(rank: int, port: int) -> dict[str, str]:
    """The environment that srun gives one of three tasks on one node. (There is no Slurm here.)"""
    name = socket.gethostname()
    return {
        **{"SLURM_PROCID": str(rank), "SLURM_NTASKS": "3", "SLURM_STEP_NUM_TASKS": "3", "SLURM_LOCALID": str(rank)},
        **{"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_NODELIST": "localhost", "SLURMD_NODENAME": name},
        "MPCPIPE_PORT": str(port),
    }


def test_the_environment_of_slurm(folder: Path, alone: str) -> None:
    (port,) = free_ports(1)
    runs = [Run(folder, "train", "job.toml", "--steps", "3", *SAME, **slurm(rank, port)) for rank in range(3)]
    together(runs)
    assert digest(folder) == alone
    assert "rank 1 -> bob" in runs[0].err and "rank 1 -> bob" not in runs[1].err


def test_by_hand_with_workers_as_processes(folder: Path, alone: str) -> None:
    hosts = ",".join(f"127.0.0.1:{port}" for port in free_ports(6)[:3])  # their second workers listen 3 higher
    runs = [
        Run(folder, "train", "job.toml", "--steps", "3", *SAME[:-1], f"{name}.json", "--party", name, "--hosts", hosts,
            "--set", "pipeline.workers=processes")
        for name in ("alice", "bob", "carol")
    ]  # fmt: skip
    together(runs)
    assert {digest(folder, f"{name}.json") for name in ("alice", "bob", "carol")} == {alone}


# What goes wrong


def ranks(run: Run) -> dict[int, int]:
    """Process ids by rank, of the processes below a launcher."""
    found, below = {}, [run.process.pid]
    while below:
        pid = below.pop()
        below += [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        variables = dict(
            line.partition("=")[::2] for line in Path(f"/proc/{pid}/environ").read_text("latin-1").split("\0")
        )
        rank = variables.get("OMPI_COMM_WORLD_RANK", variables.get("RANK"))
        if rank is not None and "mpcpipe" in Path(f"/proc/{pid}/cmdline").read_text("latin-1").split("\0"):
            found[int(rank)] = pid
    return found


@pytest.mark.parametrize(
    ("program", "settings", "victim", "who"),
    [
        pytest.param((*MPIRUN, "3", *PYTHON), ("link.kind=mpi",), 2, "carol", marks=MPI, id="mpirun"),
        pytest.param((*TORCHRUN, "3", "-m", "mpcpipe"), ("link.kind=torch",), 1, "bob", id="torchrun"),
    ],
)
def test_a_dead_rank_ends_the_job_with_its_name(
    folder: Path, program: Sequence[str], settings: Sequence[str], victim: int, who: str
) -> None:
    options = [word for setting in settings for word in ("--set", setting)]
    run = Run(folder, "train", "job.toml", "--set", "train.epochs=500", *options, program=program, **AS_ROOT)
    try:
        run.until_training()
        os.kill(ranks(run)[victim], signal.SIGKILL)
        assert run.finish(DEADLINE_S) != 0
        assert f"mpcpipe rank 0: {who} went away" in run.err and "(exit code 12)" in run.err, run.story()
    finally:
        run.close()


def test_a_dead_worker_ends_the_job_with_its_name(folder: Path) -> None:
    run = Run(folder, "train", "job.toml", "--set", "train.epochs=500", "--set", "pipeline.workers=processes")
    try:
        run.until_training()
        workers = [json.loads(Path(f"/proc/{pid}/cmdline").read_text().split("\0")[-2]) | {"pid": pid}
                   for pid in map(int, Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split())]  # fmt: skip # noqa: E501
        (pid,) = [worker["pid"] for worker in workers if (worker["party"], worker["worker"]) == (1, 1)]
        os.kill(pid, signal.SIGKILL)
        assert run.finish(DEADLINE_S) == 12, run.story()
        assert "bob (worker 1, stage 1) was killed by signal 9" in run.err
    finally:
        run.close()


@MPI
def test_a_number_of_ranks_that_fits_nothing(folder: Path) -> None:
    run = Run(folder, "train", "job.toml", program=(*MPIRUN, "4", *PYTHON), **AS_ROOT)
    try:
        assert run.finish() == 2, run.story()
        wanted = "start 3 (one a party) or 6 (one for each of the 2 workers of each party)"
        assert "mpirun started 4 ranks" in run.err and run.err.count(wanted) == 1
    finally:
        run.close()


def test_no_mpi4py(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text('raise ModuleNotFoundError("No module named mpi4py", name="mpi4py")\n')
    variables = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3"}
    run = Run(folder, "train", "job.toml", path=[tmp_path], **variables)
    try:
        assert run.finish() == 2, run.story()
        assert "pip install 'mpcpipe[mpi]'" in run.err and "parties.hosts" in run.err
    finally:
        run.close()


@pytest.mark.parametrize(
    ("program", "kind", "code"),
    [
        pytest.param((*MPIRUN, "2", sys.executable), "mpi", frames.RIGHT, marks=MPI, id="mpi"),
        pytest.param((*TORCHRUN, "2"), "torch", 0, id="torch"),
    ],
)
def test_frames(folder: Path, program: Sequence[str], kind: str, code: int) -> None:
    run = Run(folder, frames.__file__, kind, program=program, **AS_ROOT)
    try:
        assert run.finish() == code, run.story()
        assert "rank 0 right" in run.out and "rank 1 right" in run.out, run.story()
    finally:
        run.close()
