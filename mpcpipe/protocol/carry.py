"""The carry of a sum of two secret numbers in bit planes, by a generate/propagate tree; for any protocol with an AND.

Neighbours combine: the (g, p) of a pair is (g1 ^ p1 g0, p1 p0). A level has half the positions of the one before, and
works on what it has and not one plane more.

Source: the tree is Kogge and Stone's idea in the halving form of ABY3 (Mohassel and Rindal, CCS 2018, 5.3).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import torch

Ands = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], Awaitable[torch.Tensor]]
"""(p, g, q, level): XOR shares (components, planes, words), p and g of n planes, q of n or fewer. Shares of n + len(q)
planes: p & g, then the last planes of p & q. Whatever is drawn must be the level's own."""


def tree_ands(positions: int) -> list[tuple[int, int]]:
    """Per level of the carry tree over `positions` bits: pairs that combine, and how many of them need the propagate
    bit.

    The lowest position needs none. An odd position is left over at the bottom and goes up as it is.
    """
    levels = []
    while positions > 1:
        pairs = positions // 2
        levels.append((pairs, pairs - 1 + positions % 2))
        positions -= pairs
    return levels


async def carry(generate: torch.Tensor, propagate: torch.Tensor, ands: Ands) -> torch.Tensor:
    """The carry out of all planes (components, planes, words), the lowest first: (components, words).

    Cost: ceil(log2 planes) uses of `ands`, one after the other.
    """
    level = 0
    while generate.shape[1] > 1:
        level += 1
        odd = generate.shape[1] % 2
        high, low = slice(1 + odd, None, 2), slice(odd, None, 2)
        p_high = propagate[:, high]
        pairs = p_high.shape[1]
        kept = pairs - 1 + odd  # the lowest pair's propagate bit is never used, unless a position is left below it
        z = await ands(p_high, generate[:, low], propagate[:, low][:, pairs - kept :], level)
        combined = z[:, :pairs].bitwise_xor_(generate[:, high])
        if odd:
            combined = torch.cat((generate[:, :1], combined), dim=1)
        # position 0 has no propagate bit: its place is filled by whatever is there and never read
        filler = propagate[:, :1] if odd or not kept else z[:, pairs : pairs + 1]
        propagate = torch.cat((filler, z[:, pairs:]), dim=1)
        generate = combined
    return generate[:, 0]
