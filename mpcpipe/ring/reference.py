"""The ring's operations in plain torch, for any device: slow, always there, and what the native library must equal."""

from __future__ import annotations

import torch

from mpcpipe.ring.ring import Ring
from mpcpipe.ring.shapes import bit_blocks

Shape = tuple[int, ...]
Pair = tuple[int, int]

_LARGE_MACS = 1 << 22


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a (..., m, k) times b (..., k, n), exact modulo the width of the dtype; leading sizes broadcast.

    torch has integer products on the CPU only, and slow ones; elsewhere, and for large ones, digits in float64 do it.
    """
    macs = a.shape[-2] * b.shape[-2] * b.shape[-1]
    few = min(a.shape[-2], b.shape[-1]) < 8
    if a.device.type == "cpu" and (macs < _LARGE_MACS or few):
        return a @ b
    return matmul_by_digits(a, b)


def matmul_by_digits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same as `matmul` from products of float64 matrices, each exact, for devices without integer products.

    An element is written in balanced digits of B bits, x = sum over i of d_i 2^(B i) with |d_i| <= 2^(B-1): three of
    22 bits for int64, two of 16 for int32. The products of digits i and j count with 2^(B (i + j)), and not at all once
    that passes the width. A float64 holds sums of K products exactly while K 2^(2 B - 2) <= 2^53, so k is cut there.
    """
    bits, count = (16, 2) if a.dtype == torch.int32 else (22, 3)
    longest = 1 << (53 - 2 * (bits - 1))
    digits_a, digits_b = _digits(a, bits, count), _digits(b, bits, count)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]
    total = torch.zeros((*batch, a.shape[-2], b.shape[-1]), dtype=torch.int64, device=a.device)
    for start in range(0, a.shape[-1], longest):
        part = slice(start, start + longest)
        for i in range(count):
            for j in range(count - i):
                exact = digits_a[i][..., part] @ digits_b[j][..., part, :]
                total += exact.to(torch.int64) << (bits * (i + j))
    return total.to(a.dtype)


def _digits(x: torch.Tensor, bits: int, count: int) -> list[torch.Tensor]:
    """`count` balanced digits of `bits` bits, lowest first, as float64; the last one takes in what is left, wrapped."""
    half, mask = 1 << (bits - 1), (1 << bits) - 1
    rest, digits = x.to(torch.int64), []
    for _ in range(count):
        digit = ((rest + half) & mask) - half
        digits.append(digit.to(torch.float64))
        rest = (rest - digit) >> bits
    return digits


