"""What a job needs of a dealer: its own side of the program, run dry on shapes. Exact, and needs no data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from mpcpipe.nn.chain import Chain
from mpcpipe.plan.drive import Setting, Solo, SoloTape, drive_evaluation, drive_step
from mpcpipe.protocol.additive2.offline import Need
from mpcpipe.protocol.additive2.roles import Roles


@dataclass(frozen=True)
class Dealt:
    """What is dealt for something: corrections by kind of correlation, and bytes of the streams that the dealer has
    with the parties (drawn at all three, and sent by nobody).
    """

    kinds: Mapping[str, Need] = field(default_factory=dict)
    stream_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """What the dealer sends, or stores: to party 1."""
        return sum(need.nbytes for need in self.kinds.values())

    def __add__(self, other: Dealt) -> Dealt:
        """Both."""
        kinds = dict(self.kinds)
        for kind, need in other.kinds.items():
            kinds[kind] = kinds.get(kind, Need()) + need
        return Dealt(kinds, self.stream_bytes + other.stream_bytes)

    def __mul__(self, times: int) -> Dealt:
        """So many of it."""
        kinds = {
            kind: Need(need.uses * times, need.numel * times, need.nbytes * times) for kind, need in self.kinds.items()
        }
        return Dealt(kinds, self.stream_bytes * times)


def step_needs(chain: Chain, setting: Setting, rows: Sequence[int]) -> dict[str, Need]:
    """By kind of correlation, for a step whose micro-batches have so many rows; {} for a protocol without a dealer."""
    return dict(step_dealt(chain, setting, rows)[0].kinds)


def step_dealt(chain: Chain, setting: Setting, rows: Sequence[int]) -> tuple[Dealt, Dealt]:
    """For a step whose micro-batches have so many rows; and what comes on top where its loss is opened."""
    total, value, update = Dealt(), Dealt(), Dealt()
    for size, times in Counter(rows).items() if setting.protocol.dealer is not None else ():
        microbatch, of_loss, update = _driven(chain, setting, size)
        total, value = total + microbatch * times, value + of_loss * times
    return total + update, value


def evaluation_dealt(chain: Chain, setting: Setting, rows: Sequence[int]) -> Dealt:
    """For one evaluation, whose batches have so many rows."""
    total = Dealt()
    for size, times in Counter(rows).items() if setting.protocol.dealer is not None else ():
        counted = _Counted(setting)
        counted.run(lambda dealer, solo, size=size: drive_evaluation(chain, setting, dealer, size, solo))  # type: ignore[misc]
        total = total + counted.found[""] * times
    return total


class _Counted:
    """A dealer that runs dry, and what it dealt since it entered each direction."""

    def __init__(self, setting: Setting) -> None:
        assert setting.protocol.dealer is not None
        self.found: dict[str, Dealt] = {}
        self._direction, self._drawn = "", 0
        dealer = setting.party(setting.protocol.dealer, SoloTape(_shadow, self._draw))
        assert isinstance(dealer, Roles)
        self._dealer = dealer

    def _draw(self, nbytes: int) -> None:
        self._drawn += nbytes

    def enter(self, name: str, direction: str) -> None:
        """From now on it is for `direction`."""
        self._take()
        self._direction = direction

    def run(self, program: Callable[[Roles, Solo], None]) -> None:
        """Run `program` to its end."""
        program(self._dealer, Solo(_shadow, lambda step: None))
        self._take()

    def _take(self) -> None:
        now = Dealt(self._dealer.needs.kinds, self._drawn)
        self.found[self._direction] = self.found.get(self._direction, Dealt()) + now
        self._dealer.needs.kinds, self._drawn = {}, 0


def _driven(chain: Chain, setting: Setting, rows: int) -> tuple[Dealt, Dealt, Dealt]:
    """What one micro-batch needs, what the value of its loss does, and what the update does."""
    counted = _Counted(setting)
    counted.run(lambda dealer, solo: drive_step(chain, setting, dealer, rows, solo, counted.enter, opens_loss=True))
    none = Dealt()
    found = counted.found
    microbatch = found.get("F", none) + found.get("I", none) + found.get("W", none)
    return microbatch, found.get("V", none), found.get("U", none)


def _shadow(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
