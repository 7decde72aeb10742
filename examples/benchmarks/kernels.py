"""How fast the CPU kernels are, beside torch's integers and float64 digits, on one thread.

    python examples/benchmarks/kernels.py [--json FILE] [--quick]

Prints a table and writes flat keys: `..._gmacs` are 10^9 multiply-adds a second, `..._s` seconds, `..._gbs` 10^9
bytes a second. A time is the processor time of this thread, the best of several runs: what the kernel needs, whoever
else is on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from mpcpipe.ring import native, reference
from mpcpipe.ring.shapes import ConvShape, conv_shape

Layer = tuple[int, int, int, int, int, int]  # in channels, out channels, size, kernel, padding, stride

DENSE: dict[str, Layer] = {
    "LeNet 1->6": (1, 6, 28, 5, 0, 1),
    "LeNet 6->16": (6, 16, 14, 5, 0, 1),
    "VGG 3->64": (3, 64, 32, 3, 1, 1),
    "VGG 64->64": (64, 64, 32, 3, 1, 1),
    "VGG 64->128": (64, 128, 16, 3, 1, 1),
    "VGG 128->128": (128, 128, 16, 3, 1, 1),
    "VGG 128->256": (128, 256, 8, 3, 1, 1),
    "VGG 256->256": (256, 256, 8, 3, 1, 1),
    "VGG 256->512": (256, 512, 4, 3, 1, 1),
    "VGG 512->512 4x4": (512, 512, 4, 3, 1, 1),
    "VGG 512->512 2x2": (512, 512, 2, 3, 1, 1),
}
DEPTHWISE: dict[str, Layer] = {
    "32 of 112x112, 3x3": (32, 32, 112, 3, 1, 1),
    "64 of 112x112, 3x3 by 2": (64, 64, 112, 3, 1, 2),
    "128 of 56x56, 3x3": (128, 128, 56, 3, 1, 1),
    "256 of 28x28, 3x3": (256, 256, 28, 3, 1, 1),
    "256 of 28x28, 5x5 by 2": (256, 256, 28, 5, 2, 2),
    "512 of 14x14, 5x5": (512, 512, 14, 5, 2, 1),
    "1024 of 7x7, 3x3": (1024, 1024, 7, 3, 1, 1),
}


def elements(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, shape, dtype=dtype)


def seconds(work: Callable[[], object], enough_s: float) -> float:
    """The best processor time of one call."""
    work()
    best, end, runs = float("inf"), time.perf_counter() + enough_s, 0
    while runs < 2 or time.perf_counter() < end:
        start = time.thread_time()
        work()
        best = min(best, time.thread_time() - start)
        runs += 1
    return best


def products(library: native.NativeLibrary, enough_s: float, results: dict[str, float]) -> None:
    for size in (512, 1024):
        macs = size**3 / 1e9
        for width, dtype in (("u64", torch.int64), ("u32", torch.int32)):
            a, b, out = (elements(size, size, dtype=dtype) for _ in range(3))
            key = f"{width}_{size}_gmacs"
            results[f"matmul_{key}"] = macs / seconds(lambda a=a, b=b, out=out: library.matmul(a, b, out), enough_s)
            results[f"digits_{key}"] = macs / seconds(lambda a=a, b=b: reference.matmul_by_digits(a, b), enough_s)
            if size == 512:
                name = f"torch_int{8 * a.element_size()}_512_gmacs"
                results[name] = macs / seconds(lambda a=a, b=b: a @ b, enough_s)


def shape_of(layer: Layer, batch: int, groups: int) -> ConvShape:
    channels, out, size, kernel, padding, stride = layer
    x, w = (batch, channels, size, size), (out, channels // groups, kernel, kernel)
    return conv_shape(x, w, (stride, stride), (padding, padding), (1, 1), groups)


def directions(
    library: native.NativeLibrary, s: ConvShape, dtype: torch.dtype, enough_s: float
) -> tuple[float, float, float]:
    """Seconds forward, for the input gradient, and for the weight gradient."""
    x, w, y = elements(*s.x, dtype=dtype), elements(*s.w, dtype=dtype), elements(*s.y, dtype=dtype)
    dx, dw = x.clone(), w.clone()
    return (
        seconds(lambda: library.conv2d(s, x, w, y), enough_s),
        seconds(lambda: library.conv2d_input_grad(s, y, w, dx), enough_s),
        seconds(lambda: library.conv2d_weight_grad(s, x, y, dw), enough_s),
    )


def convolutions(
    library: native.NativeLibrary,
    name: str,
    layers: dict[str, Layer],
    batch: int,
    enough_s: float,
    results: dict[str, float],
) -> None:
    depthwise = name == "depthwise"
    print(f"\n{name}, batch {batch}: 10^9 multiply-adds a second, forward / input gradient / weight gradient")
    for width, dtype in (("u64", torch.int64), ("u32", torch.int32)):
        sums = [0.0, 0.0, 0.0]
        for title, layer in layers.items():
            s = shape_of(layer, batch, layer[0] if depthwise else 1)
            macs = batch * s.y[1] * s.y[2] * s.y[3] * s.w[1] * s.w[2] * s.w[3] / 1e9
            times = directions(library, s, dtype, enough_s)
            sums = [total + t for total, t in zip(sums, times, strict=True)]
            print(f"  {width}  {title:26s}", "  ".join(f"{macs / t:6.2f}" for t in times), flush=True)
        for direction, total in zip(("", "_input_grad", "_weight_grad"), sums, strict=True):
            results[f"{name}_{width}{direction}_sum_s"] = total


def torch_depthwise(batch: int, results: dict[str, float]) -> None:
    total = 0.0
    for layer in DEPTHWISE.values():
        s = shape_of(layer, batch, layer[0])
        x, w = elements(*s.x), elements(*s.w)
        total += seconds(
            lambda x=x, w=w, s=s: torch.nn.functional.conv2d(x, w, None, s.stride, s.padding, s.dilation, s.groups), 0
        )
    results["torch_depthwise_int64_sum_s"] = total


def bits_and_streams(library: native.NativeLibrary, enough_s: float, results: dict[str, float]) -> None:
    x, count = elements(1 << 20, dtype=torch.int32), 1 << 20
    results["bit_planes_32_elements_per_s"] = count / seconds(lambda: library.bit_planes(x, 32), enough_s)
    plane = elements(count // 64)
    results["unpack_elements_per_s"] = count / seconds(lambda: library.unpack_bits(plane, count, torch.int32), enough_s)
    if library.has_aes:
        out = torch.empty(1 << 20, dtype=torch.uint8)
        results["aes128_ctr_gbs"] = len(out) / seconds(lambda: library.aes128_ctr(bytes(16), 0, out), enough_s) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--quick", action="store_true", help="smaller batches and fewer runs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    library = native.load()
    if library is None:
        raise SystemExit(f"there is no native library to measure: {native.status()['reason']}")
    enough_s, batch = (0.05, 8) if options.quick else (0.5, 32)
    results: dict[str, float] = {}
    print(f"instruction set {library.isa}, torch {torch.__version__}, one thread")
    products(library, enough_s, results)
    convolutions(library, "conv", DENSE, batch, enough_s, results)
    convolutions(library, "depthwise", DEPTHWISE, batch // 4, enough_s, results)
    torch_depthwise(batch // 4, results)
    bits_and_streams(library, enough_s, results)
    print()
    for key, value in results.items():
        print(f"{key:36s} {value:14.4g}")
    if options.json:
        options.json.write_text(json.dumps({"isa": library.isa, "batch": batch, **results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
