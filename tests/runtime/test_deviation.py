"""A bit that is flipped on its way in the middle of a training ends it at the next opening, which names the step."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import pytest
import torch
from torch import nn

from mpcpipe.errors import IntegrityError
from mpcpipe.link.memory import MemoryLink
from mpcpipe.plan.schedule import build
from mpcpipe.protocol.replicated4 import Replicated4
from tests.runtime.crews import train


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


@pytest.mark.parametrize(("sender", "kind"), [(0, "features"), (1, "wrap"), (2, "level2"), (3, "select")])
def test_a_flipped_bit_ends_the_step_that_it_is_in(sender: int, kind: str) -> None:
    """Any message of any sender: tests/protocol. Here one of each kind, among micro-batches and workers."""
    flipped: list[str] = []
    send = MemoryLink.send

    def tampered(link: MemoryLink, label: str, parts: Sequence[torch.Tensor], clock: int = 0) -> None:
        if link.party == sender and label.startswith("2/") and kind in label and not flipped:
            flipped.append(label)
            parts = [part.clone() for part in parts]
            parts[0].view(torch.uint8)[0] ^= 1
        send(link, label, parts, clock)

    with mock.patch.object(MemoryLink, "send", tampered), pytest.raises(IntegrityError) as error:
        train(net, (5,), [0, 1], build("1f1b", [1, 1], 2), 3, 4, kind=Replicated4, reveal_loss=True)
    assert flipped and "noticed at '2/reveal loss#1.reveal'" in str(error.value)
