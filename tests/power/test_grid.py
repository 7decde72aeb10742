"""Reading measured grids, and between their points."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mpcpipe.errors import PowerError
from mpcpipe.services.power.cards import card_named
from mpcpipe.services.power.grid import COLUMNS, load, load_rates
from tests.power.grids import made, write

HEAD = ",".join(COLUMNS)


def test_a_grid_is_read_as_it_was_written(tmp_path: Path) -> None:
    grid = made(noise=0.1)
    found = load(write(grid, tmp_path / "a.csv"))
    assert (found.memory_clocks_mhz, found.sm_clocks_mhz, found.batches) == (
        grid.memory_clocks_mhz,
        grid.sm_clocks_mhz,
        grid.batches,
    )
    np.testing.assert_allclose(found.latency_ms, grid.latency_ms)
    np.testing.assert_allclose(found.power_w, grid.power_w)


def test_the_language_model_of_the_examples_is_a_grid_with_a_trace() -> None:
    """A V100S serves a language model; with batches of 32 an answer takes the least energy at 997 MHz."""
    folder = Path(__file__).parents[2] / "examples" / "power"
    grid = load(folder / "v100s_qwen7b.csv")
    assert (grid.memory_clocks_mhz, len(grid.sm_clocks_mhz), grid.batches) == ((1107,), 10, (1, 2, 4, 8, 16, 32))
    energy_j = (grid.latency_ms * grid.power_w)[0, :, -1] / 1e3 / 32
    assert grid.sm_clocks_mhz[int(energy_j.argmin())] == 997
    assert energy_j.min() == pytest.approx(11.8, abs=0.05)
    assert load_rates(folder / "rate_llm_dynamic.csv").mean() == pytest.approx(5.9, abs=0.05)


def test_between_points_values_are_between_and_at_points_they_are_the_points() -> None:
    grid = made(noise=0.1)
    ms, watts = grid.at(9501, grid.sm_clocks_mhz[3], 32)
    assert ms == pytest.approx(grid.latency_ms[1, 3, 5])
    assert watts == pytest.approx(grid.power_w[1, 3, 5])
    low, high = grid.latency_ms[1, 3:5, 5].min(), grid.latency_ms[1, 3:5, 5].max()
    assert low <= grid.at(9501, (grid.sm_clocks_mhz[3] + grid.sm_clocks_mhz[4]) / 2, 32)[0] <= high
    assert grid.at(9501, 9999, 9999) == pytest.approx((grid.latency_ms[1, -1, -1], grid.power_w[1, -1, -1]))
    with pytest.raises(PowerError, match=r"memory clock of 405 MHz, only 5001, 9501"):
        grid.at(405, 540, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column 'memory_mhz'"),
        ("a,b\n1,2\n", "no column 'memory_mhz'"),
        (f"{HEAD}\n", "has no measurements"),
        (f"{HEAD}\n1,2,3,x,5\n", "line 2: a value is missing or no number"),
        (f"{HEAD}\n1,2,3,4\n", "line 2: a value is missing or no number"),
        (f"{HEAD}\n1,2,3,0,5\n", "must all be finite and above 0"),
        (f"{HEAD}\n1,2,3,nan,5\n", "must all be finite and above 0"),
        (f"{HEAD}\n1,2,3,4,5\n1,2,3,4,5\n", "line 3: memory 1 MHz, SM 2 MHz, batch 3 is there twice"),
        (f"{HEAD}\n1,2,3,4,5\n1,9,8,4,5\n", r"2 of 4 points are missing: memory 1 MHz, SM 2 MHz, batch 8; memory 1"),
    ],
)
def test_a_wrong_grid_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "wrong.csv"
    file.write_text(text)
    with pytest.raises(PowerError, match=message):
        load(file)


def test_a_grid_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PowerError, match="cannot be read"):
        load(tmp_path / "none.csv")


def test_a_lock_at_405_reads_back_as_420(tmp_path: Path) -> None:
    text = f"{HEAD}\n420,540,1,4,5\n9501,540,1,4,5\n"
    (tmp_path / "a.csv").write_text(text)
    grid = load(tmp_path / "a.csv")
    assert grid.on(card_named("rtx3080ti")).memory_clocks_mhz == (405, 9501)
    with pytest.raises(PowerError, match=r"420 MHz is none of A100.*another card"):
        grid.on(card_named("a100-40gb"))


def test_whole_clocks_and_batches_are_taken_out() -> None:
    grid = made()
    rest = grid.without(grid.sm_clocks_mhz[::2], (16,))
    assert rest.sm_clocks_mhz == grid.sm_clocks_mhz[1::2]
    assert 16 not in rest.batches
    assert rest.at(9501, rest.sm_clocks_mhz[0], 8) == pytest.approx(grid.at(9501, rest.sm_clocks_mhz[0], 8))


@pytest.mark.parametrize(
    "text", ["x\n1\n", "requests_per_second\n", "requests_per_second\n-1\n", "requests_per_second\na\n"]
)
def test_wrong_rates(tmp_path: Path, text: str) -> None:
    (tmp_path / "rates.csv").write_text(text)
    with pytest.raises(PowerError, match=r"rates\.csv"):
        load_rates(tmp_path / "rates.csv")
