"""torch.ops.mpcpipe: what they compute, what torch demands of an operator, derivatives, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from mpcpipe.ops import OPERATORS, depthwise_conv2d, pointwise_conv2d
from mpcpipe.ops.compute import Fastest
from mpcpipe.ring import reference

Shape = tuple[int, ...]
INTEGERS = (torch.int64, torch.int32)
DTYPES = (*INTEGERS, torch.float32)
WITHOUT_GRADIENTS = ("test_schema", "test_faketensor")


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=dtype)
    return torch.empty(shape, dtype=torch.int64).random_(-(1 << 63), None, generator=generator).to(dtype)


def arguments(name: str, dtype: torch.dtype) -> tuple[object, ...]:
    """Inputs of every operator, of one small case each."""
    kind, _, direction = name.partition("_")
    x, w, y = {
        "matmul": ((3, 5), (5, 4), (3, 4)),
        "conv2d": ((2, 4, 6, 5), (6, 2, 3, 2), (2, 6, 3, 6)),
        "depthwise": ((2, 3, 7, 6), (6, 1, 3, 3), (2, 6, 4, 3)),
        "pointwise": ((2, 3, 4, 5), (6, 3, 1, 1), (2, 6, 4, 5)),
    }[kind]
    rest: tuple[object, ...] = {
        "matmul": (),
        "conv2d": ([2, 1], [1, 1], [1, 1], 2),
        "depthwise": ([2, 2], [1, 1]),
        "pointwise": (),
    }[kind]
    sized = kind in ("conv2d", "depthwise")
    first, second = {"": (x, w), "input_grad": (y, w), "weight_grad": (x, y)}[direction]
    size: tuple[object, ...] = ()
    if sized and direction:
        size = (list(x if direction == "input_grad" else w),)
    return (values(*first, dtype=dtype), values(*second, dtype=dtype, seed=1), *size, *rest)


@pytest.mark.parametrize("name", OPERATORS)
def test_torch_accepts_them(name: str) -> None:
    operator = getattr(torch.ops.mpcpipe, name).default
    first, second, *rest = arguments(name, torch.float32)
    assert isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)
    torch.library.opcheck(operator, (first.requires_grad_(), second.requires_grad_(), *rest))  # type: ignore[no-untyped-call]
    integers = arguments(name, torch.int64)
    torch.library.opcheck(operator, integers, test_utils=WITHOUT_GRADIENTS)  # type: ignore[no-untyped-call]
    adding = getattr(torch.ops.mpcpipe, f"{name}_add_").default
    out = torch.zeros_like(operator(*integers))
    torch.library.opcheck(adding, (out, *integers), test_utils=WITHOUT_GRADIENTS)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", OPERATORS)
def test_integers_wrap_exactly(name: str, dtype: torch.dtype) -> None:
    first, second, *rest = arguments(name, dtype)
    assert isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)
    kind, _, direction = name.partition("_")
    if kind == "matmul":
        turned = (first.T if direction == "weight_grad" else first, second.T if direction == "input_grad" else second)
        expected = turned[0] @ turned[1]
    else:
        sizes, how = (rest[0], rest[1:]) if kind != "pointwise" and direction else (None, rest)
        stride, padding, dilation, groups = {
            "conv2d": how,
            "depthwise": [*how, [1, 1], 3],
            "pointwise": [[1, 1], [0, 0], [1, 1], 1],
        }[kind]
        sizes = sizes or ((2, 3, 4, 5) if direction == "input_grad" else (6, 3, 1, 1))
        between = (tuple(stride), tuple(padding), tuple(dilation), groups)  # type: ignore[arg-type]
        if not direction:
            expected = reference.conv2d(first, second, *between)  # type: ignore[arg-type]
        else:
            backward = getattr(reference, f"conv2d_{direction}")
            expected = backward(first, second, tuple(sizes), *between)  # type: ignore[arg-type]
    found = getattr(torch.ops.mpcpipe, name)(first, second, *rest)
    assert torch.equal(found, expected)
    out = values(*expected.shape, dtype=dtype, seed=9)
    before = out.clone()
    getattr(torch.ops.mpcpipe, f"{name}_add_")(out, first, second, *rest)
    assert torch.equal(out, before + expected)


@pytest.mark.parametrize(("kernel", "stride", "padding", "multiplier"), [(3, 1, 1, 1), (3, 2, 1, 1), (5, 2, 2, 2)])
def test_depthwise_is_grouped_conv2d(kernel: int, stride: int, padding: int, multiplier: int) -> None:
    x = values(2, 6, 15, 13).requires_grad_()
    w = values(6 * multiplier, 1, kernel, kernel, seed=1).requires_grad_()
    same_gradients(
        lambda: depthwise_conv2d(x, w, stride, padding), lambda: F.conv2d(x, w, None, stride, padding, 1, 6), x, w
    )


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (2, 0), (1, 1), ((2, 1), (0, 1))])
def test_pointwise_is_conv2d(stride: int, padding: int) -> None:
    x, w = values(3, 5, 8, 7).requires_grad_(), values(9, 5, 1, 1, seed=1).requires_grad_()
    same_gradients(lambda: pointwise_conv2d(x, w, stride, padding), lambda: F.conv2d(x, w, None, stride, padding), x, w)


def same_gradients(
    ours: Callable[[], torch.Tensor], theirs: Callable[[], torch.Tensor], x: torch.Tensor, w: torch.Tensor
) -> None:
    found, expected = ours(), theirs()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    g = values(*expected.shape, seed=5)
    for one, other in zip(torch.autograd.grad(found, (x, w), g), torch.autograd.grad(expected, (x, w), g), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["matmul", "conv2d", "depthwise", "pointwise"])
def test_first_and_second_derivatives(name: str) -> None:
    first, second, *rest = arguments(name, torch.float64)
    assert isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)
    inputs = (first.requires_grad_(), second.requires_grad_())

    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = getattr(torch.ops.mpcpipe, name)(a, b, *rest)
        return result

    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


def test_a_compiled_model_takes_them() -> None:
    x, w = values(2, 4, 8, 8), values(4, 1, 3, 3, seed=1).requires_grad_()

    def model(x: torch.Tensor) -> torch.Tensor:
        return depthwise_conv2d(x, w, 1, 1).relu().sum()

    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    expected = torch.autograd.grad(model(x), w)[0]
    assert torch.allclose(torch.autograd.grad(compiled(x), w)[0], expected, atol=1e-4)


class TestOddTensors:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_views(self, dtype: torch.dtype) -> None:
        """Turned, with steps, overlapping itself, repeated by a stride of 0."""
        x = values(2, 9, 4, 8, dtype=dtype).permute(0, 2, 1, 3)[..., ::2]
        w = values(4, 1, 1, 1, seed=1, dtype=dtype).expand(4, 1, 3, 3)
        dense = depthwise_conv2d(x.contiguous(), w.contiguous(), 1, 1)
        torch.testing.assert_close(depthwise_conv2d(x, w, 1, 1), dense, rtol=1e-5, atol=1e-5)
        a = values(40, dtype=dtype).as_strided((6, 7), (3, 1))
        expected = a.contiguous() @ a.T.contiguous()
        torch.testing.assert_close(torch.ops.mpcpipe.matmul(a, a.T), expected, rtol=1e-5, atol=1e-5)
        flipped = values(5, 6, dtype=dtype).flip(0)
        torch.testing.assert_close(torch.ops.mpcpipe.matmul(flipped, flipped.T), flipped @ flipped.T)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_nothing_in_nothing_out(self, dtype: torch.dtype) -> None:
        empty, w = values(0, 3, 5, 5, dtype=dtype), values(3, 1, 3, 3, dtype=dtype)
        assert depthwise_conv2d(empty, w, 1, 1).shape == (0, 3, 5, 5)
        dw = torch.ops.mpcpipe.depthwise_weight_grad(empty, empty, [3, 1, 3, 3], [1, 1], [1, 1])
        assert torch.equal(dw, torch.zeros_like(w))
        product = torch.ops.mpcpipe.matmul(values(3, 0, dtype=dtype), values(0, 2, dtype=dtype))
        assert torch.equal(product, torch.zeros(3, 2, dtype=dtype))
        assert pointwise_conv2d(empty, values(4, 3, 1, 1, dtype=dtype)).shape == (0, 4, 5, 5)

    def test_an_infinity_stays_where_it_is(self) -> None:
        """Vectors reach past the end of a row; nothing of what lies there may come into a sum."""
        x, dy = values(1, 1, 4, 9), values(1, 1, 4, 5)
        x[0, 0, 2, 0] = float("inf")
        dw = torch.ops.mpcpipe.depthwise_weight_grad(x, dy, [1, 1, 1, 1], [1, 2], [0, 0])
        assert torch.isinf(dw).all()
        x[0, 0, 2, 0], x[0, 0, 2, 1] = 0.0, float("inf")  # a column that no output reads
        dw = torch.ops.mpcpipe.depthwise_weight_grad(x, dy, [1, 1, 1, 1], [1, 2], [0, 0])
        assert torch.isfinite(dw).all()


class TestRefusals:
    def test_shapes(self) -> None:
        x = values(1, 3, 5, 5)
        with pytest.raises(ValueError, match="groups do not fit 3 channels"):
            depthwise_conv2d(x, values(4, 1, 3, 3))
        with pytest.raises(ValueError, match="larger than the input"):
            depthwise_conv2d(x, values(3, 1, 7, 7))
        with pytest.raises(ValueError, match=r"pointwise filter is \(o, c, 1, 1\)"):
            pointwise_conv2d(x, values(3, 3, 3, 3))
        with pytest.raises(ValueError, match="four sizes"):
            depthwise_conv2d(x[0], values(3, 1, 3, 3))
        with pytest.raises(ValueError, match=r"\(2, 3\) and \(2, 3\)"):
            torch.ops.mpcpipe.matmul(values(2, 3), values(2, 3))
        with pytest.raises(ValueError, match="the first tensor has shape"):
            torch.ops.mpcpipe.depthwise_input_grad(x, values(3, 1, 3, 3), [1, 3, 9, 9], [1, 1], [0, 0])
        with pytest.raises(ValueError, match="stride"):
            depthwise_conv2d(x, values(3, 1, 3, 3), 0)
        with pytest.raises(ValueError, match="stride"):
            pointwise_conv2d(x, values(3, 3, 1, 1), 0)
        with pytest.raises(ValueError, match="does not fit"):
            torch.ops.mpcpipe.matmul_add_(values(2, 2), values(2, 3), values(3, 3))

    def test_dtypes(self) -> None:
        for dtype in (torch.uint8, torch.int16, torch.bool, torch.complex64):
            x = torch.ones(2, 2, dtype=dtype)
            with pytest.raises(ValueError, match="int32, int64 or floating"):
                torch.ops.mpcpipe.matmul(x, x)
        with pytest.raises(ValueError, match="of one kind"):
            torch.ops.mpcpipe.matmul(torch.ones(2, 2), torch.ones(2, 2, dtype=torch.float64))

    def test_tensors_without_values(self) -> None:
        huge = torch.empty((1 << 20, 1 << 13), device="meta", dtype=torch.int64)  # 2^33 elements
        assert torch.ops.mpcpipe.matmul(huge, huge.T).shape == (1 << 20, 1 << 20)
        with pytest.raises(RuntimeError, match="do not fit"):
            torch.ops.mpcpipe.matmul(huge, huge)


def test_elements_more_than_2_31_apart() -> None:
    """Of memory that is asked for, and but for a few pages never used."""
    apart = (1 << 31) + 7
    try:
        memory = torch.empty(2 * apart + 8, dtype=torch.int32)
    except RuntimeError:
        pytest.skip("there are no 16 GiB of addresses to be had")
    a = memory.as_strided((3, 4), (apart, 1)).copy_(values(3, 4, dtype=torch.int32))
    assert torch.equal(torch.ops.mpcpipe.matmul(a, a.T), a.contiguous() @ a.T.contiguous())
    images = memory.as_strided((2, 2, 2, 1), (apart, 2, 1, 1))
    w = values(2, 1, 1, 1, dtype=torch.int32, seed=1)
    assert torch.equal(depthwise_conv2d(images, w), images.contiguous() * w.view(1, 2, 1, 1))


def test_the_fastest_way_is_taken_from_then_on() -> None:
    calls: list[str] = []

    def way(name: str, loops: int) -> Callable[[], torch.Tensor]:
        def run() -> torch.Tensor:
            calls.append(name)
            return torch.ones(1).expand(loops).sum()

        return run

    fastest = Fastest()
    ways = {"slow": way("slow", 1 << 22), "quick": way("quick", 1)}
    fastest.run("shape", ways)
    del calls[:]
    fastest.run("shape", ways)
    assert calls in (["quick"], ["slow"])  # whichever it was: once, without timing
    assert list(fastest.chosen.values()) == calls
