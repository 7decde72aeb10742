"""The native library equals the reference bit for bit, with every instruction set, and refuses what does not fit."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcpipe.errors import KernelError
from mpcpipe.ring import native, reference
from mpcpipe.ring.native import loading
from mpcpipe.ring.shapes import ConvShape, conv_shape

LIBRARY = native.load()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason=f"no native library: {native.status()['reason']}")
DTYPES = (torch.int32, torch.int64)


def isas() -> list[str]:
    """The instruction sets that this processor has."""
    return ["portable"] if LIBRARY is None or LIBRARY.isa == "portable" else ["portable", LIBRARY.isa]


@pytest.fixture(params=isas())
def library(request: pytest.FixtureRequest) -> Iterator[native.NativeLibrary]:
    assert LIBRARY is not None
    before = LIBRARY.isa
    LIBRARY.set_isa(request.param)
    yield LIBRARY
    LIBRARY.set_isa(before)


def elements(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Ring elements from the whole range, one in eight of them an extreme."""
    generator = torch.Generator().manual_seed(seed)
    limits = torch.iinfo(dtype)
    x = torch.randint(limits.min, limits.max, shape, dtype=dtype, generator=generator)
    extremes = torch.tensor([limits.min, limits.max, -1, 0], dtype=dtype)
    chosen = torch.randint(0, 8, shape, generator=generator) == 0
    return torch.where(chosen, extremes[torch.randint(0, 4, shape, generator=generator)], x)


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The same matrix with other strides."""
    if layout == "transposed":
        return x.T.contiguous().T
    if layout == "spread":
        wide = x.new_zeros((2 * x.shape[0], 3 * x.shape[1]))
        wide[::2, ::3] = x
        return wide[::2, ::3]
    return x


sizes = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 24, 31, 33, 48, 65])
depths = st.sampled_from([0, 1, 2, 3, 7, 8, 9, 25, 64, 255, 256, 257, 385, 513, 770])
layouts = st.sampled_from(["plain", "transposed", "spread"])


class TestMatMul:
    @settings(max_examples=120, deadline=None)
    @given(
        m=sizes,
        n=sizes,
        k=depths,
        a_layout=layouts,
        b_layout=layouts,
        dtype=st.sampled_from(DTYPES),
        accumulate=st.booleans(),
        threads=st.sampled_from([1, 2, 3]),
        isa=st.sampled_from(isas()),
    )
    def test_equals_the_reference(
        self,
        m: int,
        n: int,
        k: int,
        a_layout: str,
        b_layout: str,
        dtype: torch.dtype,
        accumulate: bool,
        threads: int,
        isa: str,
    ) -> None:
        assert LIBRARY is not None
        a, b = elements(m, k, dtype=dtype), elements(k, n, dtype=dtype, seed=1)
        out = elements(m, n, dtype=dtype, seed=2)
        expected = a @ b + (out if accumulate else 0)
        before = LIBRARY.isa
        LIBRARY.set_isa(isa)
        try:
            result = LIBRARY.matmul(laid_out(a, a_layout), laid_out(b, b_layout), out, accumulate, threads)
        finally:
            LIBRARY.set_isa(before)
        assert result is out
        assert torch.equal(out, expected)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", [(300, 300, 300), (7, 2100, 40), (500, 10, 900), (1, 700, 1100), (900, 1, 700)])
    def test_large_ones_cross_all_blocks(
        self, library: native.NativeLibrary, shape: tuple[int, int, int], dtype: torch.dtype
    ) -> None:
        m, n, k = shape
        a, b = elements(m, k, dtype=dtype), elements(k, n, dtype=dtype, seed=1)
        for threads in (1, 2, 5):
            assert torch.equal(library.matmul(a, b, threads=threads), reference.matmul_by_digits(a, b))

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_stride_zero(self, library: native.NativeLibrary, dtype: torch.dtype) -> None:
        a, b = elements(1, 40, dtype=dtype).expand(30, 40), elements(40, 1, dtype=dtype, seed=1).expand(40, 20)
        assert torch.equal(library.matmul(a, b), a @ b)

    @pytest.mark.parametrize("accumulate", [False, True])
    def test_out_may_be_an_input(self, library: native.NativeLibrary, accumulate: bool) -> None:
        a, b = elements(9, 9, dtype=torch.int64), elements(9, 9, dtype=torch.int64, seed=1)
        expected = a @ b + (a if accumulate else 0)
        assert torch.equal(library.matmul(a, b, a, accumulate), expected)
        assert torch.equal(a, expected)

    def test_out_beside_an_input_in_one_storage(self, library: native.NativeLibrary) -> None:
        both = elements(2, 8, 8, dtype=torch.int64)
        expected = both[0] @ both[0]
        library.matmul(both[0], both[0], both[1])
        assert torch.equal(both[1], expected)

    def test_out_that_is_not_contiguous(self, library: native.NativeLibrary) -> None:
        a, b = elements(5, 6, dtype=torch.int64), elements(6, 7, dtype=torch.int64, seed=1)
        out = elements(7, 5, dtype=torch.int64, seed=2).T
        expected = out + a @ b
        assert library.matmul(a, b, out, accumulate=True) is out
        assert torch.equal(out, expected)

    def test_several_threads_at_once(self, library: native.NativeLibrary) -> None:
        a, b = elements(64, 300, dtype=torch.int64), elements(300, 64, dtype=torch.int64, seed=1)
        expected, wrong = a @ b, []

        def work() -> None:
            wrong.extend(1 for _ in range(20) if not torch.equal(library.matmul(a, b), expected))

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert wrong == []


convolutions = st.builds(
    dict,
    groups=st.sampled_from([1, 1, 2, 3]),
    group_in=st.sampled_from([1, 2, 3, 5]),
    group_out=st.sampled_from([1, 2, 6, 9]),
    batch=st.sampled_from([0, 1, 2, 5]),
    size=st.tuples(st.sampled_from([1, 2, 4, 7, 8, 13]), st.sampled_from([1, 3, 4, 8, 12, 24])),
    kernel=st.tuples(st.sampled_from([1, 2, 3, 5]), st.sampled_from([1, 2, 3, 5])),
    stride=st.tuples(st.sampled_from([1, 1, 2, 3, 6]), st.sampled_from([1, 1, 2, 3, 6])),
    padding=st.tuples(st.sampled_from([0, 0, 1, 2, 7]), st.sampled_from([0, 0, 1, 2, 7])),
    dilation=st.tuples(st.sampled_from([1, 1, 2, 3]), st.sampled_from([1, 1, 2, 3])),
)


def shape_of(c: dict[str, object]) -> ConvShape | None:
    """The convolution's shapes, or None where the filter does not fit."""
    groups, group_in, group_out, batch = (int(c[key]) for key in ("groups", "group_in", "group_out", "batch"))  # type: ignore[call-overload]
    x = (batch, groups * group_in, *c["size"])  # type: ignore[misc]
    w = (groups * group_out, group_in, *c["kernel"])  # type: ignore[misc]
    try:
        return conv_shape(x, w, c["stride"], c["padding"], c["dilation"], groups)  # type: ignore[arg-type]
    except ValueError:
        return None


