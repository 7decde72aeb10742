"""replicated3: dividing u + v by a power of two, where role 0 knows u and role 1 knows v.

    role 0 (u)                       role 1 (v)                       role 2 (deals)
       alpha = a ^ r_a  ───────────>
                                     <──────────────  c1 = r_a r_b - c0   (modulo 2^t)
                       <───────────  beta = b ^ r_b
                       <───────────  y1 - s2
       y0 - s0         ───────────>
       holds (s0, s1)                holds (s1, s2)                   holds (s2, s0) from streams

The arithmetic, with a and b the bits of u and v that tell a wrap-around, is `protocol.wrap`. u being uniform, the
result is rounded up as often as the fraction says (2^-t more often, to be exact): errors do not add up over a training.
"""

from __future__ import annotations

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.base import Share
from mpcpipe.protocol.replicated3.roles import Chunks, Roles
from mpcpipe.protocol.rounds import Round
from mpcpipe.protocol.wrap import Wrap
from mpcpipe.ring import ops


class Truncation:
    """One truncation by `bits` = t: who draws what, who sends what.

    Security: role 1 sees alpha and c1 (and z2), masked by streams that it does not know; role 0 sees beta and y1 - s2,
    likewise; role 2 sees nothing.
    """

    def __init__(self, party: Roles, label: str, chunks: Chunks, bits: int) -> None:
        self.p, self.label, self.chunks = party, label, chunks
        self.wrap = Wrap(party.ring, bits)

    def _bit(self, pair: str, role: int) -> torch.Tensor:
        """A packed random bit an element: r_a (pair "02") or r_b (pair "12")."""
        return self.p.planes(pair, role, f"{self.label}/bit", 1, self.chunks.numel(role))[0]

    def _correction(self, role: int) -> torch.Tensor:
        """c0, that roles 0 and 2 know."""
        return self.p.elements("02", role, f"{self.label}/c", self.chunks.numel(role), self.wrap.small)

    def deal(self) -> torch.Tensor:
        """Role 2: c1 for role 1."""
        return self.wrap.deal(self._bit("02", 2), self._bit("12", 2), self._correction(2))

    async def run(self, u: torch.Tensor, v: torch.Tensor, z2: torch.Tensor | None, shape: torch.Size) -> Share:
        """u: role 0's summand; v: role 1's, to which it adds the `z2` that role 2 sends first, if there is one."""
        p, ring, wrap, dtype = self.p, self.p.ring, self.wrap, self.p.ring.dtype
        n0, n1, n2 = (self.chunks.numel(role) for role in range(3))
        beta_part, y1_part = Part(torch.int64, ops.words(n0)), Part(dtype, n0)

        u = wrap.lifted(u)
        a = wrap.bit(u)
        alpha = a ^ self._bit("02", 0)
        mask_b = self._bit("12", 1)
        send = {p.next: [alpha], p.prev: [self.deal()]}
        receive = {
            p.prev: [Part(torch.int64, ops.words(n1))],
            p.next: [Part(torch.uint8, n1 * wrap.nbytes)],
        }
        if z2 is None:  # role 1 knows its summand: beta need not wait
            b = wrap.bit(v)
            own_beta = b ^ mask_b
            send[p.prev].append(own_beta)
            receive[p.next].append(beta_part)
        else:
            send[p.prev].append(z2)
            receive[p.next].append(Part(dtype, n1))
        received = await Round(f"{self.label}/1", send, receive)
        (seen_alpha,), (dealt, last) = received[p.prev], received[p.next]
        if z2 is not None:
            v = ring.wrap(v + last)
            b = wrap.bit(v)
            own_beta = b ^ mask_b

        s2 = p.elements("12", 1, self.label, n1)
        y1 = ring.wrap(wrap.half_v(v, b, seen_alpha, own_beta, dealt).sub_(s2))
        if z2 is None:
            seen_beta = last
        else:
            received = await Round(f"{self.label}/2", {p.prev: [own_beta, y1]}, {p.next: [beta_part, y1_part]})
            seen_beta, seen_y1 = received[p.next]

        s0 = p.elements("02", 0, self.label, n0)
        y0 = ring.wrap(wrap.half_u(u, a, alpha, seen_beta, self._correction(0)).sub_(s0))
        if z2 is None:
            received = await Round(
                f"{self.label}/2", {p.prev: [y1], p.next: [y0]}, {p.next: [y1_part], p.prev: [Part(dtype, n1)]}
            )
            (seen_y1,), (seen_y0,) = received[p.next], received[p.prev]
        else:
            received = await Round(f"{self.label}/3", {p.next: [y0]}, {p.prev: [Part(dtype, n1)]})
            (seen_y0,) = received[p.prev]

        out = u.new_empty((2, n0 + n1 + n2))
        r0, r1, r2 = self.chunks.slices
        out[0, r0], out[1, r0] = s0, ring.wrap(y0 + seen_y1)
        out[0, r1], out[1, r1] = ring.wrap(y1 + seen_y0), s2
        out[0, r2], out[1, r2] = p.elements("12", 2, self.label, n2), p.elements("02", 2, self.label, n2)
        return out.reshape(2, *shape)
