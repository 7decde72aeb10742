"""One party alone, driven through a training step of a chain: the real coroutines, and nobody at the other end.

What a party does and sends never depends on values, only on shapes. So a message may be anything of the right length,
and a dry run on tensors without values has the exact rounds and bytes of the real protocol, whichever it is.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from mpcpipe.nn.chain import Chain
from mpcpipe.nn.fixed import Fixed, PartialGrad
from mpcpipe.nn.layers import Layer, walk
from mpcpipe.nn.layers.base import first_trained, with_factors_shown
from mpcpipe.nn.loss import Loss, count_correct
from mpcpipe.nn.optim import Optimizer
from mpcpipe.nn.pieces import Passage, add_to, join, passages, runs, split
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.rounds import Operation, Received, Round, gather
from mpcpipe.random.tape import Holders, Tape
from mpcpipe.ring.ops import words
from mpcpipe.ring.ring import Ring

T = TypeVar("T")
BUFFERS = frozenset({"running_mean", "running_var"})
FEATURES, LOSS = "features", "loss"


@dataclass(frozen=True)
class Setting:
    """How a chain is trained: everything that costs depend on, besides the chain and the rows of a micro-batch.

    compare_bits, parties: as `Protocol`. pieces: as `nn.pieces`. classes: width of the target. learning_rate,
    batch_size: as the first step's. owner: the party that shares the features of every micro-batch; None if they were
    shared before.
    """

    protocol: type[Protocol]
    make_loss: Callable[[], Loss]
    make_optimizer: Callable[[], Optimizer]
    classes: int
    batch_size: int
    parties: int = 3
    ring_bits: int = 64
    fraction_bits: int = 16
    compare_bits: int = 32
    pieces: int = 1
    learning_rate: float = 0.1
    owner: int | None = None

    def party(self, number: int, tape: Tape) -> Protocol:
        """One party's protocol."""
        return self.protocol(
            party=number, ring=Ring(self.ring_bits), tape=tape, compare_bits=self.compare_bits, parties=self.parties
        )


Watch = Callable[[Round | None], None]
"""Called before every round with what is about to be sent, and with None at the end of an operation."""


@dataclass
class Solo:
    """Drives one party's operations. make(shape, dtype): tensors that stand for what nobody knows."""

    make: Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
    watch: Watch

    def __call__(self, operation: Operation[T]) -> T:
        """The operation's result."""
        received: Received | None = None
        try:
            while True:
                step = operation.send(received)
                assert isinstance(step, Round), "only a worker can overlap"
                self.watch(step)
                received = {
                    peer: [self.make((part.numel,), part.dtype) for part in parts]
                    for peer, parts in step.receive.items()
                }
        except StopIteration as finished:
            self.watch(None)
            result: T = finished.value
            return result
        finally:
            operation.close()

    def fixed(self, p: Protocol, shape: Sequence[int], fraction_bits: int) -> Fixed:
        """A secret of this shape."""
        return Fixed(self.make((p.components, *shape), p.ring.dtype), fraction_bits)


@dataclass
class SoloTape:
    """A tape of `make`'s tensors; `drawn` is told how many bytes a real one would have made."""

    make: Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
    drawn: Callable[[int], None]

    def elements(self, holders: Holders, label: str, numel: int, ring: Ring) -> torch.Tensor:
        """See `Tape`."""
        self.drawn(numel * ring.nbytes)
        return self.make((numel,), ring.dtype)

    def planes(self, holders: Holders, label: str, count: int, n: int) -> torch.Tensor:
        """See `Tape`."""
        self.drawn(8 * count * words(n))
        return self.make((count, words(n)), torch.int64)


Enter = Callable[[str, str], None]
"""Told (layer, direction) before the operations of a layer: F, I, W or U; V for the value of the loss."""


def drive_evaluation(chain: Chain, setting: Setting, p: Protocol, rows: int, solo: Solo) -> None:
    """Right answers among `rows` test rows, counted; sharing and opening are left out."""
    layers = _twins(chain.layers)
    _fill(layers, p, solo, setting.fraction_bits)
    x = solo.fixed(p, (rows, *chain.input_shape), setting.fraction_bits)
    for layer in layers:
        x, _ = solo(layer.forward(p.at(f"evaluation/{layer.name}/F"), x, False))
    solo(count_correct(p.at("evaluation/count"), x, solo.fixed(p, (rows, setting.classes), 0)))


