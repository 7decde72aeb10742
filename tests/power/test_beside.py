"""The trainer's hooks: services are told what there is, cannot stop anything, and agree on one number."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mpcpipe.errors import PowerError
from mpcpipe.job.load import load
from mpcpipe.link.memory import MemoryNetwork
from mpcpipe.plan.schedule import build
from mpcpipe.protocol.plaintext import Plaintext
from mpcpipe.protocol.rounds import run
from mpcpipe.random.tape import PrgTape
from mpcpipe.ring.ring import Ring
from mpcpipe.runtime.beside import Beside
from mpcpipe.runtime.record import Measured
from mpcpipe.services.base import RunFacts, Service, Services, StepFacts
from mpcpipe.services.registry import service_named
from tests import tiny
from tests.runtime.crews import keys

SCHEDULE = build("sequential", (1,), 1)


class Listens(Service):
    """Keeps what it is told; `number` is what it says of itself."""

    def __init__(self, number: float | None = None) -> None:
        super().__init__({}, print)
        self.number = number
        self.told: list[Any] = []

    def begin(self, run: RunFacts) -> None:
        self.told.append(run)

    def step(self, done: StepFacts) -> None:
        self.told.append(done)

    def target_s(self) -> float | None:
        return self.number

    def agreed(self, target_s: float) -> None:
        self.told.append(target_s)

    def end(self) -> Mapping[str, Any]:
        return {"told": len(self.told)}


class Breaks(Listens):
    """Its steps fail, and so does its end."""

    closed = False

    def step(self, done: StepFacts) -> None:
        raise RuntimeError("planted")

    def close(self) -> None:
        self.closed = True
        raise OSError("planted, too")


def beside(tmp_path: Path, services: Services | None, party: int = 0, every: int = 2) -> Beside:
    job = load(tiny.columns(tmp_path), [f"services.power.exchange_every={every}"])
    p = Plaintext(party=party, ring=Ring(64), tape=PrgTape(keys(party)), compare_bits=32, parties=3)
    return Beside(services, job, p, SCHEDULE, None)


def test_services_are_told_and_their_reports_are_kept(tmp_path: Path) -> None:
    listens = Listens()
    hooks = beside(tmp_path, Services({"listens": listens}, print))
    hooks.begin(7, 100.0)
    hooks.step(3, 2, 101.0, 0.5, Measured(compute_s=0.2, wait_s=0.1), [])
    facts, done = listens.told
    assert (facts.name, facts.party, facts.parties, facts.steps, facts.origin_s) == ("alice", 0, 3, 7, 100.0)
    assert (done.step, done.steps, done.begin_s, done.end_s) == (3, 2, 101.0, 101.5)
    assert (done.step_s, done.compute_s, done.waiting_s) == (0.25, 0.2, 0.1)
    assert hooks.end() == {"services": {"listens": {"told": 2}}}
    assert beside(tmp_path, None).end() == {} == beside(tmp_path, Services({}, print)).end()


def test_a_service_that_fails_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    said: list[str] = []
    breaks, listens = Breaks(), Listens()
    hooks = beside(tmp_path, Services({"breaks": breaks, "listens": listens}, said.append))
    hooks.begin(7, 0.0)
    for step in (1, 2):
        hooks.step(step, 1, 0.0, 1.0, Measured(), [])
    assert said == [
        "the service 'breaks' is left out from now on: RuntimeError: planted",
        "the service 'breaks' could not be closed: OSError: planted, too",
    ]
    assert breaks.closed and hooks.end() == {"services": {"listens": {"told": 3}}}


def test_parties_agree_on_the_largest_number(tmp_path: Path) -> None:
    """In whole milliseconds, rounded up; a party without services takes part; only every so many steps."""
    network = MemoryNetwork(3, 1, deadline_s=60)
    own = [Listens(0.1234), None, Listens(0.2501)]

    def party(number: int) -> None:
        listens = own[number]
        services = None if listens is None else Services({"listens": listens}, print)
        hooks = beside(tmp_path / str(number), services, number)
        for step in range(1, 6):
            run(hooks.exchange(step, 1, 6), network.mesh(number, 0))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(party, range(3)))
    for listens in (own[0], own[2]):
        assert listens is not None and listens.told == [0.251, 0.251]


def test_nothing_is_sent_where_nobody_asked(tmp_path: Path) -> None:
    for hooks, step in ((beside(tmp_path, None, every=0), 2), (beside(tmp_path, None), 3), (beside(tmp_path, None), 6)):
        with pytest.raises(StopIteration):
            hooks.exchange(step, 1, 6).send(None)


def test_a_wrong_name_gets_the_right_ones() -> None:
    with pytest.raises(PowerError, match=r"no service 'powr'; did you mean 'power'\? Known: .*power"):
        service_named("powr")
