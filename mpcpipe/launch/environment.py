"""Which launcher started this process, and as which of how many: read from the environment, guessed from nothing else.

    torchrun    TORCHELASTIC_RUN_ID, RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    mpirun      OMPI_COMM_WORLD_RANK, ... (Open MPI); PMI_RANK, PMI_SIZE (MPICH and its relatives)
    srun        SLURM_PROCID, SLURM_NTASKS, SLURM_NODELIST of a job step

The innermost launcher counts: `mpirun` inside of a Slurm job is mpirun.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mpcpipe.errors import UsageError

SLURM_FIRST_PORT = 20_000
_SLURM_PORTS = 10_000


@dataclass(frozen=True)
class Launched:
    """This process is `rank` of `world`, started by `by` (torchrun, mpirun or srun).

    meeting: where all ranks can meet over TCP, if the launcher says so. store: whether a store is open there already.
    """

    by: str
    rank: int
    world: int
    meeting: tuple[str, int] | None = None
    store: bool = False


def launched(environment: Mapping[str, str]) -> Launched | None:
    """What the environment says; None if no launcher started this process. UsageError if it says half of it."""
    e = environment
    if "TORCHELASTIC_RUN_ID" in e:
        where = (_word(e, "MASTER_ADDR", "torchrun"), _number(e, "MASTER_PORT", "torchrun"))
        shared = e.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return Launched("torchrun", _number(e, "RANK", "torchrun"), _number(e, "WORLD_SIZE", "torchrun"), where, shared)
    for own, all_ in (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")):
        if own in e:
            if "SLURM_PROCID" in e and own == "PMI_RANK":
                break  # srun with Slurm's own PMI
            return Launched("mpirun", _number(e, own, "mpirun"), _number(e, all_, "mpirun"), _open_mpi_host(e))
    if "SLURM_PROCID" in e and _is_step(e):
        world = _number(e, "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in e else "SLURM_NTASKS", "srun")
        if world > 1:
            return Launched("srun", _number(e, "SLURM_PROCID", "srun"), world, _slurm_meeting(e))
    return None


def _is_step(e: Mapping[str, str]) -> bool:
    """Whether `srun` started this: the script of a batch job has a SLURM_PROCID, too."""
    return "SLURM_STEP_NUM_TASKS" in e or (
        "SLURM_NTASKS" in e and ("SLURM_STEP_ID" in e or "SLURM_STEPID" in e or "SLURM_STEP_NODELIST" in e)
    )


def _slurm_meeting(e: Mapping[str, str]) -> tuple[str, int]:
    """Rank 0 is on the first node of a step, in every distribution of tasks. The port follows from the step's number,
    so that two steps on a node do not meet each other."""
    nodes = e.get("SLURM_STEP_NODELIST") or e.get("SLURM_NODELIST") or e.get("SLURM_JOB_NODELIST")
    if not nodes:
        raise UsageError("srun started this process, but SLURM_NODELIST is not set: where is rank 0?")
    step = e.get("SLURM_STEP_ID") or e.get("SLURM_STEPID") or "0"
    number = 31 * int(re.sub(r"\D", "", e.get("SLURM_JOB_ID") or e.get("SLURM_JOBID") or "0") or 0)
    number += int(re.sub(r"\D", "", step) or 0)
    return first_node(nodes), int(e.get("MPCPIPE_PORT", SLURM_FIRST_PORT + number % _SLURM_PORTS))


def first_node(nodes: str) -> str:
    """The first of a Slurm list: `gpu[003-005,9],login` -> gpu003; `a[1-2]b[3,4]` -> a1b3."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes.strip())
    if first is None:
        raise UsageError(f"SLURM_NODELIST is {nodes!r}: what is the first node of it?")
    return re.sub(r"\[([^,\-\]]+)[^\]]*\]", r"\1", first[0])


def _open_mpi_host(e: Mapping[str, str]) -> tuple[str, int] | None:
    """Where Open MPI's mpirun itself is: the network over which this process reaches it, others reach this one by."""
    found = re.search(r"tcp4?://([\d.]+)(?:,[\d.,]+)?:(\d+)", e.get("OMPI_MCA_orte_hnp_uri", ""))
    return (found[1], int(found[2])) if found else None


def _word(e: Mapping[str, str], name: str, by: str) -> str:
    if not e.get(name):
        raise UsageError(f"{by} started this process, but {name} is not set: start it with {by} as docs/launch.md says")
    return e[name]


def _number(e: Mapping[str, str], name: str, by: str) -> int:
    text = _word(e, name, by)
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"{by} started this process, but {name} is {text!r}, not a number")
    return int(text)
