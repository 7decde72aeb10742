"""The derived V100S against the figures that it is derived from."""

from __future__ import annotations

import pytest

from mpcpipe.errors import PowerError
from mpcpipe.services.power.cards import card_named
from mpcpipe.services.power.model import idle_w
from mpcpipe.services.power.v100s import v100s_grid


def test_power_is_that_of_the_published_table() -> None:
    grid = v100s_grid(card_named("v100s"), "densenet201")
    # Watts that GREENDLS's authors measured, by batch and clock.
    for batch, clock, watts in (
        (128, 1597, 150.4),
        (128, 1357, 109.4),
        (64, 1597, 115.6),
        (64, 1357, 86.0),
        (4, 1597, 57.1),
    ):
        assert grid.at(1107, clock, batch)[1] == pytest.approx(watts, rel=0.09)


def test_a_running_network_takes_more_than_an_idle_card() -> None:
    card = card_named("v100s")
    for network in ("densenet201", "resnet50", "vgg19"):
        grid = v100s_grid(card, network)
        for column, clock in enumerate(grid.sm_clocks_mhz):
            assert (grid.power_w[0, column] > idle_w(card, 1107, clock)).all()


def test_latency_is_that_of_the_published_fit() -> None:
    grid = v100s_grid(card_named("v100s"), "vgg19")
    at_16 = (-0.005 * 16**2 + 158.2 * 16 + 44.5) / 100.188 + 0.926
    assert grid.at(1107, 1597, 16)[0] == pytest.approx(at_16 * 1530 / 1597)
    # All of it is as slow as the clock.
    assert grid.latency_ms[0, 0, 3] / grid.latency_ms[0, -1, 3] == pytest.approx(1597 / 517)


def test_a_network_that_nobody_measured() -> None:
    with pytest.raises(PowerError, match=r"no network 'resnet'.*did you mean 'resnet50'"):
        v100s_grid(card_named("v100s"), "resnet")