def drive_step(
    chain: Chain, setting: Setting, p: Protocol, rows: int, solo: Solo, enter: Enter, opens_loss: bool = False
) -> None:
    """One micro-batch of `rows`: shared, forward and back through the chain and the loss, then the update.

    Input gradients up to the first layer with weights are spared, as a first stage spares them. The update is driven
    twice, and the second is the one that has an optimizer's memory in it. opens_loss: also the value of the loss.
    """
    layers = _twins(chain.layers)
    enter(FEATURES, "")
    _fill(layers, p, solo, setting.fraction_bits)
    shape = (rows, *chain.input_shape)
    x = solo.fixed(p, shape, setting.fraction_bits)
    if setting.owner is not None:
        value = solo.make(shape, p.ring.dtype) if p.party == setting.owner else None
        enter(FEATURES, "F")
        x = Fixed(solo(p.at("0/features/0").share(value, setting.owner, shape)), setting.fraction_bits)
    target = solo.fixed(p, (rows, setting.classes), 0)
    kept: list[list[Passage]] = []
    for index, layer in enumerate(layers):
        enter(layer.name, "F")
        (run,) = runs([layer], x.shape, setting.pieces)
        mine = passages([layer], index, run.pieces, 0)
        both = zip(mine, split(x, run.pieces), strict=True)
        x = join(solo(gather(*[one.forward(p, 0, part) for one, part in both])))
        kept.append(mine)
    loss = setting.make_loss()
    loss.working_bits = setting.fraction_bits
    enter(LOSS, "F")
    dy, saved = solo(loss.forward_grad(p.at("0/loss/0/F"), x, target))
    if opens_loss:
        enter(LOSS, "V")
        solo(loss.value(p.at("0/loss value/0"), saved))
    spared = first_trained(layers)
    for index in reversed(range(spared, len(layers))):
        layer, mine = layers[index], kept[index]
        enter(layer.name, "I" if index > spared or layer.children() else "")
        both = zip(mine, split(dy, len(mine)), strict=True)
        dxs = solo(gather(*[one.input_grad(p, 0, part, spared) for one, part in both]))
        if dxs[0] is not None:
            dy = join(dxs)
    for layer, mine in zip(layers[spared:], kept[spared:], strict=True):
        enter(layer.name, "W")
        grads: dict[str, PartialGrad] = {}
        for found in solo(gather(*[one.weight_grad(p, 0) for one in mine])):
            add_to(grads, found)
        optimizers = {leaf.name: setting.make_optimizer() for leaf in walk([layer])}
        for step in (0, 1):
            enter(layer.name, "U" if step else "")
            solo(_update(layer, grads, optimizers, p, setting, step))


async def _update(
    layer: Layer,
    grads: dict[str, PartialGrad],
    optimizers: dict[str, Optimizer],
    p: Protocol,
    setting: Setting,
    step: int,
) -> None:
    steps = []

    async def one(leaf: Layer, at: Protocol, own: dict[str, Fixed], given: dict[str, PartialGrad]) -> None:
        new = await optimizers[leaf.name].step(at, own, given, setting.learning_rate, setting.batch_size)
        await with_factors_shown(at, leaf, new)

    for leaf in walk([layer]):
        own = {f"{leaf.name}.{key}": value for key, value in leaf.parameters.items()}
        given = {key: PartialGrad(grad.data.clone(), grad.fraction_bits) for key, grad in grads.items() if key in own}
        if given:
            at = p.at(f"{step}/{leaf.name}/U")
            steps.append(one(leaf, at, own, given))
    await gather(*steps)


def _twins(layers: Sequence[Layer]) -> list[Layer]:
    """Copies of the layers, so that the chain's own are left alone; initial values are not copied."""
    tensors = itertools.chain.from_iterable(leaf.initial.values() for leaf in walk(layers))
    memo: dict[int, Any] = {id(tensor): tensor for tensor in tensors}
    return copy.deepcopy(list(layers), memo)


def _fill(layers: Sequence[Layer], p: Protocol, solo: Solo, fraction_bits: int) -> None:
    for leaf in walk(layers):
        leaf.parameters, leaf.buffers = {}, {}
        for key, value in leaf.initial.items():
            share = solo.fixed(p, tuple(value.shape), fraction_bits)
            if key in leaf.factors:  # as the last step's update left it
                share = Fixed(solo(p.at(f"0/{leaf.name}.{key}").show(share.data)), fraction_bits)
            (leaf.buffers if key in BUFFERS else leaf.parameters)[key] = share
