"""Tables of the device kernels: what compilers say they need, and the least times that machines allow. Markdown.

Nothing here is measured on a device. Registers come from the compilers' reports of libraries in the cache
(`mpcpipe kernels build --device hip --arch gfx906`), times from bytes, multiply-adds and data sheets.

    python examples/benchmarks/device_kernels.py [--batch 32] [--element u64]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence

from mpcpipe.device.build import find_built
from mpcpipe.device.library import ELEMENT_BYTES
from mpcpipe.device.machines import MACHINES
from mpcpipe.device.resources import Resources
from mpcpipe.ring.shapes import ConvShape, conv_shape

TARGETS = (("hip", "gfx906"), ("cuda", "sm_80"), ("cuda", "sm_90"))
# MobileNet at 224 x 224: (channels, side, stride) of depthwise layers, (channels, side, filters) of pointwise ones.
DEPTHWISE = ((32, 112, 1), (64, 112, 2), (128, 56, 1), (256, 28, 1), (512, 14, 1), (1024, 7, 1))
POINTWISE = ((32, 112, 64), (128, 56, 128), (256, 28, 256), (512, 14, 512), (1024, 7, 1024))


def layers(batch: int) -> Iterator[tuple[str, ConvShape]]:
    """(name, shape) of each layer."""
    for channels, side, stride in DEPTHWISE:
        x, w = (batch, channels, side, side), (channels, 1, 3, 3)
        shape = conv_shape(x, w, (stride, stride), (1, 1), (1, 1), channels)
        yield f"depthwise {channels} x {side}², 3x3/{stride}", shape
    for channels, side, filters in POINTWISE:
        x, w = (batch, channels, side, side), (filters, channels, 1, 1)
        yield f"pointwise {channels} to {filters}, {side}²", conv_shape(x, w, (1, 1), (0, 0), (1, 1), 1)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """One Markdown table."""
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def resources() -> None:
    """Registers, blocks a unit and occupancy of each kernel on each architecture that is built."""
    found: dict[str, dict[str, Resources]] = {}
    archs = []
    for device, arch in TARGETS:
        built = find_built(device, arch)
        if built is not None:
            archs.append(arch)
            for each in built.resources:
                found.setdefault(each.name, {})[arch] = each
    rows = []
    for name in sorted(found):
        cells = []
        for arch in archs:
            each = found[name].get(arch)
            spills = "" if each is None or not each.spilled_bytes + each.scratch_bytes else ", **spills**"
            cells.append("" if each is None else f"{each.registers}, {each.blocks} ({each.occupancy:.0%}){spills}")
        rows.append([f"`{name}`", *cells])
    table(["kernel", *archs], rows)


def roofline(batch: int, element: str) -> None:
    """Bytes, multiply-adds and the least time of each layer's forward pass on each machine."""
    rows = []
    for name, shape in layers(batch):
        macs = math.prod(shape.y) * math.prod(shape.w[1:])
        nbytes = ELEMENT_BYTES[element] * sum(math.prod(each) for each in (shape.x, shape.w, shape.y))
        times = (machine.least_us(element, macs, nbytes) for machine in MACHINES.values())
        cells = [f"{least:.0f} {'m' if memory else 'a'}" for least, memory in times]
        rows.append([name, f"{nbytes / 1e6:.1f}", f"{macs / 1e6:.0f}", *cells])
    table(["layer", "MB", "million multiply-adds", *(machine.name for machine in MACHINES.values())], rows)


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description="Tables of the device kernels, computed, not measured on a device.")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--element", choices=sorted(ELEMENT_BYTES), default="u64")
    arguments = parser.parse_args()
    resources()
    roofline(arguments.batch, arguments.element)


if __name__ == "__main__":
    main()
