"""How fast the CPU kernels are, beside torch's integers, float64 digits and oneDNN, on one thread.

    python examples/benchmarks/kernels.py [--json FILE] [--quick]

Prints a table and writes flat keys: `..._gmacs` are 10^9 multiply-adds a second, `..._s` seconds, `..._gbs` 10^9
bytes a second. A time is the processor time of this thread, the best of several runs: what the kernel needs, whoever
else is on the machine. Only `threads2_...` compare times on the wall, and mean something on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from mpcpipe.protocol.carry import carry
from mpcpipe.protocol.replicated3 import Replicated3
from mpcpipe.random.tape import PrgTape
from mpcpipe.ring import native, reference
from mpcpipe.ring.ring import Ring
from mpcpipe.ring.shapes import ConvShape, conv_shape
from mpcpipe.runtime.memory import keep_freed_memory

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


POINTWISE: dict[str, Layer] = {
    "32->64 of 112x112": (32, 64, 112, 1, 0, 1),
    "128->128 of 56x56": (128, 128, 56, 1, 0, 1),
    "256->256 of 28x28": (256, 256, 28, 1, 0, 1),
    "512->512 of 14x14": (512, 512, 14, 1, 0, 1),
    "1024->1024 of 7x7": (1024, 1024, 7, 1, 0, 1),
}
COMPARE_BITS = 32


def elements(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype)
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


def floats(library: native.NativeLibrary, batch: int, enough_s: float, results: dict[str, float]) -> None:
    """float32 beside torch's oneDNN, shape by shape: neither wins everywhere."""
    a, b, out = (elements(512, 512, dtype=torch.float32) for _ in range(3))
    results["matmul_f32_512_gmacs"] = 512**3 / 1e9 / seconds(lambda: library.matmul(a, b, out), enough_s)
    results["torch_float32_512_gmacs"] = 512**3 / 1e9 / seconds(lambda: torch.mm(a, b, out=out), enough_s)
    for name, layers in (("depthwise", DEPTHWISE), ("pointwise", POINTWISE)):
        print(f"\nfloat32 {name}, batch {batch}: ours and oneDNN, 10^9 multiply-adds a second, three directions")
        sums = [0.0] * 6
        for title, layer in layers.items():
            s = shape_of(layer, batch, layer[0] if name == "depthwise" else 1)
            macs = batch * s.y[1] * s.y[2] * s.y[3] * s.w[1] * s.w[2] * s.w[3] / 1e9
            times = [*directions(library, s, torch.float32, enough_s), *by_onednn(s, enough_s)]
            sums = [total + t for total, t in zip(sums, times, strict=True)]
            pairs = (f"{macs / ours:6.2f} {macs / theirs:6.2f}" for ours, theirs in zip(times, times[3:], strict=False))
            print(f"  {title:26s}", "   ".join(pairs), flush=True)
        for i, direction in enumerate(("", "_input_grad", "_weight_grad")):
            results[f"{name}_f32{direction}_sum_s"] = sums[i]
            results[f"torch_{name}_f32{direction}_sum_s"] = sums[3 + i]


def by_onednn(s: ConvShape, enough_s: float) -> tuple[float, float, float]:
    x, w, y = (elements(*shape, dtype=torch.float32) for shape in (s.x, s.w, s.y))
    how = (list(s.stride), list(s.padding), [1, 1])

    def backward(which: int) -> object:
        mask = [which == 0, which == 1, False]
        return torch.ops.aten.convolution_backward(y, x, w, None, *how, False, [0, 0], s.groups, mask)

    return (
        seconds(lambda: torch.nn.functional.conv2d(x, w, None, *how, s.groups), enough_s),
        seconds(lambda: backward(0), enough_s),
        seconds(lambda: backward(1), enough_s),
    )


