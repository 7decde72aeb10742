"""Whichever back end computes a product: the same bits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from mpcpipe.ring import ops, reference
from mpcpipe.ring.choice import BACKENDS, Call, candidates, choice, noted
from mpcpipe.ring.shapes import conv_shape

DTYPES = (torch.int64, torch.int32)


@pytest.fixture(autouse=True)
def rule_again() -> Iterator[None]:
    yield
    choice().use({})


def elements(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(shape, dtype=torch.int64).random_(-(1 << 63), None, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_results_do_not_depend_on_it(backend: str, dtype: torch.dtype) -> None:
    choice().use({}, backend)
    a, b = elements(9, 13, dtype=dtype), elements(13, 10, dtype=dtype, seed=1)
    out = elements(9, 10, dtype=dtype, seed=2)
    expected = out + a @ b
    assert ops.matmul(a, b, out, accumulate=True) is out
    assert torch.equal(out, expected)
    for groups, stride in ((1, 1), (6, 2), (3, 1)):
        s = conv_shape((2, 6, 9, 8), (6, 6 // groups, 3, 3), (stride, stride), (1, 1), (1, 1), groups)
        x, w, dy = (elements(*shape, dtype=dtype, seed=i) for i, shape in enumerate((s.x, s.w, s.y)))
        how = (s.stride, s.padding, s.dilation, s.groups)
        assert torch.equal(ops.conv2d(x, w, *how), reference.conv2d(x, w, *how))
        dx = ops.conv2d_input_grad(dy, w, s.x, *how)
        assert torch.equal(dx, reference.conv2d_input_grad(dy, w, s.x, *how))
        dw = ops.conv2d_weight_grad(x, dy, s.w, *how)
        assert torch.equal(dw, reference.conv2d_weight_grad(x, dy, s.w, *how))


def test_a_choice_is_for_one_shape() -> None:
    call = Call("matmul", torch.int64, ((2, 3), (3, 4)))
    choice().use({call: "torch"})
    assert choice().made
    assert choice().of("matmul", torch.int64, (torch.Size((2, 3)), torch.Size((3, 4)))) == "torch"
    assert choice().of("matmul", torch.int32, ((2, 3), (3, 4))) == "native"
    assert choice().of("matmul", torch.int64, ((2, 3), (3, 5))) == "native"
    with pytest.raises(ValueError, match="no back end 'fast'; there are native, products, torch, reference"):
        choice().use({call: "fast"})


def test_candidates() -> None:
    depthwise = conv_shape((1, 4, 5, 5), (4, 1, 3, 3), (1, 1), (0, 0), (1, 1), 4)
    dense = conv_shape((1, 4, 5, 5), (4, 4, 3, 3), (1, 1), (0, 0), (1, 1), 1)
    assert "products" not in candidates(Call("conv2d", torch.int64, dense))
    assert candidates(Call("conv2d", torch.int64, dense))[-2:] == ("torch", "reference")
    assert "torch" not in candidates(Call("conv2d_input_grad", torch.int64, depthwise))  # torch has none for integers


def test_a_dry_run_says_what_it_would_compute() -> None:
    with noted() as calls:
        x = torch.empty((2, 4, 5, 5), dtype=torch.int32, device="meta")
        ops.conv2d(x, torch.empty((4, 1, 3, 3), dtype=torch.int32, device="meta"), groups=4)
        ops.matmul(x.view(2, 100), x.view(100, 2))
    shape = conv_shape((2, 4, 5, 5), (4, 1, 3, 3), (1, 1), (0, 0), (1, 1), 4)
    assert calls == {Call("conv2d", torch.int32, shape), Call("matmul", torch.int32, ((2, 100), (100, 2)))}
