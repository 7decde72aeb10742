"""additive2: what is special to it: tensors that are shown once, and what the dealer says a program needs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mpcpipe.protocol.additive2 import Additive2
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.rounds import gather
from mpcpipe.ring.bilinear import MATMUL, MUL, MatMul
from tests.conformance.test_conformance import spread
from tests.simulate import Outcome, parties, reveal, share, together


def _products(ps: list[Protocol], xs: Any, ys: Any, keep: bool) -> tuple[Outcome, Outcome]:
    """x y, then x^T dy, as a layer does it forwards and back."""
    held = [(p.keep(xs[p.party]), p.keep(ys[p.party])) if keep else (xs[p.party], ys[p.party]) for p in ps]
    first = together(ps, lambda p: p.multiply(MATMUL, *held[p.party]))
    second = together(ps, lambda p: p.multiply(MatMul(transpose_a=True), held[p.party][0], first.results[p.party]))
    return first, second


@pytest.mark.parametrize("k", [64, 32, 20])
def test_what_is_kept_is_shown_once(k: int) -> None:
    ps = parties(Additive2, k)
    x, y = spread(k, (4, 6), 1), spread(k, (6, 3), 2)
    xs, ys = share(ps, x), share(ps, y, 1)
    size = ps[0].ring.nbytes
    for keep, shown in ((False, 4 * 6 + 4 * 3), (True, 4 * 3)):
        first, second = _products(ps, xs, ys, keep)
        assert first.sent_bytes == [size * (24 + 18)] * 2 + [size * 12]
        assert second.sent_bytes == [size * shown] * 2 + [size * 18]
        assert torch.equal(reveal(ps, first.results), ps[0].ring.wrap(x @ y))
        assert torch.equal(reveal(ps, second.results), ps[0].ring.wrap(x.T @ (x @ y)))


def test_a_product_of_kept_tensors_needs_the_dealer_only() -> None:
    ps = parties(Additive2)
    x, y = spread(64, (50,), 1), spread(64, (50,), 2)
    xs, ys = share(ps, x), share(ps, y)
    kept = [(p.keep(xs[p.party]), p.keep(ys[p.party])) for p in ps]
    together(ps, lambda p: p.multiply(MUL, *kept[p.party]))
    again = together(ps, lambda p: p.multiply(MUL, *kept[p.party]))
    assert again.sent_bytes == [0, 0, 400]
    assert torch.equal(reveal(ps, again.results), x * y)
    square = together(ps, lambda p: p.multiply(MUL, kept[p.party][0], kept[p.party][0]))
    assert square.sent_bytes == [0, 0, 400] and torch.equal(reveal(ps, square.results), x * x)
    fresh = [p.keep(xs[p.party]) for p in ps]
    square = together(ps, lambda p: p.multiply(MUL, fresh[p.party], fresh[p.party]))
    assert square.sent_bytes == [400, 400, 400] and torch.equal(reveal(ps, square.results), x * x)


def test_what_is_shown_at_once_is_not_shown_again() -> None:
    ps = parties(Additive2)
    x, w = spread(64, (50,), 1), spread(64, (50,), 2)
    xs, ws = share(ps, x), share(ps, w)
    shown = together(ps, lambda p: p.show(ws[p.party]))
    assert (shown.rounds, shown.sent_bytes) == (1, [400, 400, 0])
    again = together(ps, lambda p: p.show(shown.results[p.party]))
    assert again.sent_bytes == [0, 0, 0]
    for name in ("first micro-batch", "second micro-batch"):
        z = together(ps, lambda p, n=name: p.at(n).multiply(MUL, xs[p.party], p.keep(shown.results[p.party])))
        assert z.sent_bytes == [400, 400, 400] and torch.equal(reveal(ps, z.results), x * w)


def test_a_kept_tensor_used_twice_side_by_side() -> None:
    """Both show it, since none of the two is first; all parties and the dealer see it so."""
    ps = parties(Additive2)
    x, y = spread(64, (50,), 1), spread(64, (50,), 2)
    xs, ys = share(ps, x), share(ps, y)

    async def both(p: Protocol) -> list[Any]:
        kept = p.keep(xs[p.party])
        pair = await gather(p.multiply(MUL, kept, ys[p.party]), p.multiply(MUL, kept, kept))
        return [*pair, await p.multiply(MUL, kept, ys[p.party])]

    outcome = together(ps, both)
    assert outcome.sent_bytes == [400 * (2 + 1 + 1)] * 2 + [400 * 3]
    for index, right in enumerate((x * y, x * x, x * y)):
        assert torch.equal(reveal(ps, [results[index] for results in outcome.results]), right)


def test_the_dealer_counts_what_it_hands_out() -> None:
    ps = parties(Additive2, 64, 32)
    x = spread(64, (100,), 1) >> 40
    xs = share(ps, x)

    async def relu_of_square(p: Protocol) -> Any:
        y = await p.product(MUL, xs[p.party], xs[p.party], 16)
        bits = await p.nonnegative(y)
        _, selector = await p.select(bits, y)
        await p.to_ring(bits)
        return await p.select_again(selector, y)

    sent = together(ps, relu_of_square).sent_bytes[2]
    dealer = ps[2]
    assert isinstance(dealer, Additive2)
    kinds = dealer.needs.kinds
    assert {kind: (need.uses, need.numel) for kind, need in kinds.items()} == {
        "products": (1, 100),
        "truncations": (1, 100),
        "bit products": (6, 87 * 100),
        "bits": (2, 200),
        "selections": (2, 200),
    }
    assert dealer.needs.nbytes == sent == 800 + 200 + 87 * 16 + 1600 + 1600


def test_nothing_is_opened_to_the_dealer() -> None:
    ps = parties(Additive2)
    xs = share(ps, torch.arange(3))
    with pytest.raises(ValueError, match="party 2 is the dealer"):
        together(ps, lambda p: p.reveal(xs[p.party], 2, "a result"))
    assert all(p.openings == [] for p in ps)
