"""Runs on an emulated network, all parties by hand; for pipeline.py with what the emulator takes as well.

LAB is a program that emulates a network: `LAB --parties N --timeout S NETWORK -- COMMAND ...`, NETWORK being
`--net NAME` or `--rtt-ms R --mbit M`, must start the command once for each party, each with a network address of its
own, after filling in {rank} (the party's number from 0) and {host0}, {host1} ... (the parties' addresses), and end when
all have, with a status other than 0 if one failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NETS = {"lan": (0.2, 1000), "metro": (4, 1000), "500": (0.2, 500), "200": (0.2, 200), "wan": (40, 100)}
PARTIES = {"replicated3": 3, "additive2": 3, "replicated4": 4}
NAMES = ("alice", "bob", "carol", "dave")
ALONE = {"evaluate.how": '"none"', "evaluate.clear_twin": "false", "run.threads": "1"}
_LOOK_S = 0.1
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Net:
    """An emulated network."""

    name: str
    rtt_ms: float
    mbit: float


def protocol_settings(protocol: str) -> dict[str, Any]:
    """What a job says for a protocol (a dealer is the last party)."""
    return {"protocol.name": f'"{protocol}"', "parties.names": json.dumps(NAMES[: PARTIES[protocol]])}


def by_hand(
    program: str, network: Sequence[str], parties: int, timeout_s: float, command: Sequence[str], folder: str
) -> list[str]:
    """What runs `command` for each party on an emulated network; party I writes its result to FOLDER/I.json."""
    hosts = ",".join(f"{{host{number}}}" for number in range(parties))
    own = ["--json", f"{folder}/{{rank}}.json", "--party", "{rank}", "--hosts", hosts]
    return [program, "--parties", str(parties), "--timeout", str(timeout_s), *network, "--", *command, *own]


class Lab:
    """Runs a job on an emulated network, and reads what party 0 measured.

    With `dealt`, two parties use what a dealer left in a store before each run: what is measured is the online phase.
    """

    def __init__(
        self, program: str, steps: int, protocol: str = "replicated3", timeout_s: float = 900, dealt: bool = False
    ) -> None:
        self.program, self.steps, self.protocol, self.timeout_s = program, steps, protocol, timeout_s
        self.dealt = dealt

    def rtt_ms(self, net: Net) -> float:
        """The round trip that the lab really gives; the emulator takes its time, too."""
        network = ["--rtt-ms", str(net.rtt_ms), "--mbit", str(net.mbit)]
        command = [self.program, "--parties", "2", "--timeout", "60", *network, "--"]
        command += [sys.executable, __file__, "{rank}", "{host0}"]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        found = re.search(r"round trip ([0-9.]+) ms", said.stdout)
        if said.returncode or found is None:
            raise RuntimeError(f"no round trip on {net.name}: {said.stdout[-1000:]} {said.stderr[-1000:]}")
        return float(found[1])

    def run(self, work: str, net: Net, settings: Settings) -> dict[str, Any]:
        """The result of party 0, and `emulator_cpu_s`: processor seconds a step of the lab's own processes.

        RuntimeError with its last words if a party fails or takes too long.
        """
        parties = PARTIES[self.protocol] - self.dealt
        with tempfile.TemporaryDirectory() as folder:
            job = [str(HERE / f"{work}.toml"), "--steps", str(self.steps)]
            for key, value in {**ALONE, **protocol_settings(self.protocol), **settings}.items():
                job += ["--set", f"{key}={value}"]
            command = [sys.executable, "-m", "mpcpipe", "train", *job, "--set", f'run.output="{folder}/{{rank}}"']
            command.append("--insecure-plaintext")
            if self.dealt:
                _deal(job, Path(folder, "store"), parties)
                command += ["--store", f"{folder}/store/{{rank}}"]
            network = ["--rtt-ms", str(net.rtt_ms), "--mbit", str(net.mbit)]
            lab = by_hand(self.program, network, parties, self.timeout_s, command, folder)
            with open(f"{folder}/said", "w+") as said:
                done = subprocess.Popen(lab, stdout=said, stderr=subprocess.STDOUT)
                emulator_s = _watch(done, self.timeout_s + 30)
                said.seek(0)
                if done.returncode:
                    raise RuntimeError(f"{work} on {net.name}: {said.read()[-2000:]}")
            result: dict[str, Any] = json.loads(Path(folder, "0.json").read_text())
            return result | {"emulator_cpu_s": emulator_s / self.steps}


def _deal(job: Sequence[str], store: Path, parties: int) -> None:
    """A dealer's store for one run; each party's folder has its number for a name."""
    command = [sys.executable, "-m", "mpcpipe", "deal", *job, "--out", str(store)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"dealing failed: {done.stderr[-1000:]}")
    for number, name in enumerate(NAMES[:parties]):
        (store / name).rename(store / str(number))


def _watch(lab: subprocess.Popen[bytes], timeout_s: float) -> float:
    """Wait for it, and add up the processor seconds of the processes that it started and that are not parties."""
    until, seconds, parties = time.monotonic() + timeout_s, dict[int, float](), set[int]()
    while lab.poll() is None:
        for pid in _children(lab.pid):
            if pid in parties or _is_party(pid):  # it was none before its program began, and looks like none at its end
                parties.add(pid)
                seconds.pop(pid, None)
            else:
                seconds[pid] = _cpu_s(pid)
        if time.monotonic() > until:
            lab.send_signal(signal.SIGTERM)
            break
        with contextlib.suppress(subprocess.TimeoutExpired):
            lab.wait(_LOOK_S)
    lab.wait()
    return sum(seconds.values())


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return []


def _is_party(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"mpcpipe" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return True


def _cpu_s(pid: int) -> float:
    with contextlib.suppress(OSError):
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return 0.0


def step_s(runs: list[dict[str, Any]]) -> float:
    """Median seconds of all steps but each run's first."""
    return statistics.median(seconds for run in runs for seconds in run["steps_s"][1:])


_PORT, _PINGS = 9321, 100


def ping(rank: int, host: str) -> None:
    """Party 0 sends every byte back; party 1 counts."""
    if rank == 0:
        with socket.create_server((host, _PORT)) as server, server.accept()[0] as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while byte := peer.recv(1):
                peer.sendall(byte)
        return
    with _connected(host) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        took = []
        for _ in range(_PINGS):
            began = time.perf_counter()
            peer.sendall(b".")
            peer.recv(1)
            took.append(time.perf_counter() - began)
    print(f"round trip {1e3 * statistics.median(took):.3f} ms", flush=True)


def _connected(host: str) -> socket.socket:
    until = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection((host, _PORT), 20)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(_LOOK_S)


if __name__ == "__main__":
    ping(int(sys.argv[1]), sys.argv[2])
