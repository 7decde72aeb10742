"""The networks of the literature on secure training, as plain torch modules; `MODELS` has them by name.

Where papers disagree on the pooling, `pool` is "avg" or "max". Average pooling is a sum, and costs a secure computation
nothing; max pooling costs three comparisons for a window of four. Some published configurations have a ReLU after the
last layer; it would hide half of the scores from the loss, so it is left out here. Weights start as torch starts them,
except where a deep network without normalisation would not train (`he_init`).

Sources of the layer lists:
    SecureML    Mohassel and Zhang, IEEE S&P 2017, section 6
    Sarda       Riazi et al., "Chameleon", ASIA CCS 2018; the name is that of Falcon's and Piranha's configurations
    MiniONN     Liu et al., CCS 2017, figure 12
    LeNet, AlexNet and VGG-16 for CIFAR-10: Wagh et al., "Falcon", PETS 2021 (max pooling); Tan et al., "CryptGPU", IEEE
                S&P 2021, and Watson et al., "Piranha", USENIX Security 2022 (average pooling)
    ResNet-18   He et al., CVPR 2016; the CIFAR form with a 3x3 stem
    MobileNet   Howard et al., 2017; narrower and for 32x32 pixels
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mpcpipe.nn import catalog
from mpcpipe.ring.bilinear import Shape

POOLS: dict[str, type[nn.Module]] = {"avg": nn.AvgPool2d, "max": nn.MaxPool2d}


@dataclass(frozen=True)
class ZooModel:
    """A network by name: what builds it, and the data it is made for (input_shape without the batch)."""

    build: Callable[..., nn.Module]
    input_shape: Shape
    classes: int


def pooling(kind: str, kernel: int, stride: int | None = None) -> nn.Module:
    """An average or a max pooling layer. A kind that is neither is a JobError."""
    catalog.check_pool(kind)
    return POOLS[kind](kernel, stride)


def he_init(model: nn.Module) -> nn.Module:
    """Weights of variance 2 / fan in (He et al., ICCV 2015), biases 0: activations keep their size."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def secureml() -> nn.Module:
    """784-128-128-10, for MNIST. 118,282 parameters."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def sarda() -> nn.Module:
    """A 2x2 convolution of stride 2 to 5 channels, then 980-100-10, for MNIST. 99,135 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 5, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(980, 100), nn.ReLU(), nn.Linear(100, 10)
    )


def minionn(pool: str = "avg") -> nn.Module:
    """5x5 convolutions to 16 channels, each pooled before its ReLU, then 256-100-10, for MNIST. 33,542 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5), pooling(pool, 2), nn.ReLU()),
        *(nn.Conv2d(16, 16, 5), pooling(pool, 2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(256, 100), nn.ReLU(), nn.Linear(100, 10)),
    )


def lenet(pool: str = "avg") -> nn.Module:
    """5x5 convolutions to 20 and 50 channels, each with ReLU and 2x2 pooling, then 800-500-10. 431,080 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.ReLU(), pooling(pool, 2)),
        *(nn.Conv2d(20, 50, 5), nn.ReLU(), pooling(pool, 2)),
        *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
    )


def alexnet(pool: str = "avg", batchnorm: bool = False) -> nn.Module:
    """AlexNet for CIFAR-10: sizes 32, convolved 10, pooled 4, convolved 2, pooled 1, then 1. 3,881,354 parameters.

    `batchnorm` puts a normalisation after each of the first two ReLUs, as Falcon does (704 parameters more).
    """
    return he_init(
        nn.Sequential(
            *(nn.Conv2d(3, 96, 11, stride=4, padding=9), pooling(pool, 3, 2), nn.ReLU()),
            *([nn.BatchNorm2d(96)] if batchnorm else []),
            *(nn.Conv2d(96, 256, 5, padding=1), pooling(pool, 2, 1), nn.ReLU()),
            *([nn.BatchNorm2d(256)] if batchnorm else []),
            *(nn.Conv2d(256, 384, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(384, 384, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)),
        )
    )


def vgg16(pool: str = "avg") -> nn.Module:
    """13 3x3 convolutions, pooled five times (before the ReLU, as published), 512-256-256-10. 14,914,378 parameters."""
    layers: list[nn.Module] = []
    channels = 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for i in range(depth):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
            if i == depth - 1:
                layers.insert(-1, pooling(pool, 2))
    head = (nn.Flatten(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return he_init(nn.Sequential(*layers, *head))


def _conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> tuple[nn.Module, nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return conv, nn.BatchNorm2d(outputs)


class BasicBlock(nn.Module):
    """ResNet's block of two 3x3 convolutions, with a 1x1 convolution on the shortcut where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv_bn(inputs, outputs, 3, stride)
        self.conv2, self.bn2 = _conv_bn(outputs, outputs, 3)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Sequential() if same else nn.Sequential(*_conv_bn(inputs, outputs, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, inputs, height, width)."""
        y = self.relu1(self.bn1(self.conv1(x)))
        result: torch.Tensor = self.relu2(self.bn2(self.conv2(y)) + self.shortcut(x))
        return result


def resnet18() -> nn.Module:
    """ResNet-18 for CIFAR-10, with a 3x3 stem and no first pooling. 11,173,962 parameters."""
    blocks: list[nn.Module] = []
    channels = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [BasicBlock(channels, width, stride), BasicBlock(width, width, 1)]
        channels = width
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    return nn.Sequential(*_conv_bn(3, 64, 3), nn.ReLU(), *blocks, *head)


def mobilenet_like() -> nn.Module:
    """Seven depthwise separable convolutions, each half with BatchNorm and ReLU, for CIFAR-10. 543,050 parameters."""

    def layers() -> Iterator[nn.Module]:
        yield from (*_conv_bn(3, 32, 3), nn.ReLU())
        channels = 32
        for width, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
            yield from (*_conv_bn(channels, channels, 3, stride, groups=channels), nn.ReLU())
            yield from (*_conv_bn(channels, width, 1), nn.ReLU())
            channels = width
        yield from (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))

    return nn.Sequential(*layers())


def digits_mlp() -> nn.Module:
    """64-64-10, for the 8x8 pixels of scikit-learn's digits. 4,810 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def digits_cnn(pool: str = "avg") -> nn.Module:
    """3x3 convolutions to 16 and 32 channels, each with ReLU and 2x2 pooling, then 128-64-10. 13,706 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), pooling(pool, 2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), pooling(pool, 2)),
        *(nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


_BUILD: dict[str, Callable[..., nn.Module]] = {
    "alexnet": alexnet,
    "digits_cnn": digits_cnn,
    "digits_mlp": digits_mlp,
    "lenet": lenet,
    "minionn": minionn,
    "mobilenet_like": mobilenet_like,
    "resnet18": resnet18,
    "sarda": sarda,
    "secureml": secureml,
    "vgg16": vgg16,
}

MODELS: dict[str, ZooModel] = {
    name: ZooModel(_BUILD[name], entry.input_shape, entry.classes) for name, entry in catalog.CATALOG.items()
}


def check(name: str, args: Mapping[str, Any]) -> ZooModel:
    """The zoo's entry called `name`, if it takes these arguments; else a JobError."""
    catalog.check(name, args)
    return MODELS[name]


def build(name: str, args: Mapping[str, Any] | None = None) -> nn.Module:
    """A new network of the zoo, its weights drawn from torch's generator. Wrong arguments are a JobError."""
    return check(name, args or {}).build(**(args or {}))
