"""Killed at any moment, by SIGKILL, as real processes; what goes on from the checkpoint ends as if nothing had been."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from mpcpipe.checkpoint.shard import Shard, read
from mpcpipe.runtime.events import Event
from tests import tiny
from tests.fleet import Fleet

QUICK = ("checkpoint.every=2", "evaluate.how=none", "reveal.loss_every=1", "train.optimizer=sgd")
FOUR = ('parties.names=["alice","bob","carol","dave"]', "protocol.name=replicated4")


@dataclass(frozen=True)
class Case:
    """A job, which party is killed and when; `goes_on`: what is different when it goes on, of `job`."""

    job: tuple[str, ...]
    victim: int
    goes_on: tuple[str, ...] = ()


CASES = {
    "3 parties, adam, norm": Case(("train.optimizer=adam", "model.args.norm=true", "train.schedule=cosine"), 0),
    "a dealer, nesterov": Case(("protocol.name=additive2", "train.nesterov=true", "train.warmup_steps=6"), 1),
    "a dealer that dies": Case(("protocol.name=additive2", "data.sharing=once"), 2),
    "4 parties": Case((*FOUR, "train.schedule=stepped", "train.weight_decay=0.01"), 3),
    "another cut": Case(
        ("pipeline.microbatches=2",), 2, ("pipeline.stages=[0,2]", "pipeline.slots=[2,1]", "pipeline.schedule=1f1b")
    ),
    "no pipeline any more": Case(
        ("pipeline.microbatches=2", "pipeline.stages=[0,1,2]", "pipeline.schedule=gpipe"),
        1,
        ("pipeline.stages=[0]", "pipeline.schedule=sequential"),
    ),
    "async, at its flushes": Case(
        ("pipeline.microbatches=2", "pipeline.stages=[0,2]", "pipeline.schedule=async", "train.epochs=3"), 0
    ),
}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.columns(tmp_path_factory.mktemp("job"))


def step_of(event: Event, step: int, party: int) -> bool:
    return event["event"] == "step" and event["step"] >= step and event["party"] == party


def phase_of(event: Event, phase: str, step: int, party: int) -> bool:
    return event["event"] == "checkpoint" and (event["phase"], event["step"], event["party"]) == (phase, step, party)


def killed(
    job: Path, run: Path, settings: Sequence[str], victim: int, when: Callable[[Event], bool], **more: object
) -> Fleet:
    """A run whose party `victim` is killed at an event; the others then end by themselves, and say why."""
    with Fleet(job, run, settings, **more) as fleet:  # type: ignore[arg-type]
        assert fleet.until(when) is not None, fleet.story()
        fleet.kill(victim)
        codes = fleet.finish()
        assert codes[victim] == -9 and all(code == 12 for i, code in enumerate(codes) if i != victim), fleet.story()
    return fleet


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_was_killed_goes_on_to_the_same_bits(job: Path, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    settings = (*QUICK, *case.job)
    with Fleet(job, tmp_path / "whole", settings) as fleet:
        whole = fleet.ok()
    killed(job, tmp_path / "cut", settings, case.victim, lambda event: step_of(event, 5, case.victim))
    with Fleet(job, tmp_path / "on", (*settings, *case.goes_on), resume=tmp_path / "cut") as fleet:
        resumed = fleet.ok()
    assert resumed["checkpoints"]["resumed_from"] in (4, 6, 8)  # others may have been ahead; async: after an epoch
    assert resumed["model_sha256"] == whole["model_sha256"]
    assert resumed["losses"] == whole["losses"] and resumed["loss_steps"] == whole["loss_steps"]
    assert len(resumed["steps_s"]) == len(whole["steps_s"]) - resumed["checkpoints"]["resumed_from"]


def test_workers_that_are_processes_go_on_with_the_new_shares(job: Path, tmp_path: Path) -> None:
    """The first worker of a party takes the checkpoints; the others hold most of the model."""
    settings = (*QUICK, "pipeline.microbatches=2", "data.sharing=once")
    processes = ("pipeline.stages=[0,2]", "pipeline.schedule=1f1b", "pipeline.workers=processes")
    with Fleet(job, tmp_path / "whole", settings) as fleet:
        whole = fleet.ok()["model_sha256"]
    with Fleet(job, tmp_path / "cut", (*settings, *processes), workers=2) as fleet:
        assert fleet.until(lambda event: step_of(event, 5, 0)) is not None, fleet.story()
        fleet.kill(3)
        assert fleet.finish() == [12, 12, 12, -9, 12, 12], fleet.story()
    with Fleet(job, tmp_path / "on", (*settings, *processes), resume=tmp_path / "cut", workers=2) as fleet:
        resumed = fleet.ok()
    assert resumed["checkpoints"]["resumed_from"] >= 4 and resumed["model_sha256"] == whole


@pytest.fixture(scope="module")
def whole(job: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the model that was trained in one go."""
    with Fleet(job, tmp_path_factory.mktemp("whole"), QUICK) as fleet:
        digest: str = fleet.ok()["model_sha256"]
    return digest


