"""The ring's operations are arithmetic modulo 2^32 and 2^64: against Python's integers, and by either back end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcpipe.ring import native, ops, reference

DTYPES = (torch.int32, torch.int64)


@pytest.fixture(params=["native", "reference"])
def back_end(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "reference":
        monkeypatch.setattr(native, "load", lambda: None)
    elif native.load() is None:
        pytest.skip("no native library")
    yield request.param


def elements(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    limits = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(limits.min, limits.max, shape, dtype=dtype, generator=generator)


def integers(x: torch.Tensor) -> np.ndarray:
    """As Python integers, which do not wrap."""
    return np.array(x.tolist(), dtype=object).reshape(tuple(x.shape))


def wrapped(x: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Python integers modulo the width of the dtype, as its signed elements."""
    bits = torch.iinfo(dtype).bits
    values = [(int(v) + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1)) for v in x.reshape(-1)]
    return torch.tensor(values, dtype=dtype).reshape(x.shape)


def convolution(
    x: np.ndarray,
    w: np.ndarray,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """By the definition: all (index of y, index of x, index of w) whose products are summed in y."""
    n, _, height, width = x.shape
    o, cg, kh, kw = w.shape
    oh = (height + 2 * padding[0] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    ow = (width + 2 * padding[1] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    terms = []
    for image, out, oy, ox, c, ky, kx in np.ndindex(n, o, oh, ow, cg, kh, kw):
        iy, ix = oy * stride[0] + ky * dilation[0] - padding[0], ox * stride[1] + kx * dilation[1] - padding[1]
        if 0 <= iy < height and 0 <= ix < width:
            channel = out // (o // groups) * cg + c
            terms.append(((image, out, oy, ox), (image, channel, iy, ix), (out, c, ky, kx)))
    return terms


class TestMatMul:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", [(1, 1, 1), (3, 4, 5), (13, 9, 17), (2, 3, 0), (0, 3, 2), (9, 9, 40)])
    def test_is_arithmetic_modulo(self, back_end: str, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
        m, n, k = shape
        a, b = elements(m, k, dtype=dtype), elements(k, n, dtype=dtype, seed=1)
        exact = integers(a).dot(integers(b)) if k else np.zeros((m, n), dtype=object)
        assert torch.equal(ops.matmul(a, b), wrapped(exact, dtype))

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_the_smallest_element_squared(self, back_end: str, dtype: torch.dtype) -> None:
        least = torch.full((12, 12), torch.iinfo(dtype).min, dtype=dtype)
        assert torch.equal(ops.matmul(least, least), torch.zeros_like(least))
        ones = torch.full((12, 12), -1, dtype=dtype)
        assert torch.equal(ops.matmul(ones, ones), torch.full_like(ones, 12))

    def test_out_and_accumulate(self, back_end: str) -> None:
        a, b = elements(4, 5, dtype=torch.int64), elements(5, 6, dtype=torch.int64, seed=1)
        out = torch.full((4, 6), 3)
        assert ops.matmul(a, b, out) is out
        assert torch.equal(out, a @ b)
        assert ops.matmul(a, b, out, accumulate=True) is out
        assert torch.equal(out, 2 * (a @ b))

    def test_wrong_shapes(self, back_end: str) -> None:
        a = torch.ones(2, 3, dtype=torch.int64)
        with pytest.raises(ValueError, match=r"\(m, k\) and \(k, n\), not \(2, 3\) and \(2, 3\)"):
            ops.matmul(a, a)
        with pytest.raises(ValueError, match="out has shape"):
            ops.matmul(a, a.T, torch.ones(3, 3, dtype=torch.int64))
        with pytest.raises(ValueError, match="one dtype"):
            ops.matmul(a, a.T.int())
        with pytest.raises(ValueError, match="int32 or int64"):
            ops.matmul(a.double(), a.T.double())
        with pytest.raises(ValueError, match="needs `out`"):
            ops.matmul(a, a.T, accumulate=True)


@settings(max_examples=60, deadline=None)
@given(
    m=st.sampled_from([0, 1, 3, 20]),
    n=st.sampled_from([0, 1, 5]),
    k=st.sampled_from([0, 1, 100, 2048, 2049, 5000]),
    batch=st.sampled_from([(), (2,), (2, 3)]),
    dtype=st.sampled_from(DTYPES),
    extreme=st.booleans(),
)
def test_products_by_digits_are_exact(
    m: int, n: int, k: int, batch: tuple[int, ...], dtype: torch.dtype, extreme: bool
) -> None:
    a, b = elements(*batch, m, k, dtype=dtype), elements(k, n, dtype=dtype, seed=1)
    if extreme:  # all digits as large as they get: the sums reach what a float64 can hold
        a, b = torch.full_like(a, torch.iinfo(dtype).min), torch.full_like(b, torch.iinfo(dtype).max)
    assert torch.equal(reference.matmul_by_digits(a, b), a @ b)


@pytest.mark.parametrize("value", [-(2**21), -(2**21) * (1 + 2**22), (2**21 - 1) * (1 + 2**22), 2**43, -(2**63) + 1])
def test_products_of_the_largest_digits_are_exact(value: int) -> None:
    """Digits are at most 2^21 in size: 2,048 products of such reach 2^53, and one more could be lost."""
    a = torch.full((2, 4096), value)
    assert torch.equal(reference.matmul_by_digits(a, a.T), torch.full((2, 2), 4096) * value * value)


CASES = [
    # x, w, stride, padding, dilation, groups
    ((2, 3, 5, 6), (4, 3, 3, 2), (1, 1), (0, 0), (1, 1), 1),
    ((1, 4, 5, 5), (6, 2, 3, 3), (2, 1), (1, 2), (1, 1), 2),
    ((2, 3, 6, 6), (3, 1, 3, 3), (1, 2), (1, 1), (1, 1), 3),
    ((1, 2, 7, 8), (3, 2, 2, 3), (1, 1), (2, 0), (3, 2), 1),
    ((2, 1, 4, 4), (2, 1, 1, 1), (3, 3), (2, 2), (1, 1), 1),
    ((1, 1, 1, 9), (1, 1, 1, 4), (1, 4), (0, 5), (1, 2), 1),
    ((0, 2, 4, 4), (3, 2, 3, 3), (1, 1), (1, 1), (1, 1), 1),
]


class TestConvolution:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("case", CASES)
    def test_is_the_definition_modulo(
        self, back_end: str, case: tuple[tuple[int, ...], ...], dtype: torch.dtype
    ) -> None:
        x_shape, w_shape, *rest = case
        x, w = elements(*x_shape, dtype=dtype), elements(*w_shape, dtype=dtype, seed=1)
        y = ops.conv2d(x, w, *rest)
        dy = elements(*y.shape, dtype=dtype, seed=2)
        shapes = {"y": tuple(y.shape), "x": x_shape, "w": w_shape}
        exact = {name: np.zeros(shape, dtype=object) for name, shape in shapes.items()}
        values_x, values_w, values_dy = integers(x), integers(w), integers(dy)
        for at_y, at_x, at_w in convolution(values_x, values_w, *rest):
            exact["y"][at_y] += values_x[at_x] * values_w[at_w]
            exact["x"][at_x] += values_dy[at_y] * values_w[at_w]
            exact["w"][at_w] += values_dy[at_y] * values_x[at_x]
        assert torch.equal(y, wrapped(exact["y"], dtype))
        assert torch.equal(ops.conv2d_input_grad(dy, w, x_shape, *rest), wrapped(exact["x"], dtype))
        assert torch.equal(ops.conv2d_weight_grad(x, dy, w_shape, *rest), wrapped(exact["w"], dtype))

    @pytest.mark.parametrize("case", CASES)
    def test_agrees_with_torch(self, back_end: str, case: tuple[tuple[int, ...], ...]) -> None:
        x_shape, w_shape, stride, padding, dilation, groups = case
        x = (elements(*x_shape, dtype=torch.int64) >> 45).double().requires_grad_()
        w = (elements(*w_shape, dtype=torch.int64, seed=1) >> 45).double().requires_grad_()
        y = torch.nn.functional.conv2d(x, w, None, stride, padding, dilation, groups)
        dy = (elements(*y.shape, dtype=torch.int64, seed=2) >> 45).double()
        dx, dw = torch.autograd.grad(y, (x, w), dy)
        rest = (stride, padding, dilation, groups)
        assert torch.equal(ops.conv2d(x.long(), w.long(), *rest), y.long())
        assert torch.equal(ops.conv2d_input_grad(dy.long(), w.long(), x_shape, *rest), dx.long())
        assert torch.equal(ops.conv2d_weight_grad(x.long(), dy.long(), w_shape, *rest), dw.long())

    def test_out_and_accumulate(self, back_end: str) -> None:
        x, w = elements(2, 3, 6, 6, dtype=torch.int32), elements(4, 3, 3, 3, dtype=torch.int32, seed=1)
        y = ops.conv2d(x, w)
        out = torch.zeros_like(y)
        assert ops.conv2d(x, w, out=out) is out
        assert ops.conv2d(x, w, out=out, accumulate=True) is out
        assert torch.equal(out, 2 * y)

    def test_reference_by_digits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What another device does: every product in float64 digits."""
        x, w = elements(2, 4, 7, 7, dtype=torch.int64), elements(6, 2, 3, 3, dtype=torch.int64, seed=1)
        rest = ((2, 1), (1, 1), (1, 2), 2)
        y = reference.conv2d(x, w, *rest)
        dy = elements(*y.shape, dtype=torch.int64, seed=2)
        dx = reference.conv2d_input_grad(dy, w, (2, 4, 7, 7), *rest)
        dw = reference.conv2d_weight_grad(x, dy, w.shape, *rest)
        monkeypatch.setattr(reference, "matmul", reference.matmul_by_digits)
        assert torch.equal(reference.conv2d(x, w, *rest), y)
        assert torch.equal(reference.conv2d_input_grad(dy, w, (2, 4, 7, 7), *rest), dx)
        assert torch.equal(reference.conv2d_weight_grad(x, dy, w.shape, *rest), dw)

    @pytest.mark.parametrize(
        ("x", "w", "stride", "padding", "dilation", "groups", "message"),
        [
            ((1, 3, 4), (2, 3, 3, 3), (1, 1), (0, 0), (1, 1), 1, "takes"),
            ((1, 3, 4, 4), (2, 2, 3, 3), (1, 1), (0, 0), (1, 1), 1, "groups"),
            ((1, 4, 4, 4), (3, 2, 3, 3), (1, 1), (0, 0), (1, 1), 2, "groups"),
            ((1, 3, 4, 4), (2, 3, 5, 5), (1, 1), (0, 0), (1, 1), 1, "larger than the input"),
            ((1, 3, 4, 4), (2, 3, 3, 3), (0, 1), (0, 0), (1, 1), 1, "stride"),
            ((1, 3, 4, 4), (2, 3, 3, 3), (1, 1), (-1, 0), (1, 1), 1, "padding"),
            ((1, 3, 4, 4), (2, 3, 0, 3), (1, 1), (0, 0), (1, 1), 1, "empty"),
        ],
    )
    def test_wrong_shapes(
        self,
        back_end: str,
        x: tuple[int, ...],
        w: tuple[int, ...],
        stride: tuple[int, int],
        padding: tuple[int, int],
        dilation: tuple[int, int],
        groups: int,
        message: str,
    ) -> None:
        with pytest.raises(ValueError, match=message):
            ops.conv2d(
                torch.ones(x, dtype=torch.int64), torch.ones(w, dtype=torch.int64), stride, padding, dilation, groups
            )

    def test_a_gradient_of_another_shape(self, back_end: str) -> None:
        ones = torch.ones(1, 1, 3, 3, dtype=torch.int64)
        with pytest.raises(ValueError, match="dy has shape"):
            ops.conv2d_input_grad(ones, ones, (1, 1, 4, 4))
        with pytest.raises(ValueError, match="dy has shape"):
            ops.conv2d_weight_grad(ones, ones, (1, 1, 3, 3))


class TestBits:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 1000])
    def test_planes_hold_the_bits_of_the_elements(self, back_end: str, n: int, dtype: torch.dtype) -> None:
        x = elements(n, dtype=dtype)
        count = torch.iinfo(dtype).bits
        planes = ops.bit_planes(x, count)
        assert planes.shape == (count, ops.words(n))
        for j in range(count):
            word_bits = "".join(f"{word % (1 << 64):064b}"[::-1] for word in planes[j].tolist())
            assert word_bits[:n] == "".join(str((v >> j) & 1) for v in x.tolist())
            assert "1" not in word_bits[n:]

    def test_more_planes_than_bits_extend_the_sign(self, back_end: str) -> None:
        x = torch.tensor([-1, 5, -7], dtype=torch.int32)
        assert ops.bit_planes(x, 40)[31:].tolist() == [[0b101]] * 9

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_unpack_is_the_inverse(self, back_end: str, dtype: torch.dtype) -> None:
        x = elements(777, dtype=torch.int64)
        bits = ops.unpack_bits(ops.bit_planes(x, 1)[0], 777, dtype)
        assert bits.dtype == dtype
        assert bits.tolist() == [v & 1 for v in x.tolist()]

    def test_wrong_arguments(self, back_end: str) -> None:
        x = torch.ones(4, dtype=torch.int64)
        with pytest.raises(ValueError, match="0 to 64"):
            ops.bit_planes(x, 65)
        with pytest.raises(ValueError, match="0 to 64"):
            ops.bit_planes(x.view(2, 2), 1)
        with pytest.raises(ValueError, match="the plane"):
            ops.unpack_bits(x, 4, torch.int64)
        with pytest.raises(ValueError, match="planes are int64"):
            ops.unpack_bits(x[:1].int(), 4, torch.int64)
