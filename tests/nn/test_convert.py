"""convert: names, shapes, weights and order of the secure layers, and a sentence for whatever has none."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mpcpipe.errors import ModelError
from mpcpipe.nn import zoo
from mpcpipe.nn.convert import Chain, convert, state_dict
from mpcpipe.nn.layers import Layer, Residual, walk

IMAGE = (3, 8, 8)


def kinds(layers: Any) -> list[Any]:
    """Type names; a residual block as a tuple of its two branches."""
    return [
        (kinds(layer.body), kinds(layer.shortcut)) if isinstance(layer, Residual) else type(layer).__name__
        for layer in layers
    ]


def names(chain: Chain) -> list[str]:
    return [layer.name for layer in walk(chain.layers)]


class Written(nn.Module):
    """A module whose forward is `f(self, x)`, with some layers to use."""

    def __init__(self, f: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.f = f
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.other = nn.Conv2d(3, 3, 3, padding=1)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(3 * 64, 5)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.f(self, x)
        return self.fc(torch.flatten(x, 1)) if not isinstance(x, tuple) else x


def refused(module: nn.Module, shape: tuple[int, ...] = IMAGE) -> str:
    with pytest.raises(ModelError) as error:
        convert(module, shape)
    return str(error.value)


# what is taken


def test_a_sequential_keeps_names_order_and_weights() -> None:
    model = zoo.lenet("avg")
    chain = convert(model, (1, 28, 28))
    assert kinds(chain.layers) == [
        *("Conv2d", "ReLU", "AvgPool2d", "Conv2d", "ReLU", "AvgPool2d"),
        *("Flatten", "Linear", "ReLU", "Linear"),
    ]
    assert names(chain) == [str(i) for i in range(10)]
    assert chain.output_shapes == (
        *((20, 24, 24), (20, 24, 24), (20, 12, 12), (50, 8, 8), (50, 8, 8), (50, 4, 4)),
        *((800,), (500,), (500,), (10,)),
    )
    assert chain.output_shape == (10,)
    initial = chain.initial()
    assert {f"{a}.{b}" for a, b in initial} == set(model.state_dict())
    for (layer, key), value in initial.items():
        assert torch.equal(value, model.state_dict()[f"{layer}.{key}"])


def test_initial_weights_are_copies() -> None:
    model = zoo.digits_mlp()
    chain = convert(model, (64,))
    before = chain.initial()["1", "weight"].clone()
    with torch.no_grad():
        model[1].weight.zero_()
    assert torch.equal(chain.initial()["1", "weight"], before)


def test_the_module_stays_as_it_is() -> None:
    model = zoo.resnet18().eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    convert(model, (3, 32, 32))
    assert not model.training and all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_max_pooling_goes_before_the_relu_and_names_stay() -> None:
    chain = convert(zoo.lenet("max"), (1, 28, 28))
    assert kinds(chain.layers)[:6] == ["Conv2d", "MaxPool2d", "ReLU", "Conv2d", "MaxPool2d", "ReLU"]
    assert names(chain)[:6] == ["0", "2", "1", "3", "5", "4"]
    assert chain.output_shapes[:3] == ((20, 24, 24), (20, 12, 12), (20, 12, 12))


@pytest.mark.parametrize("name", zoo.MODELS)
def test_the_zoo_converts(name: str) -> None:
    entry = zoo.MODELS[name]
    chain = convert(zoo.build(name), entry.input_shape)
    assert chain.output_shape == (entry.classes,)
    assert len(set(names(chain))) == len(names(chain))


def test_resnet_blocks() -> None:
    chain = convert(zoo.resnet18(), (3, 32, 32))
    body = ["Conv2d", "BatchNorm", "ReLU", "Conv2d", "BatchNorm"]
    plain, wider = (body, []), (body, ["Conv2d", "BatchNorm"])
    blocks = [plain, "ReLU", plain, "ReLU"] + [wider, "ReLU", plain, "ReLU"] * 3
    assert kinds(chain.layers) == ["Conv2d", "BatchNorm", "ReLU", *blocks, "AdaptiveAvgPool2d", "Flatten", "Linear"]
    assert chain.layers[3].name == "3.add"
    assert [layer.name for layer in chain.layers[3].children()] == ["3.conv1", "3.bn1", "3.relu1", "3.conv2", "3.bn2"]


FORMS: dict[str, tuple[Callable[[Any, torch.Tensor], torch.Tensor], list[Any]]] = {
    "F.relu": (lambda m, x: F.relu(m.other(m.conv(x))), ["ReLU"]),
    "torch.relu": (lambda m, x: torch.relu(m.other(m.conv(x))), ["ReLU"]),
    "x.relu()": (lambda m, x: m.other(m.conv(x)).relu(), ["ReLU"]),
    "in place": (lambda m, x: F.relu(m.other(m.conv(x)), inplace=True), ["ReLU"]),
    "F.dropout": (lambda m, x: F.dropout(m.other(m.conv(x)), 0.25, m.training), ["Dropout"]),
    "F.dropout, off": (lambda m, x: F.dropout(m.other(m.conv(x)), 0.25, training=False), []),
    "contiguous": (lambda m, x: m.other(m.conv(x)).contiguous(), []),
    "view to itself": (lambda m, x: m.other(m.conv(x)).view(x.size(0), 3, 8, 8), []),
    "F.avg_pool2d": (lambda m, x: F.avg_pool2d(m.other(m.conv(x)), 3, 1, 1), ["AvgPool2d"]),
    "F.max_pool2d": (lambda m, x: F.max_pool2d(m.other(m.conv(x)), 3, stride=1, padding=1), ["MaxPool2d"]),
    "F.adaptive_avg_pool2d": (lambda m, x: F.adaptive_avg_pool2d(m.other(m.conv(x)), (8, None)), ["AdaptiveAvgPool2d"]),
    "both orders": (lambda m, x: F.max_pool2d(F.relu(m.other(m.conv(x))), 3, 1, 1), ["MaxPool2d", "ReLU"]),
}


@pytest.mark.parametrize("form", FORMS)
def test_functional_forms(form: str) -> None:
    f, expected = FORMS[form]
    chain = convert(Written(f), IMAGE)
    assert kinds(chain.layers) == ["Conv2d", "Conv2d", *expected, "Flatten", "Linear"]
    assert names(chain)[:2] == ["conv", "other"]


@pytest.mark.parametrize(
    "flatten",
    [
        lambda x: torch.flatten(x, 1),
        lambda x: x.flatten(1),
        lambda x: x.view(x.size(0), -1),
        lambda x: x.reshape(x.shape[0], -1),
        lambda x: torch.reshape(x, (x.shape[0], 3 * 64)),
        lambda x: x.view(-1, 3 * 64),
    ],
)
def test_forms_of_flatten(flatten: Callable[[torch.Tensor], torch.Tensor]) -> None:
    chain = convert(Written(lambda m, x: flatten(m.other(m.conv(x)))), IMAGE)
    assert kinds(chain.layers)[2] == "Flatten"
    assert chain.output_shapes[2] == (192,)


ADDS: dict[str, tuple[Callable[[Any, torch.Tensor], torch.Tensor], list[Any]]] = {
    "+": (lambda m, x: m.other(m.conv(x)) + x, [(["Conv2d", "Conv2d"], [])]),
    "shortcut first": (lambda m, x: x + m.other(m.conv(x)), [(["Conv2d", "Conv2d"], [])]),
    "torch.add": (lambda m, x: torch.add(m.conv(x), m.other(m.relu(x))), [(["ReLU", "Conv2d"], ["Conv2d"])]),
    "x.add": (lambda m, x: m.conv(x).add(m.other(x)), [(["Conv2d"], ["Conv2d"])]),
    "one after another": (
        lambda m, x: (lambda y: m.other(y) + y)(m.conv(x) + x),
        [(["Conv2d"], []), (["Conv2d"], [])],
    ),
    "one inside another": (
        lambda m, x: (lambda y: m.other(y) + y)(m.conv(x)) + x,
        [(["Conv2d", (["Conv2d"], [])], [])],
    ),
    "the same fork": (lambda m, x: m.conv(x) + m.other(x) + x, [([(["Conv2d"], ["Conv2d"])], [])]),
}


def iadd(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.other(m.conv(x))
    y += x
    return y


@pytest.mark.parametrize("form", [*ADDS, "+="])
def test_forms_of_residual_additions(form: str) -> None:
    f, expected = ADDS.get(form, (iadd, [(["Conv2d", "Conv2d"], [])]))
    assert kinds(convert(Written(f), IMAGE).layers) == [*expected, "Flatten", "Linear"]


def test_pooling_moves_inside_branches_too() -> None:
    chain = convert(Written(lambda m, x: F.max_pool2d(m.other(m.conv(x)).relu(), 3, 1, 1) + x), IMAGE)
    assert kinds(chain.layers)[0] == (["Conv2d", "Conv2d", "MaxPool2d", "ReLU"], [])


def test_a_relu_that_a_branch_reads_too_stays_before_the_pooling() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(m.other(m.conv(x)))
        return F.max_pool2d(y, 3, 1, 1) + y

    assert kinds(convert(Written(forward), IMAGE).layers)[:4] == ["Conv2d", "Conv2d", "ReLU", (["MaxPool2d"], [])]


def test_one_relu_module_used_twice_gets_two_names() -> None:
    chain = convert(Written(lambda m, x: m.relu(m.other(m.relu(m.conv(x))))), IMAGE)
    assert names(chain)[:4] == ["conv", "relu", "other", "relu:2"]


def test_function_names_are_those_of_their_module_and_unique() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(self.fc(F.relu(x)))

    chain = convert(nn.Sequential(Block(), Block()), (4,))
    assert names(chain) == ["0.relu", "0.fc", "0.relu:2", "1.relu", "1.fc", "1.relu:2"]


def test_identity_and_dropout_of_nothing_are_left_out() -> None:
    model = nn.Sequential(nn.Identity(), nn.Linear(4, 4), nn.Dropout(0.0), nn.ReLU(), nn.Dropout(0.5))
    chain = convert(model, (4,), seed=11)
    assert names(chain) == ["1", "3", "4"]
    assert (chain.layers[2].p, chain.layers[2].seed) == (0.5, 11)  # type: ignore[attr-defined]


def test_padding_same_and_valid() -> None:
    same = convert(nn.Sequential(nn.Conv2d(3, 4, (3, 5), padding="same", dilation=(2, 1))), IMAGE)
    valid = convert(nn.Sequential(nn.Conv2d(3, 4, 3, padding="valid")), IMAGE)
    assert (same.output_shape, valid.output_shape) == ((4, 8, 8), (4, 6, 6))


def test_depthwise_convolution_keeps_its_groups() -> None:
    chain = convert(nn.Sequential(nn.Conv2d(6, 6, 3, stride=2, padding=1, groups=6, bias=False)), (6, 8, 8))
    assert chain.output_shape == (6, 4, 4)
    assert {key: tuple(v.shape) for key, v in chain.initial().items()} == {("0", "weight"): (6, 1, 3, 3)}


def test_batchnorm_has_its_statistics_and_not_its_counter() -> None:
    chain = convert(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, eps=1e-3, momentum=0.2)), (4,))
    assert {key for layer, key in chain.initial() if layer == "1"} == {"weight", "bias", "running_mean", "running_var"}


def test_a_subclass_with_the_same_forward_is_taken() -> None:
    class Mine(nn.Linear):
        pass

    assert kinds(convert(nn.Sequential(Mine(4, 2)), (4,)).layers) == ["Linear"]


# the way back


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_like", "lenet"])
def test_state_dict_loads_back_strictly(name: str) -> None:
    entry = zoo.MODELS[name]
    model, other = zoo.build(name), zoo.build(name)
    chain = convert(model, entry.input_shape)
    trained = {key: torch.full_like(value, i) for i, (key, value) in enumerate(chain.initial().items())}
    other.load_state_dict(state_dict(chain, trained, steps=12), strict=True)
    state = other.state_dict()
    assert list(state_dict(chain, trained)) == list(model.state_dict())
    for (layer, key), value in trained.items():
        assert torch.equal(state[f"{layer}.{key}"], value)
    counters = [value for key, value in state.items() if key.endswith("num_batches_tracked")]
    assert all(value == 12 and value.dtype == torch.int64 for value in counters)
    assert len(counters) == sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())


def test_state_dict_goes_back_to_the_type_of_the_module() -> None:
    model = nn.Sequential(nn.Linear(4, 2)).double()
    chain = convert(model, (4,))
    assert all(v.dtype == torch.float32 for v in chain.initial().values())
    assert all(v.dtype == torch.float64 for v in state_dict(chain, chain.initial()).values())


def test_state_dict_of_wrong_values() -> None:
    chain = convert(nn.Sequential(nn.Linear(4, 2)), (4,))
    values = chain.initial()
    with pytest.raises(ValueError, match=r"lack '0\.bias'"):
        state_dict(chain, {("0", "weight"): values["0", "weight"]})
    with pytest.raises(ValueError, match=r"0\.bias has shape \(3,\)"):
        state_dict(chain, {**values, ("0", "bias"): torch.zeros(3)})
    with pytest.raises(ValueError, match=r"no '7\.bias'"):
        state_dict(chain, {**values, ("7", "bias"): torch.zeros(3)})


# what is refused

LAYERS: list[tuple[nn.Module, str, str]] = [
    (nn.GELU(), "GELU", "use ReLU"),
    (nn.SiLU(), "SiLU", "use ReLU"),
    (nn.Sigmoid(), "Sigmoid", "use ReLU"),
    (nn.Tanh(), "Tanh", "use ReLU"),
    (nn.LeakyReLU(), "LeakyReLU", "use ReLU"),
    (nn.ReLU6(), "ReLU6", "use ReLU"),
    (nn.LayerNorm([3, 8, 8]), "LayerNorm", "use BatchNorm2d"),
    (nn.GroupNorm(3, 3), "GroupNorm", "use BatchNorm2d"),
    (nn.Softmax(1), "Softmax", "leave it out at the end"),
    (nn.LogSoftmax(1), "LogSoftmax", "leave it out at the end"),
    (nn.LSTM(8, 4), "LSTM", "sequence models are not supported"),
    (nn.MultiheadAttention(8, 2), "MultiheadAttention", "sequence models are not supported"),
    (nn.Embedding(4, 4), "Embedding", "one-hot features and Linear"),
    (nn.ConvTranspose2d(3, 3, 2), "ConvTranspose2d", "enlarge"),
    (nn.Conv3d(3, 3, 3), "Conv3d", "2d form"),
    (nn.Dropout2d(), "Dropout2d", "use Dropout"),
    (nn.AdaptiveMaxPool2d(2), "AdaptiveMaxPool2d", "use AdaptiveAvgPool2d or MaxPool2d"),
    (nn.ChannelShuffle(3), "ChannelShuffle", "supported are Linear, Conv2d"),
    (nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect"), "Conv2d", 'use "zeros"'),
    (nn.Conv2d(3, 3, 2, padding="same"), "Conv2d", "use an odd kernel"),
    (nn.MaxPool2d(3, ceil_mode=True), "MaxPool2d", "ceil_mode=True"),
    (nn.MaxPool2d(2, return_indices=True), "MaxPool2d", "more than one tensor"),
    (nn.MaxPool2d(2, dilation=2), "MaxPool2d", "dilation=2"),
    (nn.AvgPool2d(3, ceil_mode=True), "AvgPool2d", "ceil_mode=True"),
    (nn.AvgPool2d(3, padding=1, count_include_pad=False), "AvgPool2d", "count_include_pad=False"),
    (nn.AvgPool2d(2, divisor_override=3), "AvgPool2d", "divisor_override=3"),
    (nn.AdaptiveAvgPool2d(3), "AdaptiveAvgPool2d", "use AvgPool2d"),
    (nn.BatchNorm2d(3, track_running_stats=False), "BatchNorm2d", "track_running_stats=False"),
    (nn.BatchNorm2d(3, affine=False), "BatchNorm2d", "affine=False"),
    (nn.BatchNorm2d(3, momentum=None), "BatchNorm2d", "momentum=None"),
    (nn.Dropout(1.0), "Dropout", "p=1.0"),
    (nn.Linear(8, 2), "Linear", "put a Flatten before it"),
    (nn.Flatten(2), "Flatten", "(batch, 3, 64)"),
]


@pytest.mark.parametrize(
    ("layer", "kind", "instead"), LAYERS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_unsupported_layers_are_named_with_what_to_use_instead(layer: nn.Module, kind: str, instead: str) -> None:
    message = refused(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Sequential(nn.ReLU(), layer)))
    assert message.startswith(f"1.1 ({kind})")
    assert instead in message and "\n" not in message


FUNCTIONS: list[tuple[Callable[[Any, torch.Tensor], Any], str, str]] = [
    (lambda m, x: F.gelu(x), "gelu (gelu)", "use ReLU"),
    (lambda m, x: x.sigmoid(), "sigmoid (sigmoid)", "use ReLU"),
    (lambda m, x: F.leaky_relu(x), "leaky_relu", "use ReLU"),
    (lambda m, x: F.softmax(x, 1), "softmax", "leave it out"),
    (lambda m, x: F.layer_norm(x, [8]), "layer_norm", "BatchNorm2d"),
    (lambda m, x: F.conv2d(x, m.conv.weight), "conv.weight", "uses this tensor directly"),
    (lambda m, x: torch.cat([x, m.conv(x)], 1), "cat", "use an addition"),
    (lambda m, x: m.conv(x) * m.other(x), "mul", "products of activations"),
    (lambda m, x: m.conv(x) * 0.5, "mul", "products of activations"),
    (lambda m, x: m.conv(x) - x, "sub", "only additions"),
    (lambda m, x: m.conv(x) + 1, "add", "two different branches"),
    (lambda m, x: torch.add(m.conv(x), x, alpha=2), "add", "leave alpha out"),
    (lambda m, x: x + x, "add", "two different branches"),
    (lambda m, x: m.conv(x) + F.avg_pool2d(x, 8), "add (add) adds (3, 8, 8) to (3, 1, 1)", "same shape"),
    (lambda m, x: x.mean((2, 3)), "mean", "AdaptiveAvgPool2d(1)"),
    (lambda m, x: x.permute(0, 2, 3, 1), "permute", "only Flatten"),
    (lambda m, x: x.view(x.size(0), 2, -1), "view", "(batch, 2, 96)"),
    (lambda m, x: x.flatten(), "flatten", "mixes the rows of a batch"),
    (lambda m, x: x.view(-1, 64), "view", "mixes the rows of a batch"),
    (lambda m, x: m.conv(m.conv(x)), "conv is called twice", "used once"),
    (lambda m, x: (m.conv(x), x), "the model's forward", "one tensor"),
    (lambda m, x: m.relu(x) if x.sum() > 0 else x, "traced by torch.fx", "no if, loop"),
    (lambda m, x: x + F.relu(m.conv(x)) + int(x[0, 0, 0, 0]), "traced by torch.fx", "no if, loop"),
]


@pytest.mark.parametrize(("forward", "what", "instead"), FUNCTIONS)
def test_unsupported_forwards(forward: Callable[[Any, torch.Tensor], Any], what: str, instead: str) -> None:
    message = refused(Written(forward))
    assert what in message and instead in message


def test_a_function_inside_a_module_is_named_with_it() -> None:
    message = refused(nn.Sequential(nn.Flatten(), nn.Sequential(Written(lambda m, x: F.gelu(x)))))
    assert message.startswith("1.0.gelu (gelu) cannot be trained securely")


def test_branches_that_cross() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.conv(x)
        return (F.relu(m.other(y)) + x) + F.relu(y)

    message = refused(Written(forward))
    assert "branches that cross" in message and message.startswith("conv:")


def test_writing_in_place_over_what_another_branch_reads() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.conv(x)
        return m.other(F.relu(y, inplace=True)) + y

    assert "writes over a value that another branch reads" in refused(Written(forward))


def test_shapes_that_do_not_fit_are_found_at_their_layer() -> None:
    message = refused(nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(9, 2)))
    assert message.startswith("3 (Linear) does not take an input of shape (8,)")
    assert refused(nn.Sequential(nn.Conv2d(4, 2, 3))).startswith("0 (Conv2d) does not take an input of shape (3, 8, 8)")
    assert refused(nn.Sequential(nn.AvgPool2d(9))).startswith("0 (AvgPool2d)")


def test_weights_that_training_would_get_wrong() -> None:
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    assert "1.weight and 0.weight are one parameter" in refused(tied, (4,))
    frozen = nn.Sequential(nn.Linear(4, 4))
    frozen[0].bias.requires_grad_(False)
    assert "0.bias is frozen" in refused(frozen, (4,))
    unused = Written(lambda m, x: m.conv(x))
    assert "other.weight: the model's forward never uses this parameter" in refused(unused)
    assert "(Linear) has hooks" in refused(
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))), (4,)
    ).replace("ParametrizedLinear", "Linear")
    assert "0.weight has no shape yet" in refused(nn.Sequential(nn.LazyLinear(4)), (4,))
    hooked = nn.Sequential(nn.Linear(4, 4))
    hooked[0].register_forward_hook(lambda *_: None)
    assert "0 (Linear) has hooks" in refused(hooked, (4,))


def test_modules_of_the_wrong_form() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    class Other(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * 2

    assert "forward takes x, y" in refused(Two())
    assert "put it into nn.Sequential" in refused(nn.Linear(4, 2), (4,))
    assert "no layer" in refused(nn.Sequential(nn.Identity()), (4,))
    assert refused(nn.Sequential(Other(4, 2)), (4,)).startswith("0.weight: the model uses this tensor directly")


# what it computes


def apply(layers: Any, x: torch.Tensor) -> torch.Tensor:
    """The chain in the clear, by an independent reading of the secure layers' attributes."""
    for layer in layers:
        x = apply_one(layer, x)
    return x


