"""Secure layers, under the names of their torch counterparts."""

from mpcpipe.nn.layers.activation import Dropout, Flatten, ReLU
from mpcpipe.nn.layers.base import Layer, full_names, parameters, set_parameters, walk
from mpcpipe.nn.layers.composite import Residual
from mpcpipe.nn.layers.linear import Conv2d, Linear
from mpcpipe.nn.layers.norm import BatchNorm
from mpcpipe.nn.layers.pool import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d

__all__ = [
    "AdaptiveAvgPool2d",
    "AvgPool2d",
    "BatchNorm",
    "Conv2d",
    "Dropout",
    "Flatten",
    "Layer",
    "Linear",
    "MaxPool2d",
    "ReLU",
    "Residual",
    "full_names",
    "parameters",
    "set_parameters",
    "walk",
]
