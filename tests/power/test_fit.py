"""Fits find physics that is known, and predict what was held out whole."""

from __future__ import annotations

import numpy as np
import pytest

from mpcpipe.errors import PowerError
from mpcpipe.services.power.fit import fit, minimise
from mpcpipe.services.power.heldout import held_out
from mpcpipe.services.power.residual import Residual
from tests.power.grids import LARGE, LAUNCHES, made, measured, one_memory

ALL = -1


def test_a_least_squares_problem_with_a_known_answer() -> None:
    x = np.linspace(0.0, 1.0, 50)
    found, error = minimise(
        lambda p: p[0] * np.exp(-p[1] * x) - 2.0 * np.exp(-3.0 * x), np.array([1.0, 1.0]), np.zeros(2)
    )
    np.testing.assert_allclose(found, [2.0, 3.0], rtol=1e-4)
    assert error < 1e-8


@pytest.mark.parametrize("roofline", [LARGE, LAUNCHES], ids=["large", "launches"])
def test_exact_physics_is_found_again(roofline: object) -> None:
    grid = made(roofline)  # type: ignore[arg-type]
    learned = fit(grid.without(grid.sm_clocks_mhz[1::2], grid.batches[1:-1:2]))
    for m, memory in enumerate(grid.memory_clocks_mhz):
        ms, watts = learned.predict(memory, np.array(grid.sm_clocks_mhz, float), np.array(grid.batches, float))
        assert float(np.mean(np.abs(ms / grid.latency_ms[m] - 1))) < 0.01
        assert float(np.mean(np.abs(watts / grid.power_w[m] - 1))) < 0.01


@pytest.mark.parametrize(
    "grid",
    [
        made(LAUNCHES, noise=0.03, tile=0.1, seed=1),
        one_memory(tuple(range(210, 1411, 120)), noise=0.03),
        one_memory((300, 600, 900, 1200, 1500), batches=(1, 3, 10, 30, 100), noise=0.02, tile=0.05),
    ],
    ids=["noisy with tiles", "one memory clock", "another card, few points"],
)
def test_grids_never_seen_are_predicted_within_six_percent(grid: object) -> None:
    rows = held_out(grid, fit)  # type: ignore[arg-type]
    assert rows[ALL].latency_mape < 0.06
    assert rows[ALL].energy_mape < 0.06


@pytest.mark.parametrize("network", ["resnet50", "densenet201"])
def test_the_published_grids_within_six_percent_on_clocks_and_batches_held_out_whole(network: str) -> None:
    grid = measured(network)
    learned = fit(grid.without(grid.sm_clocks_mhz[1::2], grid.batches[1:-1:2]))
    latency, energy = [], []
    rows, columns = np.arange(1, len(grid.sm_clocks_mhz), 2), np.arange(1, len(grid.batches) - 1, 2)
    for m, memory in enumerate(grid.memory_clocks_mhz):
        b = np.array(grid.batches, float)[columns]
        ms, watts = learned.predict(memory, np.array(grid.sm_clocks_mhz, float)[rows], b)
        latency.append(np.abs(ms / grid.latency_ms[m][np.ix_(rows, columns)] - 1))
        energy.append(np.abs(ms * watts / b / grid.energy_mj[m][np.ix_(rows, columns)] - 1))
    assert float(np.mean(latency)) < 0.06
    assert float(np.mean(energy)) < 0.06


def test_a_residual_follows_its_points_stays_beyond_the_clocks_and_fades_beyond_the_batches() -> None:
    clocks, batches = (500, 700, 1000, 1400), (1, 4, 16, 64)
    values = 0.1 * np.sin(np.arange(2 * 4 * 4)).reshape(2, 4, 4)
    smooth = np.broadcast_to(np.array([0.1, 0.1, -0.1, -0.1])[None, :, None], (2, 4, 4))
    found = Residual.learn(smooth, clocks, batches).at(0, np.array(clocks, float), np.array(batches, float))
    np.testing.assert_allclose(found, smooth[0], atol=0.02)
    learned = Residual.learn(values, clocks, batches)
    assert abs(float(learned.at(0, np.array([700.0]), np.array([2.0**60]))[0, 0])) < 0.01
    edge = learned.at(0, np.array([500.0, 1400.0]), np.array([4.0]))
    np.testing.assert_array_equal(learned.at(0, np.array([210.0, 9999.0]), np.array([4.0])), edge)


def test_too_small_a_grid_cannot_hold_anything_out() -> None:
    with pytest.raises(PowerError, match="too few to hold any out"):
        held_out(made(clocks=(600, 1200), batches=(1, 2)), fit)


def test_a_memory_clock_that_was_not_measured_is_refused() -> None:
    learned = fit(made(clocks=(600, 900, 1200), batches=(1, 8, 64)), residuals=False)
    with pytest.raises(PowerError, match="fitted for memory clocks 5001, 9501 MHz, not for 810"):
        learned.alone(810, 900, 8)


def test_the_papers_predictors_learn_what_they_saw() -> None:
    pytest.importorskip("sklearn")
    from mpcpipe.services.power.predictors import boosted_trees, gaussian_process

    grid = made(clocks=(600, 900, 1200, 1500), batches=(1, 4, 16, 64))
    for learned in (boosted_trees(grid), gaussian_process(grid)):
        ms, watts = learned.predict(9501, np.array(grid.sm_clocks_mhz, float), np.array(grid.batches, float))
        np.testing.assert_allclose(ms, grid.latency_ms[1], rtol=0.05)
        np.testing.assert_allclose(watts, grid.power_w[1], rtol=0.05)


def test_predicted_power_rises_with_the_clock_below_the_grid_too() -> None:
    learned = fit(made(LAUNCHES, noise=0.05, seed=3))
    for batch in (8, 64):
        watts = [learned.alone(9501, clock, batch)[1] for clock in range(210, 541, 30)]
        assert watts == sorted(watts)