def apply_one(layer: Layer | Any, x: torch.Tensor) -> torch.Tensor:
    kind, w = type(layer).__name__, layer.initial
    if kind == "Residual":
        return apply(layer.body, x) + apply(layer.shortcut, x)
    if kind == "Linear":
        return F.linear(x, w["weight"], w.get("bias"))
    if kind == "Conv2d":
        c = layer.conv
        return F.conv2d(x, w["weight"], w.get("bias"), c.stride, c.padding, c.dilation, c.groups)
    if kind == "BatchNorm":
        return F.batch_norm(x, None, None, w["weight"], w["bias"], training=True, eps=layer.eps)
    if kind in ("AvgPool2d", "MaxPool2d"):
        pool = F.avg_pool2d if kind == "AvgPool2d" else F.max_pool2d
        return pool(x, layer.windows.kernel, layer.windows.stride, layer.windows.padding)
    return {
        "ReLU": F.relu,
        "Flatten": lambda x: x.flatten(1),
        "AdaptiveAvgPool2d": lambda x: F.adaptive_avg_pool2d(x, layer.output_size),
    }[kind](x)


@pytest.mark.parametrize("name", ["minionn", "alexnet", "resnet18", "mobilenet_like"])
def test_the_chain_computes_what_the_module_does(name: str) -> None:
    entry = zoo.MODELS[name]
    torch.manual_seed(3)
    model = zoo.build(name, {"pool": "max"} if name in ("minionn", "alexnet") else {})
    chain = convert(model, entry.input_shape)
    x = torch.randn(4, *entry.input_shape)
    with torch.no_grad():
        expected, got = model(x), apply(chain.layers, x)
    assert math.isclose((expected - got).abs().max().item(), 0, abs_tol=1e-4)


def test_converting_imports_no_compiler_and_draws_nothing() -> None:
    code = (
        "import sys, torch; from torch import nn; from mpcpipe.nn.convert import convert;"
        "module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Dropout(), nn.AvgPool2d(2),"
        " nn.Flatten(), nn.Linear(18, 3)); before = torch.get_rng_state(); convert(module, (1, 8, 8));"
        "assert torch.equal(before, torch.get_rng_state()) and 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
