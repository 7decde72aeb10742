"""Workers that share no memory give the bits of workers that do: every schedule, every protocol, every optimizer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mpcpipe.errors import PlanError
from mpcpipe.launch.ranks import check_processes
from mpcpipe.nn.adam import Adam
from mpcpipe.plan.schedule import SCHEDULES, build
from mpcpipe.protocol.additive2 import Additive2
from mpcpipe.protocol.base import Opening
from mpcpipe.protocol.replicated4 import Replicated4
from tests.launch import apart
from tests.runtime import crews
from tests.runtime.test_pipeline import SHAPE, assert_equal, sequential, small_net

THIRDS, QUARTERS = [0, 3, 6], [0, 2, 3, 6]


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name not in ("async", "sequential")])
def test_every_exact_schedule_gives_the_sequential_bits(name: str) -> None:
    firsts = QUARTERS if name == "interleaved" else THIRDS
    assert_equal(apart.train(small_net, SHAPE, firsts, build(name, [1] * len(firsts), 4)), sequential(4))


def test_async_gives_the_bits_of_threads() -> None:
    schedule = build("async", [1, 1, 1], 4, 3)
    wanted = crews.train(small_net, SHAPE, THIRDS, schedule)
    assert_equal(apart.train(small_net, SHAPE, THIRDS, schedule), wanted)


def test_evidence_goes_along_and_openings_come_back() -> None:
    alone, schedule, opened = build("sequential", [1], 4), build("1f1b", [1, 1, 1], 4), list[Opening]()
    both = {"steps": 2, "kind": Replicated4, "reveal_loss": True}
    wanted = crews.train(small_net, SHAPE, [0], alone, **both)
    found = apart.train(small_net, SHAPE, THIRDS, schedule, openings=opened, **both)
    assert_equal(found, wanted)
    assert [opening.why for opening in opened] == ["loss of step 1", "loss of step 2"]


def test_a_dealer_takes_part() -> None:
    wanted = crews.train(small_net, SHAPE, [0], build("sequential", [1], 4), kind=Additive2)
    found = apart.train(small_net, SHAPE, THIRDS, build("zero-bubble", [1, 1, 1], 4), kind=Additive2)
    assert_equal(found[:2], wanted[:2])
    assert all(value.is_meta for value in found[2].values())


def with_norm() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(108, 4), nn.ReLU(), nn.Linear(4, 3)),
    )


def test_running_statistics_and_adam_come_back() -> None:
    schedule, cut = build("1f1b", [1, 1], 2), [0, 4]
    found = apart.train(with_norm, SHAPE, cut, schedule, steps=2, optimizer=Adam)
    alone = apart.train(with_norm, SHAPE, [0], build("sequential", [1], 2), steps=2, optimizer=Adam)
    assert_equal(found, alone)
    assert any("running" in name for name in found[0])


def test_two_slots_would_have_to_share_memory() -> None:
    with pytest.raises(PlanError, match=r"stage 1 2 slots.*one slot a stage"):
        check_processes(build("1f1b", [1, 2], 4))


def test_the_first_worker_that_fails_ends_all() -> None:
    def wrong(*_: object) -> torch.Tensor:
        raise ValueError("the loss is wrong")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("mpcpipe.nn.loss.CrossEntropy.forward_grad", wrong)
        with pytest.raises(Exception, match=r"the loss is wrong|worker 2\): stopped by an unexpected ValueError"):
            apart.train(small_net, SHAPE, THIRDS, build("1f1b", [1, 1, 1], 4))
