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

A product of few elements is truncated by `opened` instead, in 2 rounds for 3, which costs 3 t - 2 bits more.
"""

from __future__ import annotations

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.base import Share
from mpcpipe.protocol.replicated3.roles import Chunks, Roles
from mpcpipe.protocol.rounds import Round
from mpcpipe.protocol.wrap import Wrap, from_bytes, to_bytes
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
        p, dtype, ring, wrap = self.p, self.p.ring.dtype, self.p.ring, self.wrap
        n0, n1, n2 = self.chunks.numels
        words0, words1 = ops.words(n0), ops.words(n1)
        following, preceding = p.next, p.prev
        beta_part, y1_part, y0_part = Part(torch.int64, words0), Part(dtype, n0), Part(dtype, n1)

        mask_a, mask_b = self._bit("02", 0), self._bit("12", 1)
        lift = 1 << (ring.bits - 2)
        u, alpha = ops.sum_and_sign(u, None, mask_a, ring.bits, lift)
        send = {following: [alpha], preceding: [self.deal()]}
        receive = {preceding: [Part(torch.int64, words1)], following: [Part(torch.uint8, n1 * wrap.nbytes)]}
        if z2 is None:  # role 1 knows its summand: beta need not wait
            v, own_beta = ops.sum_and_sign(v, None, mask_b, ring.bits)
            send[preceding].append(own_beta)
            receive[following].append(beta_part)
        else:
            send[preceding].append(z2)
            receive[following].append(Part(dtype, n1))
        received = await Round(f"{self.label}/1", send, receive)
        (seen_alpha,), (dealt, last) = received[preceding], received[following]
        if z2 is not None:
            v, own_beta = ops.sum_and_sign(v, last, mask_b, ring.bits)

        s2 = p.elements("12", 1, self.label, n1)
        y1 = wrap.half_v(v, own_beta ^ mask_b, seen_alpha, own_beta, dealt, s2)
        if z2 is None:
            seen_beta = last
        else:
            received = await Round(f"{self.label}/2", {preceding: [own_beta, y1]}, {following: [beta_part, y1_part]})
            seen_beta, seen_y1 = received[following]

        s0 = p.elements("02", 0, self.label, n0)
        y0 = wrap.half_u(u, alpha ^ mask_a, alpha, seen_beta, self._correction(0), s0)
        if z2 is None:
            received = await Round(
                f"{self.label}/2", {preceding: [y1], following: [y0]}, {following: [y1_part], preceding: [y0_part]}
            )
            (seen_y1,), (seen_y0,) = received[following], received[preceding]
        else:
            received = await Round(f"{self.label}/3", {following: [y0]}, {preceding: [y0_part]})
            (seen_y0,) = received[preceding]

        s1_of0, s1_of1 = ring.wrap(seen_y1.add_(y0)), ring.wrap(seen_y0.add_(y1))
        s2_of2, s0_of2 = p.elements("12", 2, self.label, n2), p.elements("02", 2, self.label, n2)
        return self.chunks.joined((s0, s1_of1, s2_of2), (s1_of0, s2, s0_of2)).reshape(2, *shape)


async def opened(p: Roles, label: str, chunks: Chunks, bits: int, z: torch.Tensor, shape: torch.Size) -> Share:
    """A partial divided by 2^bits in two rounds, by opening x + r to roles 0 and 1, r known to role 2.

        role 0                           role 1                             role 2: r = e + f - z_2
           z_0 + e  ──────────────────────>
                    <──────────────────────  z_1 + f
                                             <───  -(r >> t) - s0, msb(r) - c0 (modulo 2^t)
           both: c = x + r + 2^(k-2);  wraps = not msb(c)
           wraps c0 - w0  ────────────────>
                          <────────────────  wraps c1 - w2                  (modulo 2^t)

    e, s0, c0 and w0 are streams of roles 0 and 2, f and w2 of roles 1 and 2. Where the lifted x is below 2^(k-1), c
    wraps around exactly if r has the top bit and c has not. So the result is (c >> t) - (r >> t) + wraps msb(r) 2^(k-t)
    less the lift, of which roles 0 and 1 know the first summand. r is uniform: it is rounded up as often as the
    fraction says.

    Security: role 0 sees z_1 + f and a part less w2, role 1 sees z_0 + e and parts less s0, c0 and w0, masked by
    streams that they do not know; role 2 sees nothing.
    """
    ring, wrap = p.ring, Wrap(p.ring, bits)
    small, dtype, nbytes, up = wrap.small, ring.dtype, wrap.nbytes, ring.bits - bits
    (n0, n1, n2), (s0, s1, s2) = chunks.numels, chunks.slices

    def from_wire(data: torch.Tensor) -> torch.Tensor:
        return small.wrap(from_bytes(data, nbytes, small.dtype))

    def high(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype) << up

    m0 = ring.wrap(z[s0] + p.elements("02", 0, f"{label}/u", n0))
    m1 = ring.wrap(z[s1] + p.elements("12", 1, f"{label}/u", n1))
    r = ring.wrap(p.elements("02", 2, f"{label}/u", n2) + p.elements("12", 2, f"{label}/u", n2) - z[s2])
    q_of2 = p.elements("02", 2, f"{label}/q", n2)
    quotient = ring.wrap(-ring.shift_right(r, bits) - q_of2)
    dealt = small.wrap((r < 0).to(small.dtype) - p.elements("02", 2, f"{label}/c", n2, small))
    received = await Round(
        f"{label}/1",
        {p.next: [m0], p.prev: [m1, quotient, to_bytes(dealt, nbytes)]},
        {p.prev: [Part(dtype, n1)], p.next: [Part(dtype, n0), Part(dtype, n1), Part(torch.uint8, n1 * nbytes)]},
    )
    (seen0,), (seen1, seen_quotient, seen_dealt) = received[p.prev], received[p.next]
    c_of0, c_of1 = wrap.lifted(m0 + seen1), wrap.lifted(m1 + seen0)
    w_of0, w_of1 = (p.elements(pair, role, f"{label}/w", n, small) for pair, role, n in (("02", 0, n0), ("12", 1, n1)))
    part0 = small.wrap(p.elements("02", 0, f"{label}/c", n0, small) * (c_of0 >= 0) - w_of0)
    part1 = small.wrap(from_wire(seen_dealt) * (c_of1 >= 0) - w_of1)
    received = await Round(
        f"{label}/2",
        {p.next: [to_bytes(part0, nbytes)], p.prev: [to_bytes(part1, nbytes)]},
        {p.next: [Part(torch.uint8, n0 * nbytes)], p.prev: [Part(torch.uint8, n1 * nbytes)]},
    )
    lift = wrap.lift >> bits
    s1_of0, s1_of1 = (
        ring.wrap(ring.shift_right(c, bits) - lift + high(part) + high(from_wire(received[peer][0])))
        for c, part, peer in ((c_of0, part0, p.next), (c_of1, part1, p.prev))
    )
    s0_of0 = ring.wrap(p.elements("02", 0, f"{label}/q", n0) + high(w_of0))
    s2_of1 = ring.wrap(seen_quotient + high(w_of1))
    s2_of2 = ring.wrap(quotient + high(p.elements("12", 2, f"{label}/w", n2, small)))
    s0_of2 = ring.wrap(q_of2 + high(p.elements("02", 2, f"{label}/w", n2, small)))
    return chunks.joined((s0_of0, s1_of1, s2_of2), (s1_of0, s2_of1, s0_of2)).reshape(2, *shape)
