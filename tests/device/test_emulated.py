"""The device kernels, run by the CPU thread by thread, equal the reference bit for bit and refuse what cannot be."""

from __future__ import annotations

import ctypes
import mmap
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mpcpipe.device.build import sources
from mpcpipe.device.chooser import InTurn
from mpcpipe.device.compare import compare, elements, expected
from mpcpipe.device.library import DepthwiseCall
from mpcpipe.device.loading import emulated
from mpcpipe.device.operators import ELEMENTS, DeviceOperators, refuses
from mpcpipe.device.toolchain import find
from mpcpipe.errors import KernelError
from mpcpipe.ring import reference
from mpcpipe.ring.shapes import ConvShape, conv_shape

DTYPES = tuple(ELEMENTS)
CPU = torch.device("cpu")


def drawn(shape: ConvShape, dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, w, dy = (elements(each, dtype, generator) for each in (shape.x, shape.w, shape.y))
    return x, w, dy


def depthwise(x: tuple[int, ...], filters: int, kernel: int, stride: int, padding: tuple[int, int]) -> ConvShape:
    return conv_shape(x, (filters, 1, kernel, kernel), (stride, stride), padding, (1, 1), x[1])


def pointwise(batch: int, channels: int, height: int, width: int, filters: int) -> ConvShape:
    return conv_shape((batch, channels, height, width), (filters, channels, 1, 1), (1, 1), (0, 0), (1, 1), 1)


def all_directions(
    operators: DeviceOperators, shape: ConvShape, x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    return (
        operators.conv2d(shape, x, w),
        operators.conv2d_input_grad(shape, dy, w),
        operators.conv2d_weight_grad(shape, x, dy),
    )


def test_every_kernel_with_many_tiles(operators: DeviceOperators) -> None:
    found = compare(operators, CPU)
    names = {
        f"{kind}{direction}_{element}"
        for kind in ("depthwise", "pointwise")
        for direction in ("", "_input_grad", "_weight_grad")
        for element in ELEMENTS.values()
    }
    assert {each.kernel for each in found} == names
    assert [(each.kernel, each.different) for each in found if each.different] == []


class TestFuzzed:
    @settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_depthwise(self, operators: DeviceOperators, data: st.DataObject) -> None:
        draw = data.draw
        kernel, stride = draw(st.sampled_from([3, 5, 7])), draw(st.sampled_from([1, 2]))
        sizes = st.integers(1, 19)
        x = (draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(sizes), draw(sizes))
        padding = (draw(st.integers(0, kernel)), draw(st.integers(0, kernel)))
        assume(x[2] + 2 * padding[0] >= kernel and x[3] + 2 * padding[1] >= kernel)
        shape = depthwise(x, x[1] * draw(st.integers(1, 3)), kernel, stride, padding)
        self.equal(operators, shape, draw(st.sampled_from(DTYPES)), draw(st.integers(0, 5)))

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_pointwise(self, operators: DeviceOperators, data: st.DataObject) -> None:
        draw = data.draw
        channels = st.sampled_from([1, 2, 7, 16, 31, 65, 130])
        side = st.integers(1, 9)
        shape = pointwise(draw(st.integers(1, 3)), draw(channels), draw(side), draw(side), draw(channels))
        self.equal(operators, shape, draw(st.sampled_from(DTYPES)), draw(st.integers(0, 5)))

    def equal(self, operators: DeviceOperators, shape: ConvShape, dtype: torch.dtype, order: int) -> None:
        operators.library.set_order(order)
        x, w, dy = drawn(shape, dtype, order)
        for found, right in zip(all_directions(operators, shape, x, w, dy), expected(shape, x, w, dy), strict=True):
            assert torch.equal(found, right)


class TestMatMul:
    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
    @pytest.mark.parametrize("sizes", [(1, 1, 1), (33, 70, 20), (5, 300, 3), (70, 0, 4)])
    def test_any_strides(self, operators: DeviceOperators, sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
        m, k, n = sizes
        generator = torch.Generator().manual_seed(3)
        a, b = elements((m, k), dtype, generator), elements((n, k), dtype, generator)
        spread = b.new_zeros((n, 2 * k))
        spread[:, ::2] = b
        assert torch.equal(operators.matmul(a, b.T), a @ b.T)
        assert torch.equal(operators.matmul(a.T.contiguous().T, spread[:, ::2].T), a @ b.T)
        assert torch.equal(operators.matmul(a[:1].expand(m, k), b.T), a[:1].expand(m, k) @ b.T)


class TestOut:
    shape = depthwise((2, 3, 6, 5), 3, 3, 1, (1, 1))

    def test_added_to(self, operators: DeviceOperators) -> None:
        x, w, dy = drawn(self.shape, torch.int64)
        out = torch.ones(self.shape.w, dtype=torch.int64)
        assert operators.conv2d_weight_grad(self.shape, x, dy, out, accumulate=True) is out
        assert torch.equal(out, 1 + expected(self.shape, x, w, dy)[2])

    @pytest.mark.parametrize("accumulate", [False, True])
    def test_may_be_an_input(self, operators: DeviceOperators, accumulate: bool) -> None:
        x, w, dy = drawn(self.shape, torch.int64)
        right = expected(self.shape, x, w, dy)[0] + (x if accumulate else 0)
        assert operators.conv2d(self.shape, x, w, x, accumulate) is x
        assert torch.equal(x, right)

    def test_need_not_be_contiguous_nor_the_inputs(self, operators: DeviceOperators) -> None:
        x, w, dy = drawn(self.shape, torch.int32)
        out = torch.zeros((*self.shape.y[:2], 5, 6), dtype=torch.int32).transpose(2, 3)
        strided = torch.stack([x, x], dim=-1)[..., 0]
        assert operators.conv2d(self.shape, strided, w, out) is out
        assert torch.equal(out, expected(self.shape, x, w, dy)[0])

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_no_elements_no_sum(self, operators: DeviceOperators, dtype: torch.dtype) -> None:
        for shape in (depthwise((0, 3, 6, 5), 3, 3, 1, (1, 1)), pointwise(0, 4, 3, 3, 2), pointwise(2, 0, 3, 3, 2)):
            x, w, dy = drawn(shape, dtype)
            y, dx, dw = all_directions(operators, shape, x, w, dy)
            assert (tuple(y.shape), tuple(dx.shape), tuple(dw.shape)) == (shape.y, shape.x, shape.w)
            assert not (y.any() or dx.any() or dw.any())


def test_reads_and_writes_nothing_outside(operators: DeviceOperators) -> None:
    """Tensors that end where a page ends that nobody may touch."""
    libc = ctypes.CDLL(None, use_errno=True)
    kept = []

    def guarded(x: torch.Tensor) -> torch.Tensor:
        pages = -(-x.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert libc.mprotect(ctypes.c_void_p(start + pages), mmap.PAGESIZE, 0) == 0
        kept.append(memory)
        copy = torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=pages - x.nbytes).view(x.shape)
        return copy.copy_(x)

    for shape in (depthwise((2, 3, 9, 7), 6, 5, 2, (2, 1)), pointwise(2, 19, 3, 5, 37)):
        x, w, dy = drawn(shape, torch.int64)
        right = expected(shape, x, w, dy)
        outs = [guarded(torch.zeros_like(each)) for each in right]
        gx, gw, gdy = guarded(x), guarded(w), guarded(dy)
        operators.conv2d(shape, gx, gw, outs[0])
        operators.conv2d_input_grad(shape, gdy, gw, outs[1])
        operators.conv2d_weight_grad(shape, gx, gdy, outs[2])
        assert all(torch.equal(out, each) for out, each in zip(outs, right, strict=True))


class TestRefuses:
    def test_says_why_not(self) -> None:
        w = (4, 1, 3, 3)
        assert refuses(conv_shape((1, 4, 9, 9), w, (1, 1), (1, 1), (1, 1), 4), torch.int64) is None
        for shape, reason in (
            (conv_shape((1, 4, 9, 9), w, (3, 3), (1, 1), (1, 1), 4), "stride"),
            (conv_shape((1, 4, 9, 9), w, (1, 2), (1, 1), (1, 1), 4), "stride"),
            (conv_shape((1, 4, 9, 9), w, (1, 1), (1, 1), (2, 2), 4), "dilation"),
            (conv_shape((1, 4, 9, 9), (4, 1, 3, 5), (1, 1), (1, 1), (1, 1), 4), "filter"),
            (conv_shape((1, 4, 9, 9), (4, 2, 3, 3), (1, 1), (1, 1), (1, 1), 2), "neither"),
            (conv_shape((1, 4, 9, 9), (4, 4, 1, 1), (2, 2), (0, 0), (1, 1), 1), "pointwise"),
            (conv_shape((70000, 70000, 1, 1), (2, 70000, 1, 1), (1, 1), (0, 0), (1, 1), 1), "2\\^31"),
        ):
            assert (found := refuses(shape, torch.int64)) is not None and reason.replace("\\", "") in found
        assert "float64" in str(refuses(pointwise(1, 1, 1, 1, 1), torch.float64))

    def test_what_does_not_fit(self, operators: DeviceOperators) -> None:
        shape = pointwise(1, 4, 3, 3, 2)
        x, w, _ = drawn(shape, torch.int64)
        with pytest.raises(ValueError, match="first tensor has shape"):
            operators.conv2d(shape, x[:, :3], w)
        with pytest.raises(ValueError, match="of one kind"):
            operators.conv2d(shape, x, w.int())
        with pytest.raises(ValueError, match="of one kind"):
            operators.conv2d(shape, x.double(), w.double())
        with pytest.raises(ValueError, match="out has shape"):
            operators.conv2d(shape, x, w, torch.zeros(1))
        with pytest.raises(ValueError, match="accumulate needs"):
            operators.conv2d(shape, x, w, accumulate=True)
        with pytest.raises(ValueError, match="no use for meta"):
            operators.conv2d(shape, x.to("meta"), w.to("meta"))

    @pytest.mark.parametrize(
        "wrong", [{"kernel": 4}, {"stride": 3}, {"tile_rows": 0}, {"group": 257}, {"tile_rows": 4000}, {"out_width": 6}]
    )
    def test_calls_that_cannot_be(self, operators: DeviceOperators, wrong: dict[str, int]) -> None:
        sizes = (1, 1, 1, 4000, 5, 4000, 5, 3, 1, 1, 1, 1, 5, 1, 1, 0, 0)
        right = dict(zip((name for name, _ in DepthwiseCall._fields_), sizes, strict=True))
        with pytest.raises(KernelError, match=r"not started: sizes or a tile that cannot be .*'height': 4000"):
            operators.library.depthwise("forward", "u64", DepthwiseCall(**(right | wrong)), 8, 8, 8, None, None)


class TestOfTheTests:
    """Would a mistake be seen?"""

    def test_without_its_barrier_a_kernel_is_wrong(self, waves: object, tmp_path: Path) -> None:
        folder = tmp_path / "gpu"
        shutil.copytree(sources() / "gpu", folder)
        text = (folder / "depthwise.h").read_text()
        assert text.count("  sync();\n") == 1
        (folder / "depthwise.h").write_text(text.replace("  sync();\n", ""))
        toolchain = find("emulated")
        command = toolchain.compile(folder / "depthwise.cpp", tmp_path / "a.o", "wave64", ("MPG_U32",))
        subprocess.run(command, check=True, timeout=100)
        subprocess.run(toolchain.link([tmp_path / "a.o"], tmp_path / "a.so", "wave64"), check=True, timeout=100)
        library = ctypes.CDLL(str(tmp_path / "a.so"))
        shape = depthwise((1, 2, 9, 9), 2, 3, 1, (1, 1))
        x, w, dy = drawn(shape, torch.int32)
        y = torch.zeros(shape.y, dtype=torch.int32)
        call = DepthwiseCall(1, 2, 1, 9, 9, 9, 9, 3, 1, 1, 1, 9, 9, 2, 1, 0, 0)
        pointers = (ctypes.c_void_p(each.data_ptr()) for each in (x, w, y))
        assert library.mpg_depthwise_forward_u32(ctypes.byref(call), *pointers, None, None) == 0
        assert not torch.equal(y, expected(shape, x, w, dy)[0])

    def test_the_emulation_notices(self, tmp_path: Path) -> None:
        program = tmp_path / "emulation"
        source = Path(__file__).with_name("emulation.cpp")
        for wave in (64, 32):
            options = ["-std=c++17", "-O1", f"-DMPG_WAVE={wave}", f"-I{sources() / 'gpu'}"]
            subprocess.run([find("emulated").compiler, *options, source, "-o", program], check=True, timeout=100)
            for what, said in (
                ("right", ""),
                ("poison", ""),
                ("past", "LDS was written past its end"),
                ("left", "some threads wait at a barrier"),
                ("two", "threads of a block wait at two barriers"),
                ("lane", "some threads wait at a barrier or in a shuffle"),
            ):
                done = subprocess.run([program, what], capture_output=True, text=True, timeout=60, check=False)
                assert (done.returncode == 0) == (said == ""), (what, done)
                assert said in done.stderr

    def test_only_emulated_kernels_take_tensors_of_the_cpu(self, operators: DeviceOperators) -> None:
        assert operators.library.kind == "emulated"
        assert operators.library.wave in (32, 64)


def test_emulated_for_short(waves: object) -> None:
    """`emulated` finds what is built."""
    shape = pointwise(1, 5, 2, 2, 3)
    x, w, _ = drawn(shape, torch.int64)
    assert torch.equal(
        emulated("wave32", InTurn()).conv2d(shape, x, w), reference.conv2d(x, w, (1, 1), (0, 0), (1, 1), 1)
    )
