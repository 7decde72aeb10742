"""The certificates that a job pins: one a party, well formed, all different; and where this party's own is."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpcpipe.errors import JobError
from tests.job.jobs import TEXT, written

PINS = [f"sha256:{digit * 64}" for digit in "1af"]


def pinned(folder: Path, pins: list[str], *overrides: str) -> tuple[str, ...]:
    lines = 'names = ["alice", "bob", "carol"]\nfingerprints = ' + str(pins).replace("'", '"')
    return written(folder, TEXT.replace('names = ["alice", "bob", "carol"]', lines), *overrides).parties.fingerprints


def test_fingerprints_are_taken_in_order(tmp_path: Path) -> None:
    assert pinned(tmp_path, PINS) == tuple(PINS)


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        (PINS[:2], r"line 6: parties\.fingerprints: has 2 entries for 3 parties"),
        ([*PINS, PINS[0]], r"has 4 entries for 3 parties"),
        ([*PINS[:2], "sha256:12"], r"parties\.fingerprints\[2\]: is 'sha256:12'; it must be \"sha256:\" and 64 digits"),
        ([*PINS[:2], PINS[2].upper()], "64 digits of 0-9 and a-f"),
        ([*PINS[:2], PINS[2].replace("sha256", "sha1")], "it must be"),
        ([*PINS[:2], PINS[0]], "is the same for alice and carol"),
    ],
)
def test_wrong_fingerprints(tmp_path: Path, pins: list[str], message: str) -> None:
    with pytest.raises(JobError, match=message):
        pinned(tmp_path, pins)


def test_pinned_and_in_the_clear_is_a_contradiction(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"parties\.insecure_plaintext: does not go with parties\.fingerprints"):
        pinned(tmp_path, PINS, "parties.insecure_plaintext=true")


def test_keys_lie_beside_the_job_unless_it_says_otherwise(tmp_path: Path) -> None:
    assert Path(written(tmp_path).parties.keys) == tmp_path
    assert Path(written(tmp_path, TEXT, 'parties.keys="elsewhere"').parties.keys) == Path("elsewhere")
    moved = TEXT.replace("[parties]", '[parties]\nkeys = "secret"')
    assert Path(written(tmp_path, moved).parties.keys) == tmp_path / "secret"
