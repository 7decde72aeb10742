"""The simulated server: requests are neither lost nor doubled, time and energy add up."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcpipe.errors import PowerError
from mpcpipe.services.power.policies.batching import Fill
from mpcpipe.services.power.server import Server
from mpcpipe.services.power.serving import Interval, serve_all
from mpcpipe.services.power.serving_plant import ServingPlant
from mpcpipe.services.power.setting import Limits, Setting
from mpcpipe.services.registry import build
from tests.power.serving_world import FAST, SLOW, Line, flat_card, scene


def server(times: list[float], **options: bool) -> Server:
    plant = ServingPlant(flat_card(), Line(), Setting(FAST, 1107, 1), jitter=0.0)
    return Server(np.array(times), plant, **options)


def test_a_batch_waits_until_it_is_full_and_the_latency_is_that_of_each_request() -> None:
    simulated = server([0.0, 0.1, 0.2])
    batch = simulated.serve(Setting(batch=3))
    # Full at 0.2 s, 4 ms for three at 1200 MHz; 10 W while waiting, 100 W while running.
    assert (batch.start_s, batch.count) == (0.2, 3)
    assert batch.finish_s == pytest.approx(0.204)
    assert simulated.latencies_s() == pytest.approx([0.204, 0.104, 0.004])
    assert batch.waiting_j == pytest.approx(2.0) and batch.busy_j == pytest.approx(0.4)
    assert simulated.done


def test_a_batch_starts_when_its_time_is_up_with_what_has_come() -> None:
    simulated = server([0.0, 0.1, 0.2])
    assert simulated.serve(Setting(batch=3), Fill(until_s=0.15)).count == 2
    assert simulated.batches[0].start_s == 0.15
    # No request waits any more: the next batch cannot start before the third request.
    assert simulated.serve(Setting(batch=3), Fill(until_s=0.16)).start_s == 0.2


def test_the_authors_batches_start_with_one_request_more_in_the_queue() -> None:
    simulated = server([0.0, 0.1, 0.2, 0.3], more_than=True)
    batch = simulated.serve(Setting(batch=2))
    assert (batch.start_s, batch.count) == (0.2, 2)


def test_clocks_rest_while_a_batch_fills_and_are_back_late_if_woken_late() -> None:
    simulated = server([0.0, 0.1])
    rest = Fill(meanwhile=Setting(SLOW, 1107))
    # Woken when it is full: the change takes 10 ms. The batch of 2 needs 3 ms at 1200 MHz and 6 ms at 600 MHz, so it
    # is done before the fast clock is there.
    assert simulated.serve(Setting(FAST, 1107, 2), rest).exec_s == pytest.approx(0.006)
    simulated = server([0.0, 0.1])
    early = Fill(meanwhile=Setting(SLOW, 1107), wake_s=0.09 - 1e-9)
    assert simulated.serve(Setting(FAST, 1107, 2), early).exec_s == pytest.approx(0.003)


def test_a_change_in_the_middle_of_a_batch_counts_from_there() -> None:
    simulated = server([0.0] * 19)
    # 19 requests: 20 ms at 1200 MHz, 40 ms at 600 MHz. The first 10 ms run at 1200 MHz: half of the work.
    batch = simulated.serve(Setting(SLOW, 1107, 19))
    assert batch.exec_s == pytest.approx(0.010 + 0.020)
    assert batch.busy_j == pytest.approx(0.010 * 100 + 0.020 * 60)


@settings(max_examples=40, deadline=None)
@given(
    gaps=st.lists(st.floats(0.0, 0.05), min_size=1, max_size=60),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    until=st.one_of(st.none(), st.floats(0.0, 0.1)),
)
def test_requests_are_served_once_in_order_and_energy_is_the_sum_of_its_parts(
    gaps: list[float], sizes: list[int], until: float | None
) -> None:
    times = np.cumsum(gaps)
    simulated = Server(times, ServingPlant(flat_card(), Line(), Setting(FAST, 1107, 1), seed=1))
    number = 0
    while not simulated.done:
        fill = Fill(until_s=None if until is None else simulated.now_s + until)
        simulated.serve(Setting((SLOW, FAST)[number % 2], 1107, sizes[number % len(sizes)]), fill)
        number += 1
    batches = simulated.batches
    assert [batch.first for batch in batches] == np.cumsum([0, *(batch.count for batch in batches)])[:-1].tolist()
    assert sum(batch.count for batch in batches) == len(times)
    for batch in batches:
        assert batch.start_s >= times[batch.first + batch.count - 1]
    assert all(later.start_s >= earlier.finish_s for earlier, later in itertools.pairwise(batches))
    assert simulated.plant.energy_j == pytest.approx(sum(batch.waiting_j + batch.busy_j for batch in batches))
    assert simulated.plant.busy_s == pytest.approx(sum(batch.exec_s for batch in batches))


def test_the_rate_is_that_of_the_last_two_seconds() -> None:
    simulated = server([i / 10 for i in range(100)])
    simulated.plant.idle_until(5.0)
    assert simulated.rate_per_s() == pytest.approx(10.0)


def test_gross_and_net_are_told_apart() -> None:
    times = np.arange(200) / 100
    plant = ServingPlant(flat_card(), Line(), scene().start, jitter=0.0)
    outcome, _ = serve_all(build("clipper-variant", scene()), plant, times, Limits(slo_s=0.1), seed=0)
    assert outcome.requests == 200
    # 10 W at rest are in the gross figure and not in the net one; nothing else differs.
    assert outcome.gross_j - outcome.net_j == pytest.approx(10.0 * outcome.duration_s)
    # What is left is what the runs take beyond 10 W: 90 W at 1200 MHz.
    assert outcome.net_j == pytest.approx(90.0 * outcome.busy_share * outcome.duration_s)


def test_intervals_are_students() -> None:
    # Mean 2, standard deviation 1, n = 3, t(0.975, 2) = 4.303.
    interval = Interval.of([1.0, 2.0, 3.0])
    assert interval.mean == 2.0 and interval.half == pytest.approx(4.303 / 3**0.5)


def test_a_trace_without_requests_is_refused() -> None:
    with pytest.raises(PowerError, match="no request arrives"):
        server([])


def test_a_policy_that_chooses_a_clock_that_is_not_there_is_named() -> None:
    with pytest.raises(PowerError, match="mine chose an SM clock of 777 MHz"):
        server([0.0]).serve(Setting(777, 1107, 1), who="mine")
