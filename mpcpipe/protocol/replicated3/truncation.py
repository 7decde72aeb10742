"""replicated3: dividing u + v by a power of two, where role 0 knows u and role 1 knows v.

    role 0 (u)                       role 1 (v)                       role 2 (deals)
       alpha = a ^ r_a  ───────────>
                                     <──────────────  c1 = r_a r_b - c0   (modulo 2^t)
                       <───────────  beta = b ^ r_b
                       <───────────  y1 - s2
       y0 - s0         ───────────>
       holds (s0, s1)                holds (s1, s2)                   holds (s2, s0) from streams

With x + 2^(k-2) in [0, 2^(k-1)) its top bit is 0, and the sum u + v wraps around exactly if msb(u) or msb(v). With
a = not msb(u) and b = not msb(v) the wrap is 1 - ab, so

    x >> t  =  (u >> t) + (v >> t) + (ab - 1) 2^(k-t) - 2^(k-2-t)   (+ 1)

is x / 2^t rounded down or up; u being uniform, up as often as the fraction says (2^-t more often, to be exact), so
errors do not add up over a training,

and of the bit product ab only its value modulo 2^t counts. With the masks opened to each other as alpha and beta,

    ab = [beta (a - alpha) + sigma c0] + [alpha b + sigma c1],   sigma = (1 - 2 alpha)(1 - 2 beta),   c0 + c1 = r_a r_b

splits into what role 0 knows and what role 1 knows.
"""

from __future__ import annotations

import torch

from mpcpipe.link.base import Part
from mpcpipe.protocol.base import Share
from mpcpipe.protocol.replicated3.cost import correction_bytes
from mpcpipe.protocol.replicated3.roles import Chunks, Roles
from mpcpipe.protocol.rounds import Round
from mpcpipe.ring import ops
from mpcpipe.ring.ring import Ring

_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def to_bytes(x: torch.Tensor, nbytes: int) -> torch.Tensor:
    """The lowest `nbytes` bytes of each element, flat uint8."""
    if nbytes in _WHOLE:
        return x.to(_WHOLE[nbytes]).view(torch.uint8)
    return x.to(torch.int64).view(torch.uint8).view(-1, 8)[:, :nbytes].reshape(-1)