@pytest.mark.parametrize("phase", ["begun", "written", "complete", "pruned", "refreshed"])
def test_killed_in_every_phase_of_a_checkpoint(job: Path, tmp_path: Path, whole: str, phase: str) -> None:
    victim = len(phase) % 3
    killed(job, tmp_path / "cut", QUICK, victim, lambda event: phase_of(event, phase, 4, victim))
    with Fleet(job, tmp_path / "on", QUICK, resume=tmp_path / "cut") as fleet:
        resumed = fleet.ok()
    assert resumed["checkpoints"]["resumed_from"] >= (2 if phase == "begun" else 4 if phase != "written" else 2)
    assert resumed["model_sha256"] == whole


def test_written_at_some_parties_only_the_one_before_counts(job: Path, tmp_path: Path, whole: str) -> None:
    """The moment between the phases, exactly: one party has not written step 6, and nobody has marked it."""
    with Fleet(job, tmp_path / "cut", (*QUICK, "train.steps=6", "checkpoint.keep=3")) as fleet:
        fleet.ok()
    folder = tmp_path / "cut" / "checkpoints"
    for path in {*folder.glob("*/step-00000006*.complete"), *folder.glob("bob/step-00000006*")}:
        path.unlink()
    (folder / "bob" / "step-00000006.0123456789abcdef.safetensors.draft").write_bytes(b"half of it")
    with Fleet(job, tmp_path / "on", QUICK, resume=tmp_path / "cut") as fleet:
        resumed = fleet.ok()
    assert resumed["checkpoints"]["resumed_from"] == 4 and resumed["model_sha256"] == whole
    kept = {path.name for path in folder.glob("*/step*")}
    assert len(kept) == 4 and len({name.split(".")[1] for name in kept}) == 1  # two, of the new session


def test_killed_again_and_again_and_after_the_last_step(job: Path, tmp_path: Path, whole: str) -> None:
    killed(job, tmp_path / "0", QUICK, 1, lambda event: step_of(event, 3, 1))
    killed(job, tmp_path / "1", QUICK, 2, lambda e: e["event"] == "resumed" and e["party"] == 2, resume=tmp_path / "0")
    killed(job, tmp_path / "2", QUICK, 0, lambda event: phase_of(event, "complete", 8, 0), resume=tmp_path / "1")
    with Fleet(job, tmp_path / "3", QUICK, resume=tmp_path / "2") as fleet:
        resumed = fleet.ok()
    assert resumed["checkpoints"] == {"seconds": [], "bytes": [], "resumed_from": 8}
    assert resumed["model_sha256"] == whole and resumed["steps_s"] == []
    assert resumed["loss_steps"] == list(range(1, 9))


def shards(run: Path, step: int) -> list[Shard]:
    """All parties' of a step."""
    return [
        read(next((run / "checkpoints" / name).glob(f"step-{step:08d}.*.safetensors")), None)
        for name in ("alice", "bob", "carol")
    ]


def test_what_is_on_disk_are_shares_and_every_session_has_its_own(job: Path, tmp_path: Path) -> None:
    """Real keys. Steps 4 of one session; step 6 of two that went on from it: other masks, the same model but for
    rounding.
    """
    settings = (*QUICK, "train.steps=6", "checkpoint.keep=9")
    with Fleet(job, tmp_path / "0", settings, insecure_keys=None, digest=False) as fleet:
        fleet.ok()
    for path in (tmp_path / "0").glob("checkpoints/*/step-00000006*"):
        path.unlink()
    for again in ("1", "2"):
        shutil.copytree(tmp_path / "0" / "checkpoints", tmp_path / f"from{again}" / "checkpoints")
        with Fleet(
            job, tmp_path / again, settings, tmp_path / f"from{again}", insecure_keys=None, digest=False
        ) as fleet:
            fleet.ok()
    first, second = shards(tmp_path / "1", 6), shards(tmp_path / "2", 6)
    assert first[0].record.session != second[0].record.session != shards(tmp_path / "1", 4)[0].record.session
    for name in first[0].tensors:
        models = []
        for three in (first, second):
            a, b, c = (shard.tensors[name] for shard in three)
            assert torch.equal(a[1], b[0]) and torch.equal(b[1], c[0]) and torch.equal(c[1], a[0])
            models.append(a[0] + b[0] + c[0])
        bits = first[0].record.fraction_bits[name]
        assert (models[0] - models[1]).abs().max() < 2 ** (bits - 6), "the same, up to how steps 5 and 6 were rounded"
        assert models[0].abs().max() < 2 ** (bits + 3), "weights"
        equal = (first[0].tensors[name] == second[0].tensors[name]).sum() + (first[0].tensors[name].abs() < 2**40).sum()
        assert equal == 0, "other masks, and uniform ones"


