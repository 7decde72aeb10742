"""From a job's [pipeline] to workers: what cannot be carried out is a PlanError that says where and what would be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mpcpipe.errors import PlanError
from mpcpipe.job.load import load
from mpcpipe.job.model import build_chain
from mpcpipe.runtime.pipeline import Arrangement, arrange
from tests import tiny

GOOD = """\
schedule mine: slots 1 1, micro-batches 2, steps 1
0.0   | 0F0 0F1 0B0 0B1 0U
1.0   | 1F0 1B0 1F1 1B1 1U
"""
FILES = {
    "good": GOOD,
    "deadlock": GOOD.replace("0F0 0F1 0B0 0B1", "0F0 0B0 0F1 0B1").replace("1F0 1B0 1F1 1B1", "1F1 1B1 1F0 1B0"),
    "junk": "hello\n",
    "empty": "",
}
TWO = ("pipeline.stages=[0,2]", "pipeline.microbatches=2")


def arranged(folder: Path, *changes: str) -> Arrangement:
    job = tiny.columns(folder)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "bytes").write_bytes(b"\xff\xfe\x00")
    files = [
        f'{key}="{folder / name}"' for key, _, name in (c.partition("=") for c in changes) if key == "pipeline.file"
    ]
    described = load(job, [*(c for c in changes if not c.startswith("pipeline.file=")), *files])
    return arrange(described, build_chain(described)[1].layers)


def test_a_schedule_of_ones_own(tmp_path: Path) -> None:
    found = arranged(tmp_path, *TWO, "pipeline.file=good")
    assert (found.schedule.name, found.firsts) == ("mine", (0, 2))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            ("pipeline.stages=[0,5]",),
            "stages = [0, 5]: there is no layer 5; the model has layers 0 to 2. The layers are",
        ),
        (("pipeline.stages=[0,2,1]",), "stages = [0, 2, 1]: 1 comes after 2, but first layers must rise"),
        (("pipeline.stages=[0,1,1]",), "stages = [0, 1, 1]: 1 comes after 1, but first layers must rise"),
        (("pipeline.stages=[1]",), "the first stage begins with layer 0"),
        (("pipeline.slots=[3]", "pipeline.microbatches=2", "pipeline.schedule=1f1b"), "3 slots for 2 micro-batches"),
        (("pipeline.slots=[1,1]",), "pipeline.slots has 2 numbers; pipeline.stages makes 1 stages"),
        ((*TWO, "pipeline.file=deadlock"), "deadlock: schedule 'mine', worker 0.0, at 0B0 (action 1): deadlock"),
        ((*TWO, "pipeline.file=nowhere"), "nowhere cannot be read: No such file or directory"),
        ((*TWO, "pipeline.file=bytes"), "bytes is no text"),
        ((*TWO, "pipeline.file=junk"), "junk: line 1 of the schedule is 'hello'; it must begin with"),
        ((*TWO, "pipeline.file=empty"), "empty: "),
        (("pipeline.file=good",), "good is for 2 stages and 2 micro-batches; the job has 1 and 1"),
        (
            (*TWO[:1], "pipeline.microbatches=4", "pipeline.file=good"),
            "2 stages and 2 micro-batches; the job has 2 and 4",
        ),
        (("pipeline.stages=auto", "pipeline.file=good"), '"auto" leaves open which: say pipeline.stages and'),
    ],
)
def test_what_cannot_be_carried_out(tmp_path: Path, changes: tuple[str, ...], says: str) -> None:
    with pytest.raises(PlanError, match=re.escape(says)) as caught:
        arranged(tmp_path, *changes)
    assert "pipeline.file" in str(caught.value) or not any("file" in change for change in changes)
