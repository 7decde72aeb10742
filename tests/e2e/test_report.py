"""A pipelined training run by the real command line, and the report that it leaves."""

from __future__ import annotations

import json
import re
from pathlib import Path

from click.testing import CliRunner

from mpcpipe.cli.report import report
from mpcpipe.report.events import read_run
from tests import tiny
from tests.report.html import parse
from tests.running import Run

STEPS, MICROBATCHES = 4, 2


def test_train_then_report(tmp_path: Path) -> None:
    job = tiny.columns(tmp_path / "job")
    changes = (
        f"train.steps={STEPS}",
        "pipeline.stages=[0, 2]",
        "pipeline.schedule=1f1b",
        f"pipeline.microbatches={MICROBATCHES}",
        "reveal.loss_every=2",
        "model.reveal_to=alice",
    )
    run = Run(job.parent, "train", job, *(word for change in changes for word in ("--set", change)), "--timeline")
    try:
        run.ok()
    finally:
        run.close()
    assert re.search(rf"^step {STEPS}, alice\n0\.0 │.*│\n1\.0 │.*│\n", run.out, re.MULTILINE), run.story()
    (folder,) = (job.parent / "runs").iterdir()

    found = read_run(folder)
    assert found.names == ("alice", "bob", "carol") and found.notes == ()
    assert found.steps == tuple(range(1, STEPS + 1))
    assert found.result["loss_steps"] == [2, 4] and len(found.result["losses"]) == 2
    for party in found.parties:
        actions = [event.action for event in party.of(1) if event.worker == "1.0"]
        assert actions == ["1F0", "1B0", "1F1", "1B1", "1U"]
        for event in party.events:
            assert event.wait_s + event.idle_s <= event.end_s - event.begin_s + 1e-5
            assert all(event.begin_s <= a < b <= event.end_s for a, b in event.waits)
    # What nobody but its owner may know is in none of the files that all can read.
    for name in ("job.toml", "result.json", *(f"events.{party}.jsonl" for party in found.names)):
        assert "npz" not in (folder / name).read_text()

    summary = json.loads(
        CliRunner().invoke(report, [str(folder), "--json", "-"], catch_exceptions=False, standalone_mode=False).output
    )
    assert summary["opened_as_checked"] is True and summary["notes"] == []
    text = (folder / "report.html").read_text()
    assert str(tmp_path) not in text
    root = parse(text)
    lanes = root.all("figure", class_="timeline")[0].all("g", class_="lane")
    assert [lane.attributes["data-worker"] for lane in lanes] == 3 * ["0.0", "1.0"]
    # The dry run of the layers says what alice sends in a step without a loss: only bob's labels are not in it.
    sent = sum(event.sent_bytes or 0 for event in found.parties[0].of(3))
    kinds = ("forward_bytes", "backward_bytes", "update_bytes")
    assert sum(layer[kind] for layer in summary["layers"] for kind in kinds) == sent
