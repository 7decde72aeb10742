"""What compiled kernels need, from the compilers' own reports, and how many waves that leaves room for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

BLOCK_THREADS = 256
_ELEMENTS = {"m": "u64", "y": "u64", "j": "u32", "f": "f32"}


@dataclass(frozen=True)
class Resources:
    """One kernel on one architecture: registers of 32 bits a thread, bytes a thread that did not fit into them."""

    kernel: str
    element: str
    parameters: tuple[int, ...]
    arch: str
    registers: int
    spilled_bytes: int
    scratch_bytes: int

    @property
    def name(self) -> str:
        """As in `product<u64; 4, 4, 1, 8, 2, 16>`."""
        inside = "; ".join(filter(None, (self.element, ", ".join(map(str, self.parameters)))))
        return f"{self.kernel}<{inside}>"

    @property
    def blocks(self) -> int:
        """Blocks of a unit (SM or CU) that the registers leave room for."""
        return resident_blocks(self.arch, self.registers)

    @property
    def waves(self) -> int:
        """Waves that a unit holds: on GCN a quarter of them on each of its four SIMDs."""
        return self.blocks * BLOCK_THREADS // (64 if self.arch.startswith("gfx") else 32)

    @property
    def occupancy(self) -> float:
        """Waves of the most that a unit can hold."""
        return self.blocks * BLOCK_THREADS / most_threads(self.arch)


def most_threads(arch: str) -> int:
    """Threads that a unit can hold: 40 waves of 64 on GCN, 2048 on data-centre GPUs, 1536 on others of NVIDIA."""
    if arch.startswith("gfx"):
        return 40 * 64
    return 1536 if arch in ("sm_86", "sm_89", "sm_120") else 1024 if arch == "sm_75" else 2048


def resident_blocks(arch: str, registers: int) -> int:
    """Blocks of 256 threads that fit a unit's 65,536 registers (GCN: each a wave a SIMD, in steps of 4)."""
    if arch.startswith("gfx"):
        granted = max(4, -(-registers // 4) * 4)
        return max(1, min(10, 256 // granted))
    granted = max(8, -(-registers // 8) * 8)  # a warp is granted multiples of 256 registers
    return max(1, min(most_threads(arch) // BLOCK_THREADS, 65536 // (granted * BLOCK_THREADS)))


def parse(report: str, device: str, arch: str) -> list[Resources]:
    """All kernels in one compiler's report."""
    if device == "cuda":
        return list(_from_ptxas(report, arch))
    return list(_from_clang(report, arch)) if device == "hip" else []


def _from_ptxas(report: str, arch: str) -> Iterable[Resources]:
    blocks = re.split(r"Compiling entry function '", report)[1:]
    for block in blocks:
        symbol = block.split("'", 1)[0]
        registers = re.search(r"Used (\d+) registers", block)
        stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", block)
        if registers is None or stack is None:
            continue
        spilled = int(stack[2]) + int(stack[3])
        yield _resources(symbol, arch, int(registers[1]), spilled, int(stack[1]))


def _from_clang(report: str, arch: str) -> Iterable[Resources]:
    for block in re.split(r"Function Name: ", report)[1:]:
        found = {}
        for key, pattern in (
            ("registers", r"remark:\s+VGPRs: (\d+)"),
            ("scratch", r"ScratchSize \[bytes/lane\]: (\d+)"),
            ("spilled", r"VGPRs Spill: (\d+)"),
        ):
            match = re.search(pattern, block)
            found[key] = int(match[1]) if match else -1
        if min(found.values()) >= 0:
            yield _resources(block.split()[0], arch, found["registers"], 4 * found["spilled"], found["scratch"])


def _resources(symbol: str, arch: str, registers: int, spilled: int, scratch: int) -> Resources:
    kernel, element, parameters = demangle(symbol)
    return Resources(kernel, element, parameters, arch, registers, spilled, scratch)


def demangle(symbol: str) -> tuple[str, str, tuple[int, ...]]:
    """(name, element, numbers) of one of our kernels' mangled names: templates of an element and of integers."""
    match = re.match(r"_ZN3mpg(\d+)", symbol)
    if match is None:
        return symbol, "", ()
    start, length = match.end(), int(match[1])
    rest = symbol[start + length :]
    element = _ELEMENTS.get(rest[1:2], "") if rest.startswith("I") else ""
    numbers = re.match(r"I.(?:NS_\d+[A-Za-z]+I)?((?:L[ib]\d+E)*)", rest)
    parameters = tuple(int(each) for each in re.findall(r"L[ib](\d+)E", numbers[1])) if numbers else ()
    return symbol[start : start + length], element, parameters


def to_json(resources: Iterable[Resources]) -> list[dict[str, Any]]:
    """For the file beside a library."""
    return [asdict(each) for each in resources]


def from_json(content: list[dict[str, Any]]) -> tuple[Resources, ...]:
    """The inverse of `to_json`."""
    return tuple(Resources(**{**each, "parameters": tuple(each["parameters"])}) for each in content)
