"""What a training shows of what its parties say."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpcpipe.cli.training import Drawn
from mpcpipe.job.load import load
from tests import tiny


def test_what_parties_say_alike_is_written_out_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whose it is stays plain, also of what only one of them says."""
    drawn = Drawn(load(tiny.columns(tmp_path), []))
    long = "services.power.cap_w = 60 is below what the card may draw under full load, 85 W; it is kept as it can be"
    for party, text in ((1, long), (0, long), (2, "power cap: none from now on"), (2, long)):
        drawn({"event": "note", "party": party, "text": text})
    assert capsys.readouterr().err.splitlines() == [
        f"bob: {long}",
        "alice, like bob: services.power.cap_w = 60 is below what the card may draw ...",
        "carol: power cap: none from now on",
        "carol, like bob: services.power.cap_w = 60 is below what the card may draw ...",
    ]
    drawn({"event": "note", "party": 1, "text": long})
    assert "bob: services" in capsys.readouterr().err, "its own second time is no other party's"