def from_bytes(data: torch.Tensor, nbytes: int, dtype: torch.dtype) -> torch.Tensor:
    """The inverse, as `dtype`; only the lowest 8 * nbytes bits are right."""
    if nbytes in _WHOLE:
        return data.view(_WHOLE[nbytes]).to(dtype)
    wide = torch.zeros((data.numel() // nbytes, 8), dtype=torch.uint8, device=data.device)
    wide[:, :nbytes] = data.view(-1, nbytes)
    return wide.view(torch.int64).view(-1).to(dtype)


class Truncation:
    """One truncation by `bits` = t: who draws what, who sends what.

    Security: role 1 sees alpha and c1 (and z2), masked by streams that it does not know; role 0 sees beta and y1 - s2,
    likewise; role 2 sees nothing.
    """

    def __init__(self, party: Roles, label: str, chunks: Chunks, bits: int) -> None:
        if not 0 < bits <= party.ring.bits - 2:
            raise ValueError(f"cannot truncate by {bits} bits in a ring of {party.ring.bits}")
        self.p, self.label, self.chunks, self.bits = party, label, chunks, bits
        self.small = Ring(bits)
        self.nbytes = correction_bytes(bits)

    def _bit(self, pair: str, role: int) -> torch.Tensor:
        """A packed random bit an element: r_a (pair "02") or r_b (pair "12")."""
        return self.p.planes(pair, role, f"{self.label}/bit", 1, self.chunks.numel(role))[0]

    def _correction(self, role: int) -> torch.Tensor:
        """c0, that roles 0 and 2 know."""
        return self.p.elements("02", role, f"{self.label}/c", self.chunks.numel(role), self.small)

    def deal(self) -> torch.Tensor:
        """Role 2: c1 for role 1, reduced to t bits: a carry into the rest of its bytes would tell r_a r_b."""
        n = self.chunks.numel(2)
        both = self._bit("02", 2) & self._bit("12", 2)
        c1 = ops.unpack_bits(both, n, self.small.dtype).sub_(self._correction(2))
        return to_bytes(self.small.wrap(c1), self.nbytes)

    def _open_wrap_bit(self, summand: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """not msb(summand), packed, and the same masked, as it is shown to the other role."""
        bit = ops.bit_planes((summand >= 0).to(torch.int32), 1)[0]
        return bit, bit ^ mask

    def _half(
        self, summand: torch.Tensor, bit: torch.Tensor, sign: torch.Tensor, correction: torch.Tensor
    ) -> torch.Tensor:
        """(summand >> t) + (bit + sigma correction) 2^(k-t), where sign says which sigma are -1."""
        n, dtype, ring = summand.numel(), self.p.ring.dtype, self.p.ring
        negative = ops.unpack_bits(sign, n, dtype)
        product = (correction ^ -negative).add_(negative).add_(ops.unpack_bits(bit, n, dtype))
        return ring.shift_right(summand, self.bits).add_(product << (ring.bits - self.bits))

    async def run(self, u: torch.Tensor, v: torch.Tensor, z2: torch.Tensor | None, shape: torch.Size) -> Share:
        """u: role 0's summand; v: role 1's, to which it adds the `z2` that role 2 sends first, if there is one."""
        p, ring, t, dtype = self.p, self.p.ring, self.bits, self.p.ring.dtype
        n0, n1, n2 = (self.chunks.numel(role) for role in range(3))
        beta_part, y1_part = Part(torch.int64, ops.words(n0)), Part(dtype, n0)

        u = ring.wrap(u + (1 << (ring.bits - 2)))
        not_msb_u, alpha = self._open_wrap_bit(u, self._bit("02", 0))
        mask_b = self._bit("12", 1)
        send = {p.next: [alpha], p.prev: [self.deal()]}
        receive = {
            p.prev: [Part(torch.int64, ops.words(n1))],
            p.next: [Part(torch.uint8, n1 * self.nbytes)],
        }
        if z2 is None:  # role 1 knows its summand: beta need not wait
            not_msb_v, own_beta = self._open_wrap_bit(v, mask_b)
            send[p.prev].append(own_beta)
            receive[p.next].append(beta_part)
        else:
            send[p.prev].append(z2)
            receive[p.next].append(Part(dtype, n1))
        received = await Round(f"{self.label}/1", send, receive)
        (seen_alpha,), (dealt, last) = received[p.prev], received[p.next]
        if z2 is not None:
            v = ring.wrap(v + last)
            not_msb_v, own_beta = self._open_wrap_bit(v, mask_b)

        y1 = self._half(v, seen_alpha & not_msb_v, seen_alpha ^ own_beta, from_bytes(dealt, self.nbytes, dtype))
        y1.sub_((1 << (ring.bits - t)) + (1 << (ring.bits - 2 - t)) - 1)
        s2 = p.elements("12", 1, self.label, n1)
        y1 = ring.wrap(y1.sub_(s2))
        if z2 is None:
            seen_beta = last
        else:
            received = await Round(f"{self.label}/2", {p.prev: [own_beta, y1]}, {p.next: [beta_part, y1_part]})
            seen_beta, seen_y1 = received[p.next]

        # beta (a - alpha) is 1 where a and not alpha, -1 where alpha and not a: subtract the latter
        y0 = self._half(u, not_msb_u & seen_beta, alpha ^ seen_beta, self._correction(0).to(dtype))
        y0.sub_(ops.unpack_bits(alpha & seen_beta, n0, dtype) << (ring.bits - t))
        s0 = p.elements("02", 0, self.label, n0)
        y0 = ring.wrap(y0.sub_(s0))
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