def check_all_directions(library: native.NativeLibrary, s: ConvShape, dtype: torch.dtype, threads: int) -> None:
    x, w = elements(*s.x, dtype=dtype), elements(*s.w, dtype=dtype, seed=1)
    dy = elements(*s.y, dtype=dtype, seed=2)
    rest = (s.stride, s.padding, s.dilation, s.groups)
    expected = {
        "conv2d": reference.conv2d(x, w, *rest),
        "conv2d_input_grad": reference.conv2d_input_grad(dy, w, s.x, *rest),
        "conv2d_weight_grad": reference.conv2d_weight_grad(x, dy, s.w, *rest),
    }
    inputs = {"conv2d": (x, w), "conv2d_input_grad": (dy, w), "conv2d_weight_grad": (x, dy)}
    for name, right in expected.items():
        method = getattr(library, name)
        assert torch.equal(method(s, *inputs[name], threads=threads), right), name
        out = elements(*right.shape, dtype=dtype, seed=3)
        before = out.clone()
        assert method(s, *inputs[name], out, accumulate=True, threads=threads) is out
        assert torch.equal(out, before + right), f"{name}, accumulated"


class TestConvolution:
    @settings(max_examples=150, deadline=None)
    @given(c=convolutions, dtype=st.sampled_from(DTYPES), threads=st.sampled_from([1, 3]), isa=st.sampled_from(isas()))
    def test_equals_the_reference(self, c: dict[str, object], dtype: torch.dtype, threads: int, isa: str) -> None:
        shape = shape_of(c)
        if shape is None:
            return
        assert LIBRARY is not None
        before = LIBRARY.isa
        LIBRARY.set_isa(isa)
        try:
            check_all_directions(LIBRARY, shape, dtype, threads)
        finally:
            LIBRARY.set_isa(before)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize(
        ("x", "w", "stride", "padding", "dilation", "groups"),
        [
            ((3, 1, 28, 28), (20, 1, 5, 5), 1, 0, 1, 1),  # LeNet
            ((3, 20, 12, 12), (50, 20, 5, 5), 1, 0, 1, 1),
            ((2, 64, 16, 16), (32, 64, 3, 3), 1, 1, 1, 1),  # VGG: planes of a power of two
            ((9, 40, 2, 2), (48, 40, 3, 3), 1, 1, 1, 1),
            ((2, 3, 32, 32), (24, 3, 11, 11), 4, 9, 1, 1),  # AlexNet
            ((2, 16, 14, 14), (32, 16, 1, 1), 2, 0, 1, 1),  # ResNet's short cut
            ((2, 24, 15, 15), (24, 1, 3, 3), 1, 1, 1, 24),  # depthwise
            ((2, 24, 15, 15), (24, 1, 3, 3), 2, 1, 1, 24),
            ((2, 12, 11, 11), (24, 1, 5, 5), 2, 2, 1, 12),
            ((1, 2, 5, 5), (3, 2, 1, 1), 3, 2, 1, 1),  # a stride past the kernel, padding past it too
            ((1, 2, 9, 4), (3, 2, 3, 2), 1, 4, 3, 1),
            ((40, 2, 30, 30), (3, 2, 3, 3), 1, 1, 1, 1),  # several chunks of images
        ],
    )
    def test_layers(
        self,
        library: native.NativeLibrary,
        x: tuple[int, ...],
        w: tuple[int, ...],
        stride: int,
        padding: int,
        dilation: int,
        groups: int,
        dtype: torch.dtype,
    ) -> None:
        shape = conv_shape(x, w, (stride, stride), (padding, padding), (dilation, dilation), groups)
        for threads in (1, 2, 4):
            check_all_directions(library, shape, dtype, threads)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("groups", [1, 6])
    def test_nothing_outside_the_output_is_written(
        self, library: native.NativeLibrary, groups: int, dtype: torch.dtype
    ) -> None:
        for size, stride in ((5, 1), (9, 2), (12, 1)):
            s = conv_shape((3, 6, size, size), (6, 6 // groups, 3, 3), (stride, stride), (1, 0), (1, 1), groups)
            x, w, dy = (elements(*shape, dtype=dtype) for shape in (s.x, s.w, s.y))
            for method, first, second, shape in (
                (library.conv2d, x, w, s.y),
                (library.conv2d_input_grad, dy, w, s.x),
                (library.conv2d_weight_grad, x, dy, s.w),
            ):
                numel = torch.Size(shape).numel()
                memory = torch.full((numel + 64,), 7, dtype=dtype)
                method(s, first, second, memory[32 : 32 + numel].view(shape))
                assert bool((memory[:32] == 7).all() and (memory[32 + numel :] == 7).all())

    def test_inputs_that_are_not_contiguous(self, library: native.NativeLibrary) -> None:
        shape = conv_shape((2, 3, 6, 5), (4, 3, 3, 2), (1, 1), (1, 0), (1, 1), 1)
        x = elements(2, 6, 5, 3, dtype=torch.int64).permute(0, 3, 1, 2)
        w = elements(2, 3, 3, 4, dtype=torch.int64).permute(3, 2, 1, 0)
        expected = reference.conv2d(x, w, (1, 1), (1, 0), (1, 1), 1)
        assert torch.equal(library.conv2d(shape, x, w), expected)

    def test_out_may_be_an_input(self, library: native.NativeLibrary) -> None:
        shape = conv_shape((2, 3, 6, 6), (3, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1)
        x, w = elements(*shape.x, dtype=torch.int64), elements(*shape.w, dtype=torch.int64, seed=1)
        expected = x + library.conv2d(shape, x, w)
        assert torch.equal(library.conv2d(shape, x, w, x, accumulate=True), expected)


class TestBits:
    @settings(max_examples=100, deadline=None)
    @given(
        n=st.sampled_from([0, 1, 31, 63, 64, 65, 127, 500, 511, 512, 513, 577, 2000]),
        count=st.integers(0, 64),
        dtype=st.sampled_from(DTYPES),
        isa=st.sampled_from(isas()),
    )
    def test_planes_equal_the_reference(self, n: int, count: int, dtype: torch.dtype, isa: str) -> None:
        assert LIBRARY is not None
        x = elements(n, dtype=dtype)
        before = LIBRARY.isa
        LIBRARY.set_isa(isa)
        try:
            planes = LIBRARY.bit_planes(x, count)
            back = [LIBRARY.unpack_bits(plane, n, dtype) for plane in planes]
        finally:
            LIBRARY.set_isa(before)
        assert torch.equal(planes, reference.bit_planes(x, count))
        for j, plane in enumerate(back):
            assert torch.equal(plane, ((x.long() >> j) & 1).to(dtype))

    def test_a_view_with_steps(self, library: native.NativeLibrary) -> None:
        x = elements(300, dtype=torch.int32)[::3]
        assert torch.equal(library.bit_planes(x, 32), reference.bit_planes(x, 32))

    def test_too_many_planes(self, library: native.NativeLibrary) -> None:
        with pytest.raises(KernelError, match="sizes do not fit"):
            library.bit_planes(elements(5, dtype=torch.int64), 65)


class TestAes:
    @pytest.mark.parametrize(
        ("nbytes", "first"), [(0, 0), (1, 0), (15, 1), (16, 0), (257, 2**32 - 3), (100_003, 2**63)]
    )
    def test_equals_another_implementation(self, library: native.NativeLibrary, nbytes: int, first: int) -> None:
        if not library.has_aes:
            pytest.skip("this processor has no AES instructions")
        key = bytes(range(1, 17))
        stream = Cipher(algorithms.AES(key), modes.CTR(first.to_bytes(16, "big"))).encryptor().update(bytes(nbytes))
        guarded = torch.full((nbytes + 64,), 7, dtype=torch.uint8)
        library.aes128_ctr(key, first, guarded[:nbytes])
        assert bytes(guarded[:nbytes].tolist()) == stream
        assert bool((guarded[nbytes:] == 7).all())

    def test_block_numbers_do_not_wrap(self, library: native.NativeLibrary) -> None:
        if not library.has_aes:
            pytest.skip("this processor has no AES instructions")
        with pytest.raises(KernelError, match="too large"):
            library.aes128_ctr(bytes(16), 2**64 - 1, torch.empty(32, dtype=torch.uint8))

    @pytest.mark.parametrize(("key", "first"), [(bytes(15), 0), (bytes(32), 0), (bytes(16), -1), (bytes(16), 2**64)])
    def test_wrong_arguments(self, library: native.NativeLibrary, key: bytes, first: int) -> None:
        with pytest.raises(ValueError, match=r"16 bytes|block number"):
            library.aes128_ctr(key, first, torch.empty(16, dtype=torch.uint8))

    def test_only_contiguous_memory(self, library: native.NativeLibrary) -> None:
        with pytest.raises(ValueError, match="contiguous"):
            library.aes128_ctr(bytes(16), 0, torch.empty(32, dtype=torch.uint8)[::2])


class TestRefusals:
    def test_wrong_tensors(self, library: native.NativeLibrary) -> None:
        a = torch.ones(2, 2, dtype=torch.int64)
        for b in (a.int(), a.double(), a.to("meta")):
            with pytest.raises(ValueError, match="int32 or int64 CPU tensors"):
                library.matmul(a, b)
        with pytest.raises(ValueError, match="int32 or int64 CPU tensors"):
            library.matmul(a.double(), a.double())
        with pytest.raises(ValueError, match="out must be"):
            library.matmul(a, a, a.int())
        with pytest.raises(ValueError, match="shape"):
            library.matmul(a, a, torch.ones(4, dtype=torch.int64))
        with pytest.raises(ValueError, match="needs `out`"):
            library.matmul(a, a, accumulate=True)
        with pytest.raises(ValueError, match=r"\(2, 2\) and \(3, 2\)"):
            library.matmul(a, torch.ones(3, 2, dtype=torch.int64))
        with pytest.raises(ValueError, match="the plane"):
            library.unpack_bits(torch.zeros(2, dtype=torch.int64), 200, torch.int64)
        with pytest.raises(ValueError, match="int64 plane"):
            library.unpack_bits(torch.zeros(2, dtype=torch.int32), 100, torch.int64)
        with pytest.raises(ValueError, match="int32 or int64 CPU tensors"):
            library.bit_planes(torch.ones(2), 1)

    def test_tensors_of_another_convolution(self, library: native.NativeLibrary) -> None:
        shape = conv_shape((1, 1, 4, 4), (1, 1, 3, 3), (1, 1), (0, 0), (1, 1), 1)
        x, w = torch.ones(1, 1, 4, 4, dtype=torch.int64), torch.ones(1, 1, 3, 3, dtype=torch.int64)
        with pytest.raises(ValueError, match="x has shape"):
            library.conv2d(shape, x[..., :3], w)
        with pytest.raises(ValueError, match="dy has shape"):
            library.conv2d_input_grad(shape, x, w)

    @pytest.mark.parametrize(
        "change",
        [
            {"stride": (0, 1)},
            {"dilation": (1, -1)},
            {"padding": (-1, 0)},
            {"groups": 0},
            {"groups": 2},
            {"padding": (1 << 62, 0)},
            {"dilation": (1 << 62, 1)},
            {"padding": (1 << 39, 1 << 39)},
        ],
    )
    def test_the_library_checks_sizes_itself(self, library: native.NativeLibrary, change: dict[str, object]) -> None:
        shape = conv_shape((1, 1, 4, 4), (1, 1, 3, 3), (1, 1), (0, 0), (1, 1), 1)
        x, w = torch.ones(1, 1, 4, 4, dtype=torch.int64), torch.ones(1, 1, 3, 3, dtype=torch.int64)
        with pytest.raises(KernelError, match=r"sizes do not fit|too large"):
            library.conv2d(replace(shape, **change), x, w)  # type: ignore[arg-type]

    def test_no_threads(self, library: native.NativeLibrary) -> None:
        a = torch.ones(2, 2, dtype=torch.int64)
        with pytest.raises(KernelError, match="sizes do not fit"):
            library.matmul(a, a, threads=0)

    def test_unknown_instruction_set(self, library: native.NativeLibrary) -> None:
        with pytest.raises(KernelError, match="no instruction set 'sse9'"):
            library.set_isa("sse9")


class TestLoading:
    @staticmethod
    def status_with(mode: str) -> subprocess.CompletedProcess[str]:
        code = "from mpcpipe.ring import native; s = native.status(); print(s['isa'], s['reason'])"
        environment = {**os.environ, "MPCPIPE_KERNELS": mode}
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2]
        )

    @pytest.mark.parametrize(
        ("mode", "expected"), [("portable", "portable None"), ("off", "None switched off by MPCPIPE_KERNELS=off")]
    )
    def test_modes(self, mode: str, expected: str) -> None:
        assert self.status_with(mode).stdout.strip() == expected

    def test_unknown_mode(self) -> None:
        result = self.status_with("fast")
        assert result.returncode != 0
        assert "MPCPIPE_KERNELS is 'fast', but may only be portable, require or off" in result.stderr

    def test_status(self) -> None:
        status = native.status()
        assert status["isa"] in native.ISA_NAMES
        assert status["reason"] is None
        assert str(status["path"]).endswith(native.LIBRARY_NAME)

    def test_a_file_that_is_no_library(self, tmp_path: Path) -> None:
        path = tmp_path / native.LIBRARY_NAME
        path.write_bytes(b"not a library")
        with pytest.raises(KernelError, match="not a library that can be loaded"):
            native.NativeLibrary(path)

    def test_missing_library(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(loading, "_candidates", lambda: [tmp_path / native.LIBRARY_NAME])
        library, reason = loading._load("")
        assert library is None
        assert "was not built" in reason
        with pytest.raises(KernelError, match="MPCPIPE_KERNELS=require"):
            loading._load("require")
