"""The least that compiled kernels must leave room for: a guard where there is no device to time them on."""

from __future__ import annotations

import math

from mpcpipe.device.resources import Resources

# Blocks of 256 threads a unit, by the filter's width: (8-byte elements, 4-byte elements).
FLOORS = {
    ("gfx", "depthwise"): {3: (5, 10), 5: (2, 4), 7: (1, 2)},
    ("gfx", "depthwise_weight"): {3: (4, 4), 5: (2, 2), 7: (1, 1)},
    ("sm_", "depthwise"): {3: (4, 5), 5: (2, 4), 7: (2, 2)},
    ("sm_", "depthwise_weight"): {3: (3, 4), 5: (2, 3), 7: (1, 2)},
}


def floor_of(kernel: Resources) -> int:
    """Blocks that this kernel must leave room for."""
    wide = kernel.element == "u64"
    if kernel.kernel == "sum_parts":
        return 8
    if kernel.kernel == "product":  # two, where sums take 16 registers; the large tiles live on what a thread keeps
        return 2 if math.prod(kernel.parameters[:2]) * (2 if wide else 1) <= 16 else 1
    return FLOORS[kernel.arch[:3], kernel.kernel][kernel.parameters[0]][0 if wide else 1]


def faults(kernels: list[Resources]) -> list[str]:
    """What is wrong with them: anything outside of registers, or fewer blocks than the floor."""
    found = []
    for each in kernels:
        if each.spilled_bytes or each.scratch_bytes:
            found.append(
                f"{each.name} on {each.arch}: {each.spilled_bytes} bytes spilled, {each.scratch_bytes} scratch"
            )
        if each.blocks < floor_of(each):
            found.append(f"{each.name} on {each.arch}: {each.registers} registers leave room for {each.blocks} blocks")
    return found
