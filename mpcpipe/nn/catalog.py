"""The zoo's networks by name: what data they are made for and what arguments they take. Imports no torch.

A job is checked against this table at once; `mpcpipe.nn.zoo` has the networks themselves.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mpcpipe.errors import JobError

Shape = tuple[int, ...]

POOLS = ("avg", "max")
MNIST, CIFAR10, DIGITS = (1, 28, 28), (3, 32, 32), (1, 8, 8)


@dataclass(frozen=True)
class Entry:
    """The data a network is made for (input_shape without the batch), and its arguments with their defaults."""

    input_shape: Shape
    classes: int
    args: Mapping[str, Any] = field(default_factory=dict)


_POOL = {"pool": "avg"}

CATALOG: dict[str, Entry] = {
    "alexnet": Entry(CIFAR10, 10, {"pool": "avg", "batchnorm": False}),
    "digits_cnn": Entry(DIGITS, 10, _POOL),
    "digits_mlp": Entry(DIGITS, 10),
    "lenet": Entry(MNIST, 10, _POOL),
    "minionn": Entry(MNIST, 10, _POOL),
    "mobilenet_like": Entry(CIFAR10, 10),
    "resnet18": Entry(CIFAR10, 10),
    "sarda": Entry(MNIST, 10),
    "secureml": Entry(MNIST, 10),
    "vgg16": Entry(CIFAR10, 10, _POOL),
}


def entry_named(name: str) -> Entry:
    """The entry called `name`; a wrong name is a JobError with the list of right ones."""
    if name in CATALOG:
        return CATALOG[name]
    near = difflib.get_close_matches(name, CATALOG, 1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise JobError(f"model.zoo: there is no model {name!r}{hint} Known: {', '.join(CATALOG)}.")


def check(name: str, args: Mapping[str, Any]) -> Entry:
    """The entry called `name`, if it takes these arguments; else a JobError."""
    entry = entry_named(name)
    for arg, value in args.items():
        if arg not in entry.args:
            takes = f"takes {', '.join(entry.args)}" if entry.args else "takes no arguments"
            raise JobError(f"model.args.{arg}: the model {name!r} {takes}.")
        kind = type(entry.args[arg])
        if not isinstance(value, kind):
            raise JobError(f"model.args.{arg}: is {value!r}; it must be of type {kind.__name__}.")
    check_pool(args.get("pool", "avg"))
    return entry


def check_pool(kind: str) -> None:
    """A JobError unless it is a kind of pooling."""
    if kind not in POOLS:
        raise JobError(f'model.args.pool: there is no pooling {kind!r}; write "avg" or "max".')
