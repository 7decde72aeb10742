"""Who shares the machine that a plan is made for."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpcpipe.job.load import load
from mpcpipe.runtime.planning import plan_here
from tests import tiny


@pytest.mark.parametrize(("overrides", "parties"), [((), 3), (('protocol.store="dealt"',), 2)])
def test_a_dealer_that_has_dealt_takes_nothing_of_the_cores(
    overrides: tuple[str, ...], parties: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    job = load(tiny.columns(tmp_path), ('protocol.name="additive2"', *overrides))
    plan = plan_here(job)
    assert plan.cores == pytest.approx(plan_here(load(tiny.columns(tmp_path))).cores * 3 / parties)
