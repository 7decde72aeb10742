"""What a training step needs of a dealer: its own side of the step, run dry on shapes. Exact, and needs no data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from mpcpipe.nn.chain import Chain
from mpcpipe.plan.drive import Setting, Solo, SoloTape, drive_step
from mpcpipe.protocol.additive2.offline import Need
from mpcpipe.protocol.additive2.roles import Roles


def step_needs(chain: Chain, setting: Setting, rows: Sequence[int]) -> dict[str, Need]:
    """By kind of correlation, for a step whose micro-batches have so many rows; {} for a protocol without a dealer."""
    if setting.protocol.dealer is None:
        return {}
    total: dict[str, Need] = {}
    update: dict[str, Need] = {}
    for size, times in Counter(rows).items():
        microbatch, update = _driven(chain, setting, size)
        for kind, need in microbatch.items():
            total[kind] = total.get(kind, Need()) + Need(need.uses * times, need.numel * times, need.nbytes * times)
    for kind, need in update.items():
        total[kind] = total.get(kind, Need()) + need
    return total


def _driven(chain: Chain, setting: Setting, rows: int) -> tuple[dict[str, Need], dict[str, Need]]:
    """What one micro-batch needs, and what the update does."""
    assert setting.protocol.dealer is not None
    dealer = setting.party(setting.protocol.dealer, SoloTape(_shadow, lambda nbytes: None))
    assert isinstance(dealer, Roles)
    found: dict[str, dict[str, Need]] = {"": {}, "F": {}, "I": {}, "W": {}, "U": {}}

    def enter(name: str, direction: str) -> None:
        dealer.needs.kinds = found[direction]

    drive_step(chain, setting, dealer, rows, Solo(_shadow, lambda step: None), enter)
    together: dict[str, Need] = {}
    for direction in "FIW":
        for kind, need in found[direction].items():
            together[kind] = together.get(kind, Need()) + need
    return together, found["U"]


def _shadow(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
