"""Seconds and bytes of whole training steps, beside other systems where they are installed.

    python examples/benchmarks/steps.py                                  the works below, all parties on this machine
    python examples/benchmarks/steps.py w1 relu --steps 10 --repeat 5 --json result.json
    python examples/benchmarks/steps.py w1 --peer crypten=VENV/bin/python --peer spu=VENV/bin/python
    python examples/benchmarks/steps.py w2avg --protocol replicated3 --protocol replicated4
    python examples/benchmarks/steps.py w2avg --protocol additive2 --peer crypten=VENV/bin/python
    python examples/benchmarks/steps.py w1 --net wan --netlab PATH

Everybody runs in turn (ours, a peer, the next peer, ours again ...), `--repeat` times, with one thread a party; seconds
are medians, and ratios are medians of the ratios within a turn. Of several protocols the first is what the others and
the peers are compared with. Bytes are those of the parties that have shares; what a dealer sends and computes stands in
figures of its own. Prints a Markdown table.

NETLAB is a program that emulates a network: see lab.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import HERE, NAMES, PARTIES, by_hand

JOBS = ("w1", "w2avg", "w2max", "w3", "w4")
WORKS = (*JOBS, "relu")
TITLES = {
    "w1": "W1: MLP 784-128-128-10, batch 128",
    "w2avg": "W2avg: LeNet, average pooling, batch 128",
    "w2max": "W2max: LeNet, max pooling, batch 128",
    "w3": "W3: AlexNet, CIFAR-10, batch 32",
    "w4": "W4: VGG-16, CIFAR-10, batch 8",
    "relu": "ReLU of a million elements, forward",
}
PEER_PARTIES = {"crypten": 2, "spu": 3}
DEALERS = {"additive2": 2}
FIGURES = ("step_s", "sent_mb", "rounds", "peak_mb", "cpu_s", "dealer_mb", "dealer_cpu_s")
Figures = dict[str, float]


@dataclass(frozen=True)
class Network:
    """Where the parties meet: on this machine (no program), or in an emulated network."""

    name: str
    program: str | None
    timeout_s: float

    def run(self, command: list[str], parties: int, extra: list[str] | None = None) -> dict[str, Any]:
        """Run `command` for all parties; what the first wrote as JSON. RuntimeError with its last words if it fails."""
        with tempfile.TemporaryDirectory() as folder:
            if self.program is None:
                command = [*command, "--json", f"{folder}/0.json"]
            else:
                command = [*command, *(extra or [])]
                command = by_hand(self.program, ["--net", self.name], parties, self.timeout_s, command, folder)
            done = subprocess.run(
                command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise RuntimeError((done.stderr or done.stdout).strip()[-2000:])
            read: dict[str, Any] = json.loads(Path(folder, "0.json").read_text())
            return read


def ours(work: str, steps: int, network: Network, protocol: str = "replicated3") -> Figures:
    """Our figures: of `mpcpipe train`, or of relu.py."""
    parties = PARTIES[protocol]
    if work == "relu":
        if protocol != "replicated3":
            raise RuntimeError("relu.py is for replicated3")
        figures = network.run([sys.executable, str(HERE / "relu.py"), "--steps", str(steps)], 3)
        return {key: figures[key] for key in ("step_s", "sent_mb", "rounds", "peak_mb")}
    with tempfile.TemporaryDirectory() as runs:
        command = [sys.executable, "-m", "mpcpipe", "train", str(HERE / f"{work}.toml"), "--steps", str(1 + steps)]
        command += ["--set", "run.threads=1", "--set", f'run.output="{runs}"']
        command += ["--protocol", protocol, "--set", f"parties.names={json.dumps(NAMES[:parties])}"]
        result = network.run(command, parties, ["--insecure-plaintext"])
    dealer = DEALERS.get(protocol)
    computing = [party for party in range(parties) if party != dealer]
    sent, cpu_s = result["sent_bytes_per_step"], result["cpu_s"]
    figures = {
        "step_s": result["step_s"],
        "sent_mb": statistics.fmean(sent[party] for party in computing) / 1e6,
        "rounds": result["rounds_per_step"],
        "peak_mb": max(result["peak_rss_bytes"]) / 1e6,
        "cpu_s": statistics.fmean(cpu_s[party] for party in computing),
    }
    if dealer is not None:
        figures |= {"dealer_mb": sent[dealer] / 1e6, "dealer_cpu_s": cpu_s[dealer]}
    return figures


def contestants(
    peers: dict[str, str], protocols: list[str], steps: int, network: Network
) -> Iterator[tuple[str, Callable[[str], Figures]]]:
    """Us, by protocol, and the peers: how to get each one's figures for a work. The first has no name."""
    for number, protocol in enumerate(protocols):
        yield protocol if number else "", lambda work, protocol=protocol: ours(work, steps, network, protocol)
    for name, python in peers.items():
        command = [python, str(HERE / "peers" / f"{name}_steps.py"), "--steps", str(steps)]
        parties = PEER_PARTIES[name]
        yield name, lambda work, command=command, parties=parties: network.run([*command, work], parties)