def alone(operation: Coroutine[Any, Any, object], answers: dict[tuple[int, int, int], torch.Tensor]) -> None:
    """Carry out an operation of one party, to which messages of the right length are read from memory."""
    try:
        step = operation.send(None)
        while True:
            received = {
                peer: [
                    answers.setdefault((peer, i, part.numel), elements(part.numel, dtype=part.dtype))
                    for i, part in enumerate(parts)
                ]
                for peer, parts in step.receive.items()
            }
            step = operation.send(received)
    except StopIteration:
        return


def signs(enough_s: float, results: dict[str, float]) -> None:
    """Comparisons with zero, replicated3, one party: the levels of the tree with their masks, then all there is."""
    keep_freed_memory()  # as parties do
    n = 1 << 20
    holders = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]
    tape = PrgTape({holder: bytes([index]) * 32 for index, holder in enumerate(holders)})
    party = Replicated3(party=0, ring=Ring(64), tape=tape, compare_bits=COMPARE_BITS, parties=3)
    chunks = party.chunks(n)
    generate, propagate = (elements(2, COMPARE_BITS - 1, chunks.total_words) for _ in range(2))
    answers: dict[tuple[int, int, int], torch.Tensor] = {}

    async def tree() -> torch.Tensor:
        async def ands(p: torch.Tensor, g: torch.Tensor, q: torch.Tensor, level: int) -> torch.Tensor:
            return await party._and(p, g, q, chunks, f"level{level}")

        return await carry(generate, propagate, ands)

    results["signs_per_s"] = n / seconds(lambda: alone(tree(), answers), enough_s)
    x = torch.randint(-(1 << 40), 1 << 40, (2, n))
    results["whole_signs_per_s"] = n / seconds(lambda: alone(party.nonnegative(x), answers), enough_s)
    planes = COMPARE_BITS
    masked = torch.empty((planes, n // 64), dtype=torch.int64)
    mask_s = seconds(lambda: tape.planes((0, 1), "mask", planes, n).numel() == masked.numel(), enough_s)
    results["mask_planes_gbs"] = masked.nbytes / mask_s / 1e9


def two_threads(library: native.NativeLibrary, enough_s: float, results: dict[str, float]) -> None:
    """By how much a second thread shortens a product and a convolution, by the wall's clock."""

    def wall_s(work: Callable[[], object]) -> float:
        work()
        best, end = float("inf"), time.perf_counter() + enough_s
        while time.perf_counter() < end:
            start = time.perf_counter()
            work()
            best = min(best, time.perf_counter() - start)
        return best

    a, b, out = (elements(1024, 1024) for _ in range(3))
    s = shape_of(DENSE["VGG 128->128"], 8, 1)
    x, w, y = (elements(*shape) for shape in (s.x, s.w, s.y))
    ratios = {
        "matmul_u64_1024": [wall_s(lambda t=t: library.matmul(a, b, out, threads=t)) for t in (1, 2)],
        "conv_u64": [wall_s(lambda t=t: library.conv2d(s, x, w, y, threads=t)) for t in (1, 2)],
    }
    for name, (one, two) in ratios.items():
        results[f"threads2_{name}_ratio"] = one / two


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
    enough_s, batch = (0.05, 8) if options.quick else (0.25, 32)
    results: dict[str, float] = {}
    print(f"instruction set {library.isa}, torch {torch.__version__}, one thread")
    products(library, 4 * enough_s, results)
    convolutions(library, "conv", DENSE, batch, enough_s, results)
    convolutions(library, "depthwise", DEPTHWISE, batch // 4, enough_s, results)
    torch_depthwise(batch // 4, results)
    floats(library, batch // 4, enough_s, results)
    bits_and_streams(library, enough_s, results)
    signs(enough_s, results)
    two_threads(library, enough_s, results)
    print()
    for key, value in results.items():
        print(f"{key:36s} {value:14.4g}")
    if options.json:
        options.json.write_text(json.dumps({"isa": library.isa, "batch": batch, **results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
