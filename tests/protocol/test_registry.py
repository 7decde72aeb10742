"""The table of protocols says what the classes say, and checking a job needs no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mpcpipe.errors import JobError
from mpcpipe.protocol.registry import PROTOCOLS, known_protocol, protocol_named


@pytest.mark.parametrize("name", PROTOCOLS)
def test_what_stands_in_the_table_is_what_the_class_says(name: str) -> None:
    kind = protocol_named(name)
    known = PROTOCOLS[name]
    said = (kind.name, kind.party_counts, kind.promise, kind.dealer)
    assert said == (name, known.party_counts, known.promise, known.dealer)


def test_a_wrong_name_gets_the_nearest_right_one() -> None:
    with pytest.raises(
        JobError, match=r"did you mean 'replicated3'\? Known: additive2, plaintext, replicated3, replicated4"
    ):
        known_protocol("replicatd3")


def test_the_command_line_answers_without_torch() -> None:
    code = (
        "import sys, mpcpipe.cli.train, mpcpipe.cli.check, mpcpipe.cli.doctor, mpcpipe.launch.start;"
        "from mpcpipe.job.load import load; load(sys.argv[1]); assert 'torch' not in sys.modules"
    )
    digits = Path(__file__).parents[2] / "examples" / "digits.toml"
    subprocess.run([sys.executable, "-c", code, str(digits)], check=True, timeout=60)