def measure(works: list[str], repeat: int, runners: dict[str, Callable[[str], Figures]]) -> dict[str, list[Figures]]:
    """The figures of every turn, by peer (or nothing, for us) and work. A peer that fails is left out from then on."""
    figures: dict[str, list[Figures]] = {}
    failed = set()
    for turn in range(repeat):
        for work in works:
            for name, runner in runners.items():
                key = f"{name}_{work}" if name else work
                if key in failed:
                    continue
                try:
                    figures.setdefault(key, []).append(runner(work))
                    seconds = figures[key][-1]["step_s"]
                    print(f"turn {turn + 1}/{repeat}  {key:16s} {seconds:9.3f} s a step", file=sys.stderr, flush=True)
                except (RuntimeError, OSError) as error:
                    if not name:
                        raise SystemExit(f"{work} failed:\n{error}") from error
                    print(f"{key} failed, and is left out:\n{error}", file=sys.stderr)
                    failed.add(key)
                    figures.pop(key, None)
    return figures


def flat(figures: dict[str, list[Figures]]) -> dict[str, float]:
    """Medians over the turns, as w1_step_s, crypten_w1_step_s, crypten_w1_ratio ..."""
    result = {}
    for key, turns in figures.items():
        for figure in FIGURES:
            if figure in turns[0]:
                result[f"{key}_{figure}"] = round(statistics.median(turn[figure] for turn in turns), 4)
        peer, _, work = key.rpartition("_")
        if peer:
            pairs = zip(turns, figures[work], strict=True)
            result[f"{key}_ratio"] = round(statistics.median(a["step_s"] / b["step_s"] for a, b in pairs), 2)
    return result


def table(works: list[str], peers: list[str], result: dict[str, float]) -> Iterator[str]:
    """One line a work."""
    heads = ["", "seconds a step", "MB sent a party", "rounds", "peak MB a party"]
    heads += [f"{peer}: s, MB (times ours)" for peer in peers]
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for work in works:
        cells = [TITLES[work], f"{result[f'{work}_step_s']:.3f}", f"{result[f'{work}_sent_mb']:.1f}"]
        cells += [f"{result[f'{work}_rounds']:.0f}", f"{result[f'{work}_peak_mb']:.0f}"]
        for peer in peers:
            key = f"{peer}_{work}"
            known = f"{key}_step_s" in result
            cells.append(
                f"{result[f'{key}_step_s']:.2f}, {result[f'{key}_sent_mb']:.1f} ({result[f'{key}_ratio']:.1f})"
                if known
                else "failed"
            )
        yield f"| {' | '.join(cells)} |"


def peer_option(text: str) -> tuple[str, str]:
    name, equals, python = text.partition("=")
    if not equals or name not in PEER_PARTIES:
        raise argparse.ArgumentTypeError(f"write NAME=PYTHON; the names are {', '.join(PEER_PARTIES)}")
    return name, python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"of {', '.join(WORKS)}; all if none is given")
    parser.add_argument("--steps", type=int, default=5, help="steps a run, after one that is not counted")
    parser.add_argument("--repeat", type=int, default=3, help="runs of everybody")
    parser.add_argument(
        "--protocol", action="append", choices=PARTIES, help="ours; the first is compared with: replicated3"
    )
    parser.add_argument("--peer", type=peer_option, action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--net", default="none", help="the emulated network, by NETLAB's name: lan, metro, wan ...")
    parser.add_argument("--netlab", metavar="NETLAB", help="the program that emulates it")
    parser.add_argument("--timeout", type=float, default=900, help="seconds that NETLAB gives a run")
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    works, peers = options.works or list(WORKS), dict(options.peer)
    if unknown := set(works) - set(WORKS):
        parser.error(f"there is no work {', '.join(sorted(unknown))}; there are {', '.join(WORKS)}")
    if options.net != "none" and not options.netlab:
        parser.error(f"--net {options.net} needs --netlab")
    network = Network(options.net, options.netlab, options.timeout)
    for peer in PEER_PARTIES.keys() - peers.keys():
        print(f"without {peer}: --peer {peer}=PYTHON compares with it (peers/README.md)", file=sys.stderr)
    protocols = options.protocol or ["replicated3"]
    result = flat(measure(works, options.repeat, dict(contestants(peers, protocols, options.steps, network))))
    print("\n".join(table(works, [*protocols[1:], *peers], result)))
    about = {
        "protocol": protocols[0],
        "net": options.net,
        "steps": options.steps,
        "repeat": options.repeat,
        "cores": os.cpu_count() or 0,
    }
    if options.json:
        options.json.write_text(json.dumps({**about, "load": os.getloadavg()[0], **result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
