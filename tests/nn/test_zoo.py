"""The zoo: parameter counts worked out by hand from the published layer lists, and the shapes that the layers give."""

from __future__ import annotations

import inspect
from itertools import pairwise

import pytest
import torch
from torch import nn

from mpcpipe.errors import JobError
from mpcpipe.nn import catalog, zoo


def conv(inputs: int, outputs: int, kernel: int) -> int:
    return outputs * (inputs * kernel * kernel + 1)


def conv_bn(inputs: int, outputs: int, kernel: int) -> int:
    return outputs * inputs * kernel * kernel + 2 * outputs


def fc(*widths: int) -> int:
    return sum(b * (a + 1) for a, b in pairwise(widths))


def block(inputs: int, outputs: int, shortcut: bool) -> int:
    return conv_bn(inputs, outputs, 3) + conv_bn(outputs, outputs, 3) + (conv_bn(inputs, outputs, 1) if shortcut else 0)


def separable(inputs: int, outputs: int) -> int:
    return 9 * inputs + 2 * inputs + conv_bn(inputs, outputs, 1)


VGG = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
COUNTS = {
    "secureml": (fc(784, 128, 128, 10), 118_282),
    "sarda": (conv(1, 5, 2) + fc(980, 100, 10), 99_135),
    "minionn": (conv(1, 16, 5) + conv(16, 16, 5) + fc(256, 100, 10), 33_542),
    "lenet": (conv(1, 20, 5) + conv(20, 50, 5) + fc(800, 500, 10), 431_080),
    "alexnet": (
        conv(3, 96, 11) + conv(96, 256, 5) + conv(256, 384, 3) + conv(384, 384, 3) + conv(384, 256, 3)
        + fc(256, 256, 256, 10),
        3_881_354,
    ),
    "vgg16": (sum(conv(a, b, 3) for a, b in pairwise(VGG)) + fc(512, 256, 256, 10), 14_914_378),
    # The count of the CIFAR form of ResNet-18 is widely published.
    "resnet18": (
        conv_bn(3, 64, 3) + 2 * block(64, 64, False) + fc(512, 10)
        + sum(block(a, b, True) + block(b, b, False) for a, b in ((64, 128), (128, 256), (256, 512))),
        11_173_962,
    ),
    "mobilenet_like": (
        conv_bn(3, 32, 3) + fc(512, 10)
        + sum(separable(a, b) for a, b in pairwise((32, 64, 128, 128, 256, 256, 512, 512))),
        543_050,
    ),
    "digits_mlp": (fc(64, 64, 10), 4_810),
    "digits_cnn": (conv(1, 16, 3) + conv(16, 32, 3) + fc(128, 64, 10), 13_706),
}  # fmt: skip


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", zoo.MODELS)
def test_number_of_parameters(name: str) -> None:
    by_hand, published = COUNTS[name]
    assert by_hand == published == parameters(zoo.build(name))
    assert f"{published:,} parameters" in (zoo.MODELS[name].build.__doc__ or "")


@pytest.mark.parametrize("name", zoo.MODELS)
def test_output_shape(name: str) -> None:
    entry = zoo.MODELS[name]
    model = zoo.build(name).to("meta")
    assert model(torch.zeros(2, *entry.input_shape, device="meta")).shape == (2, entry.classes)


@pytest.mark.parametrize("name", ["minionn", "lenet", "alexnet", "vgg16", "digits_cnn"])
def test_pooling_is_a_choice_and_changes_no_parameter(name: str) -> None:
    avg, most = zoo.build(name, {"pool": "avg"}), zoo.build(name, {"pool": "max"})
    assert parameters(avg) == parameters(most)
    kinds = [{type(m) for m in model.modules()} & {nn.AvgPool2d, nn.MaxPool2d} for model in (avg, most)]
    assert kinds == [{nn.AvgPool2d}, {nn.MaxPool2d}]


def test_alexnet_spatial_sizes_are_the_published_ones() -> None:
    x, sizes = torch.zeros(1, 3, 32, 32), []
    for layer in zoo.alexnet().children():
        x = layer(x)
        if isinstance(layer, nn.Conv2d | nn.AvgPool2d):
            sizes.append(x.shape[-1])
    assert sizes == [10, 4, 2, 1, 1, 1, 1]


def test_alexnet_batchnorm_adds_704_parameters() -> None:
    assert parameters(zoo.alexnet(batchnorm=True)) == 3_881_354 + 704


def test_vgg16_pools_before_the_last_relu_of_each_group() -> None:
    kinds = [type(m) for m in zoo.vgg16().children()]
    assert kinds.count(nn.Conv2d) == 13
    assert [kinds[i - 1 : i + 2] for i, kind in enumerate(kinds) if kind is nn.AvgPool2d] == [
        [nn.Conv2d, nn.AvgPool2d, nn.ReLU]
    ] * 5


def test_he_init_keeps_the_size_of_activations_through_sixteen_layers() -> None:
    torch.manual_seed(1)
    model = zoo.vgg16("max")
    assert 0.01 < model(torch.randn(4, 3, 32, 32)).std().item() < 100


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(JobError, match="there is no model 'lennet'; did you mean 'lenet'"):
        zoo.build("lennet")


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(JobError, match=r"model\.args\.depth: the model 'lenet' takes pool"):
        zoo.build("lenet", {"depth": 3})
    with pytest.raises(JobError, match=r"model\.args\.pool: the model 'secureml' takes no arguments"):
        zoo.build("secureml", {"pool": "avg"})
    with pytest.raises(JobError, match=r"model\.args\.pool: there is no pooling 'median'"):
        zoo.build("lenet", {"pool": "median"})


@pytest.mark.parametrize("name", zoo.MODELS)
def test_the_catalog_has_the_arguments_of_what_builds_the_network(name: str) -> None:
    takes = {key: value.default for key, value in inspect.signature(zoo.MODELS[name].build).parameters.items()}
    assert takes == dict(catalog.CATALOG[name].args)
