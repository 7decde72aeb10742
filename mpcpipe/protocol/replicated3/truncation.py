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

    x >> t  =  (u >> t) + (v >> t) + (ab - 1) 2^(k-t) - 2^(k-2-t)   (+ 1, so that the mean is right)

and of the bit product ab only its value modulo 2^t counts. With the masks opened to each other as alpha and beta,

    ab = [beta (a - alpha) + sigma c0] + [alpha b + sigma c1],   sigma = (1 - 2 alpha)(1 - 2 beta),   c0 + c1 = r_a r_b

splits into what role 0 knows and what role 1 knows.
"""

from __future__ import annotations

from collections.abc import Callable

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

    Security: role 1 sees alpha and c1 (and z2), masked by streams that it does not know; role 0 sees beta and y1 - s2, likewise;
    role 2 sees nothing.
    """

    def __init__(self, party: Roles, label: str, chunks: Chunks, bits: int) -> None:
        if not 0 < bits <= party.ring.bits - 2:
            raise ValueError(f"cannot truncate by {bits} bits in a ring of {party.ring.bits}")
        self.p, self.label, self.chunks, self.bits = party, label, chunks, bits
        self.small = Ring(bits)
        self.nbytes = correction_bytes(bits)

    def _bit(self, role: int, name: str) -> torch.Tensor:
        """A packed random bit an element, that `role` and role 2 know (for role 2: r_a by name 'a', r_b by 'b')."""
        p, n = self.p, self.chunks.numel(role)
        holders = {(0, "a"): p.with_prev, (2, "a"): p.with_next, (1, "b"): p.with_next, (2, "b"): p.with_prev}
        return p.tape.planes(holders[role, name](), f"{self.label}/{name}", 1, n)[0]

    def _correction(self, role: int) -> torch.Tensor:
        """c0, that roles 0 and 2 know."""
        p = self.p
        holders = p.with_prev() if role == 0 else p.with_next()
        return p.tape.elements(holders, f"{self.label}/c", self.chunks.numel(role), self.small)

    def deal(self) -> torch.Tensor:
        """Role 2: c1 for role 1."""
        n = self.chunks.numel(2)
        both = self._bit(2, "a") & self._bit(2, "b")
        return to_bytes(ops.unpack_bits(both, n, self.small.dtype).sub_(self._correction(2)), self.nbytes)

    def _cross(self, sign: torch.Tensor, correction: torch.Tensor) -> torch.Tensor:
        """sigma times a correction, where sign = alpha ^ beta as elements 0 and 1."""
        return (correction ^ -sign).add_(sign)

    async def run(
        self,
        u: torch.Tensor,
        z2: torch.Tensor | None,
        v: torch.Tensor | Callable[[torch.Tensor], torch.Tensor],
        shape: torch.Size,
    ) -> Share:
        """u: role 0's summand. v: role 1's, or a function that makes it from `z2`, which role 2 sends first."""
        p, ring, t = self.p, self.p.ring, self.bits
        n0, n1, n2 = (self.chunks.numel(role) for role in range(3))
        words0, words1 = ops.words(n0), ops.words(n1)
        dtype = ring.dtype

        u = ring.wrap(u + (1 << (ring.bits - 2)))
        not_msb_u = ops.bit_planes((u >= 0).to(dtype), 1)[0]
        alpha = not_msb_u ^ self._bit(0, "a")
        mask_b = self._bit(1, "b")
        send: dict[int, list[torch.Tensor]] = {p.next: [alpha], p.prev: [self.deal()]}
        receive = {p.prev: [Part(torch.int64, words1)], p.next: [Part(torch.uint8, n1 * self.nbytes)]}
        beta_part = Part(torch.int64, words0)
        early = isinstance(v, torch.Tensor)  # role 1 knows v from the start: beta need not wait
        if early:
            not_msb_v = ops.bit_planes((v >= 0).to(dtype), 1)[0]
            own_beta = not_msb_v ^ mask_b
            send[p.prev].append(own_beta)
            receive[p.next].append(beta_part)
        else:
            send[p.prev].append(z2)
            receive[p.next].append(Part(dtype, n1))
        received = await Round(f"{self.label}/1", send, receive)
        (seen_alpha,), (dealt, last) = received[p.prev], received[p.next]
        if not early:
            v = v(last)
            not_msb_v = ops.bit_planes((v >= 0).to(dtype), 1)[0]
            own_beta = not_msb_v ^ mask_b

        # role 1: y1 - s2
        c1 = from_bytes(dealt, self.nbytes, dtype)
        bits1 = ops.unpack_bits(seen_alpha & not_msb_v, n1, dtype)
        bits1.add_(self._cross(ops.unpack_bits(seen_alpha ^ own_beta, n1, dtype), c1)).sub_(1)
        y1 = ring.shift_right(v, t).add_(bits1 << (ring.bits - t)).add_(1 - (1 << (ring.bits - 2 - t)))
        s2 = p.stream12(1, self.label, n1)
        y1 = ring.wrap(y1.sub_(s2))

        if early:
            seen_beta = last
        else:
            received = await Round(
                f"{self.label}/2", {p.prev: [own_beta, y1]}, {p.next: [beta_part, Part(dtype, n0)]}
            )
            seen_beta, seen_y1 = received[p.next]

        # role 0: y0 - s0
        a_minus_alpha = ops.unpack_bits(not_msb_u & seen_beta, n0, dtype).sub_(ops.unpack_bits(alpha & seen_beta, n0, dtype))
        a_minus_alpha.add_(self._cross(ops.unpack_bits(alpha ^ seen_beta, n0, dtype), self._correction(0).to(dtype)))
        y0 = ring.shift_right(u, t).add_(a_minus_alpha << (ring.bits - t))
        s0 = p.stream02(0, self.label, n0)
        y0 = ring.wrap(y0.sub_(s0))
        if early:
            received = await Round(
                f"{self.label}/2", {p.prev: [y1], p.next: [y0]}, {p.next: [Part(dtype, n0)], p.prev: [Part(dtype, n1)]}
            )
            (seen_y1,), (seen_y0,) = received[p.next], received[p.prev]
        else:
            received = await Round(f"{self.label}/3", {p.next: [y0]}, {p.prev: [Part(dtype, n1)]})
            (seen_y0,) = received[p.prev]

        out = u.new_empty((2, n0 + n1 + n2))
        r0, r1, r2 = self.chunks.slices
        out[0, r0], out[1, r0] = s0, ring.wrap(y0 + seen_y1)
        out[0, r1], out[1, r1] = ring.wrap(y1 + seen_y0), s2
        out[0, r2], out[1, r2] = p.stream12(2, self.label, n2), p.stream02(2, self.label, n2)
        return out.reshape(2, *shape)