def _windows(x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> torch.Tensor:
    """View of the padded x (n, c, h, w) as (n, c, kh, kw, oh, ow)."""
    x = torch.nn.functional.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    n, c, h, w = x.shape
    oh, ow = ((size - d * (k - 1) - 1) // s + 1 for size, d, k, s in zip((h, w), dilation, kernel, stride, strict=True))
    sn, sc, sh, sw = x.stride()
    return x.as_strided(
        (n, c, *kernel, oh, ow), (sn, sc, sh * dilation[0], sw * dilation[1], sh * stride[0], sw * stride[1])
    )


def conv2d(x: torch.Tensor, w: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> torch.Tensor:
    """x (n, c, h, w) with w (o, c / groups, kh, kw)."""
    n = x.shape[0]
    o, cg, kh, kw = w.shape
    patches = _windows(x, (kh, kw), stride, padding, dilation)
    oh, ow = patches.shape[-2:]
    columns = patches.reshape(n, groups, cg * kh * kw, oh * ow)
    return matmul(w.reshape(1, groups, o // groups, cg * kh * kw), columns).reshape(n, o, oh, ow)


def conv2d_input_grad(
    dy: torch.Tensor, w: torch.Tensor, input_shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> torch.Tensor:
    """Gradient of conv2d's x, of shape `input_shape`."""
    n, c, h, width = input_shape
    o, cg, kh, kw = w.shape
    oh, ow = dy.shape[-2:]
    filters = w.reshape(1, groups, o // groups, cg * kh * kw).transpose(2, 3)
    columns = matmul(filters, dy.reshape(n, groups, o // groups, oh * ow)).reshape(n, c, kh, kw, oh, ow)
    padded = dy.new_zeros((n, c, h + 2 * padding[0], width + 2 * padding[1]))
    for i in range(kh):
        for j in range(kw):
            top, left = i * dilation[0], j * dilation[1]
            rows = slice(top, top + stride[0] * (oh - 1) + 1, stride[0])
            cols = slice(left, left + stride[1] * (ow - 1) + 1, stride[1])
            padded[:, :, rows, cols] += columns[:, :, i, j]
    return padded[:, :, padding[0] : padding[0] + h, padding[1] : padding[1] + width]


def conv2d_weight_grad(
    x: torch.Tensor, dy: torch.Tensor, weight_shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> torch.Tensor:
    """Gradient of conv2d's w, of shape `weight_shape`."""
    n = x.shape[0]
    o, cg, kh, kw = weight_shape
    oh, ow = dy.shape[-2:]
    patches = _windows(x, (kh, kw), stride, padding, dilation)
    columns = patches.reshape(n, groups, cg * kh * kw, oh * ow)
    grads = matmul(dy.reshape(n, groups, o // groups, oh * ow), columns.transpose(2, 3))
    return grads.sum(0, dtype=x.dtype).reshape(o, cg, kh, kw)


def bit_planes(x: torch.Tensor, count: int) -> torch.Tensor:
    """The lowest `count` bits of x (n,), sliced into (count, words) int64."""
    n = x.numel()
    padded = torch.zeros((n + 63) // 64 * 64, dtype=torch.int64, device=x.device)
    padded[:n] = x
    lanes = torch.arange(64, device=x.device)
    planes = [(((padded.view(-1, 64) >> j) & 1) << lanes).sum(1) for j in range(count)]
    return torch.stack(planes) if planes else padded.new_zeros((0, (n + 63) // 64))


def unpack_bits(plane: torch.Tensor, n: int, dtype: torch.dtype) -> torch.Tensor:
    """One plane (words,) as n elements 0 or 1."""
    lanes = torch.arange(64, device=plane.device)
    return ((plane.unsqueeze(1) >> lanes) & 1).reshape(-1)[:n].to(dtype)


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


def _sign_plane(x: torch.Tensor) -> torch.Tensor:
    return bit_planes((x >= 0).to(torch.int32), 1)[0]


def sum_and_sign(
    x: torch.Tensor, y: torch.Tensor | None, mask: torch.Tensor, bits: int, constant: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """x + y + constant modulo 2^bits, and where it is >= 0, packed, xor `mask`."""
    total = Ring(bits).wrap((x if y is None else x + y) + constant)
    return total, _sign_plane(total) ^ mask


def deal(r_a: torch.Tensor, r_b: torch.Tensor, c0: torch.Tensor, bits: int, nbytes: int) -> torch.Tensor:
    """The lowest `nbytes` bytes of (r_a & r_b) - c0 modulo 2^bits, flat uint8."""
    return to_bytes(Ring(bits).wrap(unpack_bits(r_a & r_b, c0.numel(), c0.dtype).sub_(c0)), nbytes)


def quotient_half(
    summand: torch.Tensor,
    own: torch.Tensor,
    alpha: torch.Tensor,
    beta: torch.Tensor,
    correction: torch.Tensor,
    mask: torch.Tensor | None,
    bits: int,
    shift: int,
    first: bool,
    constant: int,
) -> torch.Tensor:
    """(summand >> shift) + (bit + sigma correction) 2^(bits-shift) - constant - mask, modulo 2^bits.

    sigma is -1 where alpha ^ beta; bit is own beta - alpha beta if `first`, else own alpha.
    """
    n, dtype, ring = summand.numel(), summand.dtype, Ring(bits)
    if correction.dtype == torch.uint8:
        correction = from_bytes(correction, correction.numel() // max(n, 1) or 1, dtype)
    negative = unpack_bits(alpha ^ beta, n, dtype)
    bit = unpack_bits(own & (beta if first else alpha), n, dtype)
    if first:
        bit.sub_(unpack_bits(alpha & beta, n, dtype))
    product = (correction.to(dtype) ^ -negative).add_(negative).add_(bit)
    y = ring.shift_right(summand, shift).add_(product << (bits - shift)).sub_(constant)
    return ring.wrap(y if mask is None else y.sub_(mask))


def and_level(
    p: torch.Tensor, g: torch.Tensor, q: torch.Tensor, mask_0: torch.Tensor, mask_1: torch.Tensor
) -> torch.Tensor:
    """x_0 & (y_0 ^ y_1) ^ x_1 & y_0 ^ mask_0 ^ mask_1 of x = p, y = g (2, n, words), then of p's last planes and q."""
    x, y = torch.cat((p, p[:, p.shape[1] - q.shape[1] :]), dim=1), torch.cat((g, q), dim=1)
    z = (x[0] & (y[0] ^ y[1])).bitwise_xor_(x[1] & y[0])
    return z.bitwise_xor_(mask_0).bitwise_xor_(mask_1)


def shifted(
    x: torch.Tensor, y: torch.Tensor | None, lift: int, constant: int, bits: int, shift: int, small: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """(s >> shift) - constant, a logical shift of s = x + y + lift modulo 2^bits; and 1 where s >= 0, as `small`."""
    ring = Ring(bits)
    total = ring.wrap((x if y is None else x + y) + lift)
    return ring.wrap(ring.shift_right(total, shift) - constant), (total >= 0).to(small)


def monomials(planes: torch.Tensor, count: int, width: int) -> torch.Tensor:
    """See `ops.monomials`."""
    rows: list[torch.Tensor] = []
    first = 0
    for size in bit_blocks(count, width):
        block: list[torch.Tensor] = []
        for plane in planes[first : first + size]:
            block += [plane, *(row & plane for row in block)]
        rows += block
        first += size
    return torch.stack([*rows, *planes[count:]])


def block_products(a: torch.Tensor, b: torch.Tensor, count: int, width: int) -> torch.Tensor:
    """See `ops.block_products`."""
    carries: list[torch.Tensor] = []
    through: list[torch.Tensor] = []
    first = -1  # the row before the block's, since sets are numbered from 1
    for size in bit_blocks(count, width):
        every = (1 << size) - 1
        carry, all_of = torch.zeros_like(a[0]), torch.zeros_like(a[0])
        for bit in range(size):
            own, above = 1 << bit, every & -(2 << bit)
            for chosen in range(0, every + 1, 2 << bit):
                carry ^= a[first + (own | chosen)] & b[first + (own | above & ~chosen)]
        for chosen in range(1, every):
            all_of ^= a[first + chosen] & b[first + (every & ~chosen)]
        carries.append(carry)
        through.append(all_of)
        first += every
    return torch.stack(carries + through[1:])


def pair_sums(x: torch.Tensor) -> torch.Tensor:
    """See `ops.pair_sums`."""
    return torch.stack((x[1] + x[2], x[0] - x[2], x[0] + x[1]))


def and_summands(p: torch.Tensor, g: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """(x_a ^ x_b) & (y_a ^ y_b), a and b the two that are not c, for c = 0, 1, 2: x and y as in `and_level`."""
    x, y = torch.cat((p, p[:, p.shape[1] - q.shape[1] :]), dim=1), torch.cat((g, q), dim=1)
    return torch.stack([(x[a] ^ x[b]) & (y[a] ^ y[b]) for a, b in ((1, 2), (0, 2), (0, 1))])
