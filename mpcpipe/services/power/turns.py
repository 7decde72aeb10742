"""Whose turn it is to try clocks: by the number of the step, which all parties know, so nothing is said.

    step   0 ............... 68 . . . . . . . . . . . . . . . . . . . . . . 1000 ..................
           all at full clocks:  | 0   own | 1   own | 2   own | 0   own |   all go to full clocks:
           the base             |settle   |settle   |settle   |settle   |   settle, the base

Every party's clock changes the step of all. So a step says something of a clock only while the others leave theirs as
they are; and how long a step takes at full clocks, only while all are at theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

BASE = 68
"""Steps that all parties spend at full clocks for a base."""

AGAIN, MOST_AGAIN = 1000, 4000
"""Steps from one base to the next: doubled each time, up to so many."""

LEAST_STEPS, LEAST_S = 32, 12.0
"""A turn is a power of two of steps, at least so many, and takes so long at least: a clock changes at most every two
seconds, and a quarter of the turn is for the clock of the party before to be what it was."""


class Turn(Enum):
    """What a party does in a step."""

    FULL = "all go to full clocks"
    BASE = "all are at full clocks"
    OWN = "it may try clocks, and judges its own"
    OTHERS = "it keeps its clock"


@dataclass(frozen=True)
class Turns:
    """Of one party. A party alone has all steps, and times its base when it likes."""

    party: int = 0
    parties: int = 1

    @property
    def alone(self) -> bool:
        """There is nobody to take turns with."""
        return self.parties == 1

    def at(self, step: int, step_s: float | None) -> Turn:
        """step: counted from the first of this run. step_s: how long one takes at full clocks, of which all parties
        know the same; None: that is not known yet."""
        if self.alone:
            return Turn.OWN
        if step_s is None:
            return Turn.BASE
        length = LEAST_STEPS
        while length * step_s < LEAST_S:
            length *= 2
        since = step - _base_before(step)
        settle = length // 4 if since < step else 0
        if since < settle + BASE:
            return Turn.FULL if since < settle else Turn.BASE
        turn, at = divmod(step, length)
        return Turn.OWN if turn % self.parties == self.party and at >= length // 4 else Turn.OTHERS


def _base_before(step: int) -> int:
    """The step at which all were last asked to go to full clocks."""
    begins, apart = 0, AGAIN
    while begins + apart <= step:
        begins += apart
        apart = min(2 * apart, MOST_AGAIN)
    return begins
