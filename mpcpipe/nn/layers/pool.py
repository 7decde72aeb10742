"""Pooling: averages are sums with more fraction bits, maxima are tournaments over the positions of a window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from mpcpipe.errors import ModelError
from mpcpipe.nn.fixed import DEFERRED_BITS, Fixed, at_most, divided
from mpcpipe.nn.layers.activation import COMPARED_BITS
from mpcpipe.nn.layers.base import Layer, Saved
from mpcpipe.protocol.base import Protocol
from mpcpipe.ring.bilinear import Pair, Shape


@dataclass(frozen=True)
class Windows:
    """Where the windows of a pooling layer lie. Tensors are (..., height, width)."""

    kernel: Pair
    stride: Pair
    padding: Pair

    def output(self, size: Pair) -> Pair:
        """Height and width of the result."""
        h, w = ((size[i] + 2 * self.padding[i] - self.kernel[i]) // self.stride[i] + 1 for i in (0, 1))
        return h, w

    def tiles(self, size: Pair) -> bool:
        """Do the windows cover every position exactly once?"""
        fits = all(size[i] % self.kernel[i] == 0 for i in (0, 1))
        return fits and self.kernel == self.stride and self.padding == (0, 0)

    def _slices(self, out: Pair) -> Iterator[tuple[slice, slice]]:
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                yield (
                    slice(i, i + self.stride[0] * (out[0] - 1) + 1, self.stride[0]),
                    slice(j, j + self.stride[1] * (out[1] - 1) + 1, self.stride[1]),
                )

    def sums(self, padded: torch.Tensor) -> torch.Tensor:
        """Over each window (..., oh, ow), contiguous: over its rows, then, of fewer elements, over its columns."""
        size = (padded.shape[-2] - 2 * self.padding[0], padded.shape[-1] - 2 * self.padding[1])
        (oh, ow), (sh, sw) = self.output(size), self.stride
        rows = [padded[..., i : i + sh * (oh - 1) + 1 : sh, :] for i in range(self.kernel[0])]
        of_rows = _summed(rows)
        return _summed([of_rows[..., j : j + sw * (ow - 1) + 1 : sw] for j in range(self.kernel[1])])

    def spread(self, y: torch.Tensor) -> torch.Tensor:
        """y (..., oh, ow) in every position of windows that tile; along rows first, so that rows are copied whole."""
        (kh, kw), (*lead, oh, ow) = self.kernel, y.shape
        rows = y.unsqueeze(-1).expand(*lead, oh, ow, kw).reshape(*lead, oh, 1, ow * kw)
        return rows.expand(*lead, oh, kh, ow * kw).reshape(*lead, oh * kh, ow * kw)

    def padded(self, x: torch.Tensor) -> torch.Tensor:
        """x with zeros around it."""
        if self.padding == (0, 0):
            return x
        return torch.nn.functional.pad(x, (self.padding[1], self.padding[1], self.padding[0], self.padding[0]))

    def views(self, padded: torch.Tensor) -> list[torch.Tensor]:
        """For each position in the window, the elements there: views (..., oh, ow) of the padded tensor."""
        size = (padded.shape[-2] - 2 * self.padding[0], padded.shape[-1] - 2 * self.padding[1])
        return [padded[..., rows, cols] for rows, cols in self._slices(self.output(size))]

    def cropped(self, padded: torch.Tensor) -> torch.Tensor:
        """The inverse of `padded`."""
        if self.padding == (0, 0):
            return padded
        h, w = padded.shape[-2:]
        return padded[..., self.padding[0] : h - self.padding[0], self.padding[1] : w - self.padding[1]].contiguous()

    def room(self, like: torch.Tensor, size: Pair) -> torch.Tensor:
        """Zeros (..., padded height, padded width) to scatter into."""
        return like.new_zeros((*like.shape[:-2], size[0] + 2 * self.padding[0], size[1] + 2 * self.padding[1]))


def _summed(parts: list[torch.Tensor]) -> torch.Tensor:
    """In new memory without gaps."""
    first, *others = parts
    if not others:
        return first.clone(memory_format=torch.contiguous_format)
    total = first + others[0]
    for other in others[1:]:
        total += other
    return total.contiguous()


def _pool_shape(layer: Layer, windows: Windows, shape: Shape) -> Shape:
    if len(shape) != 4 or min(windows.output((shape[2], shape[3]))) < 1:
        raise ValueError(
            f"{layer.name} takes (batch, channels, height, width) of at least its window, not {tuple(shape)}"
        )
    return (*shape[:2], *windows.output((shape[2], shape[3])))


class AvgPool2d(Layer):
    """torch.nn.AvgPool2d (padding counts, as is torch's default). x (batch, channels, height, width).

    Cost: none where the window is a power of two, up to 8 deferred bits; else one truncation of the output (2 rounds)
    each way.
    """

    def __init__(self, name: str, kernel_size: Pair, stride: Pair | None = None, padding: Pair = (0, 0)) -> None:
        super().__init__(name)
        self.windows = Windows(kernel_size, stride or kernel_size, padding)

    def output_shape(self, shape: Shape) -> Shape:
        """(batch, channels, height', width')."""
        return _pool_shape(self, self._windows(shape), shape)

    def _windows(self, shape: Shape) -> Windows:
        return self.windows

    async def _average(self, p: Protocol, x: Fixed, window: int) -> Fixed:
        return await divided(p, x, window, self.working_bits, self.working_bits + DEFERRED_BITS)

    async def forward(self, p: Protocol, x: Fixed, training: bool) -> tuple[Fixed, Saved]:
        """Sums over the windows, divided."""
        windows = self._windows(x.shape)
        kh, kw = windows.kernel
        total = p.ring.wrap(windows.sums(windows.padded(x.data)))
        y = await self._average(p, Fixed(total, x.fraction_bits), kh * kw)
        return y, x.shape

    async def input_grad(self, p: Protocol, saved: Saved, dy: Fixed) -> Fixed:
        """dy divided, spread over the windows."""
        windows = self._windows(saved)
        kh, kw = windows.kernel
        size = (saved[2], saved[3])
        dy = await self._average(p, dy, kh * kw)
        if windows.tiles(size):
            return Fixed(windows.spread(dy.data), dy.fraction_bits)
        dx = windows.room(dy.data, size)
        for view in windows.views(dx):
            view += dy.data
        return Fixed(windows.cropped(p.ring.wrap(dx)), dy.fraction_bits)


class AdaptiveAvgPool2d(AvgPool2d):
    """torch.nn.AdaptiveAvgPool2d where the output divides the input evenly. Cost: as AvgPool2d of that window."""

    def __init__(self, name: str, output_size: Pair) -> None:
        super().__init__(name, (1, 1))
        self.output_size = output_size

    def _windows(self, shape: Shape) -> Windows:
        if len(shape) != 4 or any(shape[2 + i] % self.output_size[i] for i in (0, 1)):
            raise ModelError(
                f"{self.name}: adaptive pooling to {self.output_size} needs windows of equal size, and an input of "
                f"{tuple(shape[2:])} does not divide into them; use AvgPool2d with a window and stride of your choice"
            )
        kernel = (shape[2] // self.output_size[0], shape[3] // self.output_size[1])
        return Windows(kernel, kernel, (0, 0))


@dataclass(frozen=True)
class Tournament:
    """What MaxPool2d keeps: the input's shape and the selector of each level, with the pairs of that level."""

    shape: Shape
    levels: list[tuple[int, Any]]


class MaxPool2d(Layer):
    """torch.nn.MaxPool2d. x (batch, channels, height, width), |x| < 2^(compare_bits - 2) units.

    All windows play at once: a level compares half of the remaining positions with the other half.
    Cost: window - 1 comparisons and selections an output, 9 rounds a level (replicated3, 32 compared bits), ceil(log2
    window) levels; backward 2 rounds a level. The first of equal values is not always the one that gets the gradient.
    """

    def __init__(self, name: str, kernel_size: Pair, stride: Pair | None = None, padding: Pair = (0, 0)) -> None:
        super().__init__(name)
        self.windows = Windows(kernel_size, stride or kernel_size, padding)

    def output_shape(self, shape: Shape) -> Shape:
        """(batch, channels, height', width')."""
        return _pool_shape(self, self.windows, shape)

    def _surround(self, p: Protocol, x: torch.Tensor) -> torch.Tensor:
        """x with the smallest comparable value around it."""
        if self.windows.padding == (0, 0):
            return x
        ones = torch.ones(x.shape[-2:], dtype=x.dtype, device=x.device)
        around = (1 - self.windows.padded(ones)) * -(1 << (p.compare_bits - 2))
        low = p.public(around)
        padded = self.windows.padded(x)
        return p.ring.wrap(padded.add_(low.reshape(low.shape[0], *[1] * (x.dim() - 3), *low.shape[1:])))

    async def forward(self, p: Protocol, x: Fixed, training: bool) -> tuple[Fixed, Saved]:
        """The maximum of each window, and who won."""
        x = await at_most(p, x, self.working_bits + COMPARED_BITS, self.working_bits)
        players = torch.stack(self.windows.views(self._surround(p, x.data)), dim=1)
        levels: list[tuple[int, Any]] = []
        while (count := players.shape[1]) > 1:
            half = count // 2
            second = players[:, half : 2 * half]
            lead = p.ring.wrap(players[:, :half] - second)
            bits = await p.nonnegative(lead)
            best, selector = await p.select(bits, lead)
            best = p.ring.wrap(best.add_(second))
            levels.append((half, selector))
            players = torch.cat((best, players[:, 2 * half :]), dim=1) if count % 2 else best
        return Fixed(players[:, 0], x.fraction_bits), Tournament(x.shape, levels)

    async def input_grad(self, p: Protocol, saved: Saved, dy: Fixed) -> Fixed:
        """dy, handed back to the winner of each window."""
        prize = dy.data.unsqueeze(1)
        for half, selector in reversed(saved.levels):
            best = prize[:, :half]
            first = await p.select_again(selector, best)
            prize = torch.cat((first, p.ring.wrap(best - first), prize[:, half:]), dim=1)
        size = (saved.shape[2], saved.shape[3])
        dx = self.windows.room(dy.data, size)
        for index, view in enumerate(self.windows.views(dx)):
            view += prize[:, index]
        return Fixed(self.windows.cropped(p.ring.wrap(dx)), dy.fraction_bits)