def test_sealed(job: Path, tmp_path: Path, whole: str) -> None:
    keys = {}
    for party, name in enumerate(("alice", "bob", "carol")):
        path = tmp_path / f"{name}.rest"
        path.touch(mode=0o600)
        path.write_bytes(bytes([party]) * 32)
        keys[party] = (f"checkpoint.key_file={path}",)
    killed(job, tmp_path / "cut", QUICK, 1, lambda event: step_of(event, 5, 1), own=keys)
    assert {path.suffix for path in (tmp_path / "cut").glob("checkpoints/*/step*")} == {".sealed", ".complete"}
    with Fleet(job, tmp_path / "wrong", QUICK, resume=tmp_path / "cut", own=keys | {1: keys[2]}) as fleet:
        assert fleet.finish() == [21, 21, 21], fleet.story()
        assert all("bob has none that can be used" in said for said in fleet.failures().values())
        notes = [event for event in fleet.events if event["event"] == "note" and event["party"] == 1]
        assert any("checkpoint.key_file is another key" in note["text"] for note in notes), fleet.story()
    with Fleet(job, tmp_path / "on", QUICK, resume=tmp_path / "cut", own=keys) as fleet:
        assert fleet.ok()["model_sha256"] == whole


@pytest.fixture(scope="module")
def stopped(job: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of steps 2 and 4."""
    run = tmp_path_factory.mktemp("stopped")
    with Fleet(job, run, (*QUICK, "train.steps=4")) as fleet:
        fleet.ok()
    return run


def damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize("damage", [damaged, cut, Path.unlink])
def test_a_damaged_one_is_named_and_the_one_before_taken(
    job: Path, stopped: Path, tmp_path: Path, whole: str, damage: Callable[[Path], None]
) -> None:
    shutil.copytree(stopped / "checkpoints", tmp_path / "cut" / "checkpoints")
    damage(next((tmp_path / "cut").glob("checkpoints/carol/step-00000004.*.safetensors")))
    with Fleet(job, tmp_path / "on", QUICK, resume=tmp_path / "cut") as fleet:
        resumed = fleet.ok()
        said = next(e["unusable"] for e in fleet.events if e["event"] == "resumed" and e["party"] == 2)
    assert resumed["checkpoints"]["resumed_from"] == 2 and resumed["model_sha256"] == whole
    assert damage is Path.unlink or "step-00000004" in said[0]


def test_mistakes_end_all_parties_with_one_sentence(job: Path, stopped: Path, tmp_path: Path) -> None:
    exchanged = tmp_path / "exchanged"
    shutil.copytree(stopped / "checkpoints", exchanged / "checkpoints")
    (exchanged / "checkpoints" / "alice").rename(exchanged / "checkpoints" / "x")
    (exchanged / "checkpoints" / "bob").rename(exchanged / "checkpoints" / "alice")
    lost = tmp_path / "lost"
    shutil.copytree(stopped / "checkpoints", lost / "checkpoints")
    for path in (lost / "checkpoints" / "bob").glob("*.safetensors"):
        damaged(path)
    mistakes = {
        r"of another job: there train\.learning_rate was 0\.25, here it is 0\.5": (
            ["train.learning_rate=0.5"],
            stopped,
        ),
        r"there protocol\.fraction_bits was 16, here it is 15": (["protocol.fraction_bits=15"], stopped),
        r'there protocol\.name was "replicated3", here it is "additive2"': (["protocol.name=additive2"], stopped),
        r"is bob's, and this party is alice": ([], exchanged),
        r"no checkpoint that all parties have: alice has step 4, step 2; bob has none that can be used": ([], lost),
        r"is of step 4, and the job ends after 3": (["train.steps=3"], stopped),
    }
    for sentence, (settings, run) in mistakes.items():
        with Fleet(job, tmp_path / "on", (*QUICK, *settings), resume=run) as fleet:
            assert fleet.finish() == [21, 21, 21], fleet.story()
            assert all(re.search(sentence, said) for said in fleet.failures().values()), fleet.failures()
        shutil.rmtree(tmp_path / "on")
    with Fleet(job, tmp_path / "on", QUICK, resume=stopped, resumes={1: None}) as fleet:
        assert fleet.finish() == [20, 20, 20], fleet.story()
        assert all("bob has --resume = no" in said for said in fleet.failures().values()), fleet.failures()


def test_four_parties_notice_a_share_that_was_changed(job: Path, tmp_path: Path) -> None:
    """One that the others hold too; its checksum is made right again."""
    with Fleet(job, tmp_path / "0", (*QUICK, *FOUR, "train.steps=2")) as fleet:
        fleet.ok()
    path = next((tmp_path / "0").glob("checkpoints/carol/step-00000002.*.safetensors"))
    shard = read(path, None)
    shard.tensors["model/0.weight"][2, 0, 0] += 1  # component 1, of carol's half
    with path.open("wb") as file:
        shard.write(file, None)
    with Fleet(job, tmp_path / "1", (*QUICK, *FOUR), resume=tmp_path / "0") as fleet:
        assert fleet.finish() == [23, 23, 23, 23], fleet.story()
        assert all("resume 2/check" in said for said in fleet.failures().values()), fleet.failures()
