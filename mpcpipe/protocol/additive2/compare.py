"""additive2: comparing with zero by a carry tree over packed bits.

x = A + B with A = x_0 and B = x_1, both cut to m = compare_bits bits. The sign bit is A_{m-1} ^ B_{m-1} ^ carry of the
lower m-1 bits. A and B are each known to one party, so the first level, A & B, needs one bit from each and not two.
"""

from __future__ import annotations

from abc import ABC

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.additive2.roles import Roles
from mpcpipe.protocol.base import Bits, Share
from mpcpipe.protocol.carry import carry
from mpcpipe.ring import ops


class Compare(Roles, ABC):
    """nonnegative. Bits are (1, words): a party's XOR share."""

    async def nonnegative(self, x: Share) -> Bits:
        """1 where x >= 0.

        Security: everything that is shown is masked by streams that the other does not know.
        Cost: 1 + ceil(log2(m-1)) rounds; about 4m bits a party and element, and 3m from the dealer.
        """
        label, low, n = self.label("nonnegative"), self.compare_bits - 1, x.numel()
        if self.deals:
            propagate = self.blank(low, ops.words(n), dtype=torch.int64)
            sign = propagate[0]
        else:
            planes = ops.bit_planes(x.reshape(-1), self.compare_bits)
            propagate, sign = planes[:low], planes[low]
            if self.party:
                sign = sign.bitwise_not()  # the sign bit flipped: 1 means x >= 0
        generate = await self._first_level(propagate, n, label)

        async def ands(p: torch.Tensor, g: torch.Tensor, q: torch.Tensor, level: int) -> torch.Tensor:
            return (await self._ands(p[0], g[0], q[0], n, f"{label}/level{level}")).unsqueeze(0)

        top = await carry(generate.unsqueeze(0), propagate.unsqueeze(0), ands)
        return Bits(sign.unsqueeze(0).bitwise_xor(top), tuple(x.shape[1:]))

    async def _first_level(self, own: torch.Tensor, n: int, label: str) -> torch.Tensor:
        """Shares of A & B (planes, words), where party 0 knows A and party 1 knows B.

        With alpha = A ^ r and beta = B ^ s:  A & B = (r & beta) ^ (alpha & B) ^ (r & s).
        """
        label, planes = f"{label}/1", own.shape[0]
        r, s = self.mask_planes(f"{label}/r", planes, n)
        if self.deals:
            await self.deal(label, (r & s).bitwise_xor_(self.own_planes(f"{label}/c", planes, n)).reshape(-1))
            self.needs.count("bit products", planes * n, 8 * r.numel())
            return torch.empty_like(own)
        (seen,), dealt = await self.exchange(label, [(own ^ r).reshape(-1)], [Part(torch.int64, own.numel())])
        seen = seen.view(own.shape)
        if self.party:
            return seen.bitwise_and_(own).bitwise_xor_(dealt[0].view(own.shape))
        return seen.bitwise_and_(r).bitwise_xor_(self.own_planes(f"{label}/c", planes, n))

    async def _ands(self, p: torch.Tensor, g: torch.Tensor, q: torch.Tensor, n: int, label: str) -> torch.Tensor:
        """As `carry.Ands`, without components. The planes of p are masked and shown once for both products."""
        pairs, kept, words = p.shape[0], q.shape[0], p.shape[1]
        total = pairs + kept
        a_parts = self.mask_planes(f"{label}/a", pairs, n)
        b_parts = self.mask_planes(f"{label}/b", total, n)
        if self.deals:
            a, b = a_parts[0].bitwise_xor_(a_parts[1]), b_parts[0].bitwise_xor_(b_parts[1])
            c = _product(a, b).bitwise_xor_(self.own_planes(f"{label}/c", total, n))
            await self.deal(label, c.view(-1))
            self.needs.count("bit products", total * n, 8 * c.numel())
            return self.blank(total, words, dtype=torch.int64)
        a, b = a_parts[0], b_parts[0]
        y = torch.cat((g, q))
        d, e = p ^ a, y ^ b
        (d_other, e_other), dealt = await self.exchange(
            label, [d.view(-1), e.view(-1)], [Part(torch.int64, total * words)]
        )
        d, e = d_other.view(d.shape).bitwise_xor_(d), e_other.view(e.shape).bitwise_xor_(e)
        z = dealt[0].view(total, words) if self.party else self.own_planes(f"{label}/c", total, n)
        return z.bitwise_xor_(_product(p, e)).bitwise_xor_(_product(d, b))


def _product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x (n, words) & the first n planes of y, then the last planes of x & the rest of y."""
    pairs, total = x.shape[0], y.shape[0]
    out = torch.empty_like(y)
    torch.bitwise_and(x, y[:pairs], out=out[:pairs])
    torch.bitwise_and(x[2 * pairs - total :], y[pairs:], out=out[pairs:])
    return out
