"""The agent in examples/power does what its page says."""

from __future__ import annotations

from pathlib import Path

import mpcpipe
from mpcpipe.services.power.cards import card_named
from mpcpipe.services.power.requests import Rates
from mpcpipe.services.power.serving import Bench, compare, savings
from mpcpipe.services.power.v100s import v100s_grid
from mpcpipe.services.power.world import World

EXAMPLE = Path(mpcpipe.__file__).parents[1] / "examples" / "power"


def test_it_saves_energy_and_keeps_the_objective() -> None:
    card = card_named("v100s")
    world = World(card, v100s_grid(card, "densenet201"))
    bench = Bench(world, Rates.read(EXAMPLE / "rate.csv").first(30), slo_s=0.2)
    agent = EXAMPLE / "v100s_densenet201.safetensors"
    assert agent.stat().st_size < 200_000
    outcomes = compare(bench, ["greendls", "clipper-variant"], [0, 1], {"greendls": {"weights": agent}})
    gross, net = savings(outcomes, "greendls", "clipper-variant")
    assert gross.mean > 0.05 and net.mean > gross.mean
    assert all(outcome.violation_share < 0.01 for outcome in outcomes["greendls"])
    # The same requests for both.
    pairs = zip(outcomes["greendls"], outcomes["clipper-variant"], strict=True)
    assert all(ours.requests == theirs.requests for ours, theirs in pairs)
