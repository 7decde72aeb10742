"""Several parties choose clocks beside the same training: by turns, so that none judges what another one did."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from mpcpipe.plan.schedule import build
from mpcpipe.runtime.record import Span
from mpcpipe.services.base import StepFacts
from mpcpipe.services.power.cards import CARDS
from mpcpipe.services.power.clockplan import Curve
from mpcpipe.services.power.control import Control
from mpcpipe.services.power.guard import Guard
from mpcpipe.services.power.pace import BASE_ERROR, PROMISED
from mpcpipe.services.power.policies.base import Scene
from mpcpipe.services.power.policies.perseus import Perseus
from mpcpipe.services.power.setting import Limits, Setting
from mpcpipe.services.power.simulated import Simulated
from mpcpipe.services.power.turns import AGAIN, BASE, LEAST_S, Turn, Turns

CARD = CARDS["a100-40gb"]
FULL = CARD.sustained_mhz
CURVE = Curve(CARD, 1215, CARD.sm_clocks_mhz)
SCHEDULE = build("sequential", (1,), 1)
UNIT_S = 0.5
LengthOf = Callable[[Sequence[float]], float]


@pytest.mark.parametrize("parties", [2, 3, 4])
@pytest.mark.parametrize("step_s", [0.05, 1.0, 30.0])
def test_turns_never_coincide_and_have_a_pause_between_them(parties: int, step_s: float) -> None:
    own: list[tuple[int, int]] = []
    for step in range(12_000):
        at = [Turns(party, parties).at(step, step_s) for party in range(parties)]
        assert at.count(Turn.OWN) <= 1
        common = {turn for turn in at if turn in (Turn.FULL, Turn.BASE)}
        assert not common or len(set(at)) == 1, "all are at full clocks, or none is asked to be"
        own += [(step, at.index(Turn.OWN))] if Turn.OWN in at else []
    assert {party for _, party in own} == set(range(parties))
    for (before, one), (after, other) in pairwise(own):
        if one != other:
            assert (after - before - 1) * step_s >= LEAST_S / 4 - step_s, "time to take a clock back"


def test_a_base_is_timed_when_all_are_at_full_clocks() -> None:
    turns = Turns(1, 3)
    assert all(turns.at(step, 1.0) is Turn.BASE for step in range(BASE))
    settle = [step for step in range(AGAIN, AGAIN + BASE + 10) if turns.at(step, 1.0) is Turn.FULL]
    assert settle == list(range(AGAIN, settle[-1] + 1)), "first they get there"
    assert all(turns.at(settle[-1] + 1 + step, 1.0) is Turn.BASE for step in range(BASE))
    assert turns.at(10**6, None) is Turn.BASE, "nothing is tried before a step's length is known"
    assert {Turns().at(step, 1.0) for step in range(2 * AGAIN)} == {Turn.OWN}, "alone, it has all steps"


class Three:
    """Three parties with a card and the service's mind each, in a time of their own. length_of: of a step, by how
    many times as long each party's computing takes as at full clocks. late: the second party
    leaves out so many of its readings after each, and the third twice as many."""

    def __init__(self, length_of: LengthOf, scatter: float, aware: bool = True, late: int = 0) -> None:
        self.now_s, self.length_of, self.scatter = 0.0, length_of, scatter
        self.unit_s, self.late, parties = UNIT_S, late, 3
        self.draw = random.Random(0)
        self.said: list[str] = []
        self.cards = [Simulated(CARD, party, now=lambda: self.now_s) for party in range(parties)]
        self.guards = [Guard(card, self.said.append, now=lambda: self.now_s) for card in self.cards]
        self.controls = []
        for party, guard in enumerate(self.guards):
            mine = (party, parties) if aware else (0, 1)
            at = Scene(CARD, CARD.sm_clocks_mhz, (1215,), (1,), Setting(), party=mine[0], parties=mine[1])
            self.controls.append(Control(Perseus(at), Limits(), guard.can, SCHEDULE, self.said.append, CURVE.busy_w))
        self.clocks: list[tuple[int, ...]] = []
        self.lengths: list[float] = []

    def run(self, steps: int) -> None:
        """Steps of about half a second; the parties look at them in turn, a sixth of a second apart."""
        for _ in range(steps):
            clocks = tuple(card.sm_clock_mhz for card in self.cards)
            slower = [CURVE.slower(clock) for clock in clocks]
            self.clocks.append(clocks)
            self.lengths.append(self.length_of(slower))
            step_s = self.unit_s * self.lengths[-1] * (1 + abs(self.draw.gauss(0.0, self.scatter)))
            begin_s = self.now_s
            for party, (card, guard, control) in enumerate(zip(self.cards, self.guards, self.controls, strict=True)):
                self.now_s = begin_s + (party + 1) / len(self.cards) * step_s
                card.work(0.05)
                if len(self.lengths) % (1 + self.late * party):
                    continue
                wanted = control.tick(self.now_s, guard.read())
                if wanted != guard.setting:
                    guard.apply(wanted)
            for control, by in zip(self.controls, slower, strict=True):
                third_s, waited_s = step_s / 3, (step_s - 0.05 * self.unit_s * by) / 3
                begins = [begin_s + third_s * number for number in range(3)]
                own = [Span("0.0", f"0{what}", at, at + third_s, waited_s, 0.0)
                       for what, at in zip(("F0", "B0", "U"), begins, strict=True)]  # fmt: skip
                control.step(StepFacts(len(self.lengths), 1, begin_s, self.now_s, 0.05 * self.unit_s * by, step_s, own))


LENGTHS: dict[str, LengthOf] = {
    "in lock step: the slowest decides": lambda by: 1 + 0.04 * (max(by) - 1),
    "one after another: all add up": lambda by: 1 + 0.02 * sum(each - 1 for each in by),
}


@pytest.mark.parametrize(
    ("length_of", "scatter"), [(length_of, scatter) for length_of in LENGTHS.values() for scatter in (0.0, 0.005)]
)
def test_three_parties_converge_within_what_one_may_take(length_of: LengthOf, scatter: float) -> None:
    """Together, steps get no longer than is promised; clocks come to rest, and go down in their party's turn only."""
    three = Three(length_of, scatter, late=3)
    three.run(700)
    assert three.said == []
    assert max(three.lengths[-200:]) <= 1 + 1.5 * PROMISED, "while a clock is tried"
    assert sum(three.lengths[-200:]) / 200 <= 1 + PROMISED + (BASE_ERROR if scatter else 0.0)
    assert min(three.clocks[-1]) <= 1250 < FULL, "and some of what there is was taken"
    changed = {party: [] for party in range(3)}  # type: dict[int, list[int]]
    for step, (before, after) in enumerate(pairwise(three.clocks), 1):
        for party in range(3):
            if before[party] != after[party]:
                changed[party].append(step)
    for party, steps in changed.items():
        lower = [step for step in steps if three.clocks[step][party] < three.clocks[step - 1][party]]
        own = [step for step in lower if any(Turns(party, 3).at(step - back, UNIT_S) is Turn.OWN for back in range(8))]
        assert lower == own, "no clock is tried in another party's turn"
    assert sum(len(steps) for steps in changed.values()) < 60, "they do not hunt one another"


def test_parties_that_do_not_know_of_each_other_make_steps_longer_and_longer() -> None:
    """Why there are turns: each takes what the others did for the network's doing, and its allowance on top of it."""
    alone = Three(next(iter(LENGTHS.values())), 0.0, aware=False, late=3)
    alone.run(700)
    assert sum(alone.lengths[-200:]) / 200 > 1 + 2 * PROMISED


def test_a_network_that_gets_slower_is_seen_at_the_next_base() -> None:
    """Steps a fifth longer, whatever the clocks are: a new base, and the clocks come down again."""
    slow = [1.0]
    three = Three(lambda by: slow[0] + 0.04 * (max(by) - 1), 0.0)
    three.run(300)
    before = three.clocks[-1]
    assert min(before) < FULL
    slow[0] = 1.2
    three.run(200)
    assert three.clocks[-1] == (FULL,) * 3, "late at all clocks: nobody takes that for a new base alone"
    three.run(900)
    assert max(three.clocks[-1]) < FULL and three.lengths[-1] <= 1.2 * (1 + PROMISED)
