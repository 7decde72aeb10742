"""Programs of one's own at parties that are threads: results, what is opened, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mpcpipe
from mpcpipe.errors import JobError, PeerLost, RangeError, UsageError

ROOT = Path(__file__).parents[2]
UNIT = 2.0**-16
X = torch.tensor([[1.5, -2.0, 0.25], [0.5, 3.0, -4.0]], dtype=torch.float64)
Y = torch.tensor([[0.5, 2.0, -1.0]], dtype=torch.float64)


@pytest.fixture(params=["replicated3", "additive2", "plaintext"])
def parties(request):
    with mpcpipe.local(protocol=request.param) as opened:
        yield opened


def compute(parties, expression):
    """What `expression(party, x, y)` opens to, the same at all: x of party 0, y of party 1."""

    async def program(party):
        x, y = await party.gather(party.share(X, 0, (2, 3)), party.share(Y, 1, (1, 3)))
        found = expression(party, x, y)
        return await party.reveal(found if isinstance(found, mpcpipe.Secret) else await found, why="test")

    opened = [value for value in parties.run(program) if value is not None]  # a dealer learns nothing
    assert all(torch.equal(value, opened[0]) for value in opened) and len(opened) >= 2
    return opened[0]


@pytest.mark.parametrize(
    ("expression", "expected", "units"),
    [
        (lambda party, x, y: x + y, X + Y, 0),
        (lambda party, x, y: x - y, X - Y, 0),
        (lambda party, x, y: -x, -X, 0),
        (lambda party, x, y: 1.5 + x - 1, X + 0.5, 0),
        (lambda party, x, y: 2 - x, 2 - X, 0),
        (lambda party, x, y: x + torch.ones(3), X + 1, 0),
        (lambda party, x, y: torch.ones(3) + x, X + 1, 0),
        (lambda party, x, y: torch.ones(3) - x, 1 - X, 0),
        (lambda party, x, y: 3 * x, 3 * X, 0),
        (lambda party, x, y: x * -2, -2 * X, 0),
        (lambda party, x, y: x * y, X * Y, 1),
        (lambda party, x, y: 0.5 * x, 0.5 * X, 1),
        (lambda party, x, y: x * torch.tensor([1.0, 2.0, 3.0]), X * torch.tensor([1.0, 2.0, 3.0]), 1),
        (lambda party, x, y: party.mul(x, y), X * Y, 1),
        (lambda party, x, y: x @ y.T, X @ Y.T, 1),
        (lambda party, x, y: torch.ones(1, 2) @ x, X.sum(0, keepdim=True), 1),
        (lambda party, x, y: x.T @ x, X.T @ X, 1),
        (lambda party, x, y: party.divide(x, 4), X / 4, 1),
        (lambda party, x, y: party.divide(x, 3), X / 3, 3),
        (lambda party, x, y: party.relu(x), X.relu(), 0),
        (lambda party, x, y: x.sum(), X.sum(), 0),
        (lambda party, x, y: x.sum(-1), X.sum(-1), 0),
        (lambda party, x, y: x.reshape(3, 2), X.reshape(3, 2), 0),
        (lambda party, x, y: x.sum() + y, X.sum() + Y, 0),
    ],
)
def test_operations(parties, expression, expected, units):
    found = compute(parties, expression)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, rtol=0, atol=units * UNIT)


def test_rounds_are_counted_and_independent_operations_share_them():
    with mpcpipe.local() as parties:

        async def side_by_side(party):
            x = await party.share(torch.ones(3), 0, (3,))
            await party.gather(party.mul(x, x), party.relu(x), x * 0.5)

        parties.run(side_by_side)
        assert parties.rounds == 1 + 9
        assert len(set(parties.sent_bytes)) <= 3 and min(parties.sent_bytes) > 0


def test_what_is_opened_is_known_to_whom_it_is_opened_and_written_down():
    with mpcpipe.local() as parties:

        async def program(party):
            secret = await party.share(7.0 if party.number == 2 else None, 2)
            return await party.reveal(secret, to=1, why="a number")

        first, second, third = parties.run(program)
        assert first is None and third is None and float(second) == 7.0
        assert [(opening.why, opening.to, opening.shape) for opening in parties.openings] == [("a number", 1, ())]


def test_secrets_outlive_a_run_and_no_mask_is_used_twice():
    with mpcpipe.local() as parties:
        held = parties.run(lambda party: party.share(X, 0, (2, 3)))
        again = parties.run(lambda party: party.share(X, 0, (2, 3)))
        assert not torch.equal(held[0].value.data, again[0].value.data)
        opened = parties.run(lambda party: party.reveal(held[party.number]))
        assert torch.equal(opened[0], X)


def test_a_secret_shows_nothing():
    with mpcpipe.local() as parties:
        held = parties.run(lambda party: party.share(12345.0, 0))
        assert repr(held[1]) == "Secret(shape=(), fraction_bits=16, party=1)"
        with pytest.raises(TypeError, match="cannot branch"):
            bool(held[0])
        with pytest.raises(TypeError, match="not with a str"):
            held[0] + "1"


def test_the_first_failure_stops_all_and_the_next_run_works():
    with mpcpipe.local() as parties:

        async def fails_at_one(party):
            if party.number == 1:
                raise RuntimeError("a mistake of party 1")
            return await party.share(1.0, 1)

        with pytest.raises(RuntimeError, match="a mistake of party 1"):
            parties.run(fails_at_one)

        async def leaves(party):
            return None if party.number == 0 else await party.share(1.0, 0)

        with pytest.raises(PeerLost, match="party 0 closed its link"):
            parties.run(leaves)
        assert float(parties.run(lambda party: secret_one(party))[0]) == 1.0


async def secret_one(party):
    return await party.reveal(await party.share(1.0, 0))


@pytest.mark.parametrize(
    ("program", "error", "says"),
    [
        (lambda party: party.share(40000.0, 0), RangeError, "what party 0 shares: element"),
        (lambda party: party.share(float("nan"), 0), RangeError, "not a finite number"),
        (lambda party: party.share(None, 0), ValueError, "party 0 owns"),
        (lambda party: party.share(X, 0), ValueError, r"of shape \(2, 3\); all expect \(\)"),
        (lambda party: 1, UsageError, "async def"),
        (lambda party: party.divide(party.public(1.0), 0), ValueError, "not by 0"),
        (lambda party: party.public(X) @ party.public(X), ValueError, "a matrix product is of"),
        (lambda party: party.mul(party.public(X), party.public(torch.ones(2))), ValueError, "do not go together"),
    ],
)
def test_mistakes(program, error, says):
    with mpcpipe.local() as parties, pytest.raises(error, match=says):
        parties.run(program)


def test_what_cannot_be_opened():
    with pytest.raises(UsageError, match="replicated3 is for 3 parties, not 2"):
        mpcpipe.local(parties=2)
    with pytest.raises(JobError, match="did you mean 'replicated3'"):
        mpcpipe.local(protocol="replicate3")
    with pytest.raises(UsageError, match="fraction_bits is 40"):
        mpcpipe.local(fraction_bits=40)
    with mpcpipe.local() as parties:
        pass
    with pytest.raises(UsageError, match="open new ones"):
        parties.run(secret_one)


def test_the_quickstart_runs():
    command = [sys.executable, "examples/quickstart.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "average salary: 5408\n" in done.stdout
    first, second = (
        numbers(line) for line in done.stdout.splitlines() if line.startswith(("coefficients", "in the clear"))
    )
    assert torch.allclose(first, second, atol=1e-3)
    assert len((ROOT / "examples/quickstart.py").read_text().splitlines()) <= 60


def numbers(line):
    return torch.tensor([float(word) for word in line.partition("[")[2].rstrip("]").split(",")])
