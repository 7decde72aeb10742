"""Three parties compute on numbers that they do not show each other, here all in one process.

    python examples/quickstart.py

1. The average of three salaries: nothing else becomes known.
2. A regression: Alice has what was measured, Bob the outcomes, Carol helps. Only the two coefficients are revealed.
"""

import torch

import mpcpipe

SALARIES = [5200.0, 6150.0, 4875.0]  # each is one party's own
ALICE, BOB = 0, 1


async def average(party: mpcpipe.Party) -> torch.Tensor | None:
    shared = [await party.share(SALARIES[owner], owner) for owner in range(3)]
    mean = await party.divide(shared[0] + shared[1] + shared[2], 3)
    return await party.reveal(mean, why="the average salary")


def measured() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 2, generator=generator)
    noise = 0.1 * torch.randn(64, 1, generator=generator)
    return x, x @ torch.tensor([[1.5], [-0.5]]) + noise


async def regression(party: mpcpipe.Party) -> torch.Tensor | None:
    x_of_alice, y_of_bob = measured()  # `share` looks at the owner's value only; the shapes are public
    x, y = await party.gather(party.share(x_of_alice, ALICE, (64, 2)), party.share(y_of_bob, BOB, (64, 1)))
    w = party.public(torch.zeros(2, 1))
    for _ in range(20):
        error = await (x @ w) - y
        gradient = await (x.T @ error)
        w = w - await (gradient * (0.5 / 64))
    return await party.reveal(w, to=ALICE, why="the coefficients")


def main() -> None:
    with mpcpipe.local(parties=3) as parties:
        mean = parties.run(average)[ALICE]
        print(f"average salary: {mean:.0f}")
        w = parties.run(regression)[ALICE]
        print(f"coefficients, known to Alice only: {w.flatten().tolist()}")
        print(f"{parties.rounds} rounds, {max(parties.sent_bytes)} bytes sent by a party")
        x, y = measured()
        print(f"in the clear: {torch.linalg.lstsq(x, y).solution.flatten().tolist()}")
        print("opened:", [(opening.why, opening.to) for opening in parties.openings])


if __name__ == "__main__":
    main()
