"""Tiles: which ones are possible, and what a model thinks of them. Values in, values out.

The model need not be right about times. It sorts: machine fill (do blocks suffice for all units?), intensity
(multiply-adds for each word read from LDS) and occupancy (are there waves enough to wait with?) pull in different
directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mpcpipe.device.machines import Machine
from mpcpipe.device.resources import BLOCK_THREADS, resident_blocks

MOST_LDS = 49152
MOST_PARTS = 64
# Waves of 32 threads a unit that hide most of the waiting.
_ENOUGH_THREADS = 768


@dataclass(frozen=True)
class SlideTile:
    """A block's share of a depthwise convolution: steps down, columns across, and planes (or images) side by side."""

    rows: int
    columns: int
    group: int
    parts: int = 1


@dataclass(frozen=True)
class ProductTile:
    """Tile `index` of the library: tn by tm sums a lane, cg lanes a sum, bm by bn a block, `depth` terms a slab."""

    index: int
    tn: int
    tm: int
    cg: int
    depth: int
    bm: int
    bn: int
    lds_elements: int
    registers: int


@dataclass(frozen=True)
class ProductChoice:
    """A tile, and how many blocks share the terms of one result."""

    tile: ProductTile
    parts: int


@lru_cache(maxsize=4096)
def slide_columns(columns: int, halo: int, stride: int) -> int:
    """Columns of a block's tile: the most of 256 threads busy, and the fewest columns read twice."""

    def worth(width: int) -> float:
        tiles = -(-columns // width)
        busy = columns / (tiles * width) * (width * (BLOCK_THREADS // width)) / BLOCK_THREADS
        return busy * width * stride / ((width - 1) * stride + halo)

    widths = {-(-columns // tiles) for tiles in range(-(-columns // BLOCK_THREADS), min(columns, 64) + 1)}
    return max(sorted((each for each in widths if each <= BLOCK_THREADS), reverse=True), key=worth)


def slide_tile(
    steps: tuple[int, int], kernel: int, stride: int, gradient: bool, count: int, element_bytes: int, budget_bytes: int
) -> SlideTile:
    """A tile of `steps` (down, across) whose patches take at most `budget_bytes` of LDS; `count` planes or images."""
    near = -(-kernel // stride)
    step, halo = (1, near) if gradient else (stride, kernel)
    columns = slide_columns(steps[1], halo, step)
    group = max(1, min(BLOCK_THREADS // columns, count))
    # A row more than it needs, a column to a phase more, and the taps: never more than what the library computes.
    pitch = -(-((columns - 1) * step + halo) // step) * step
    taps = kernel * kernel

    def fits(rows: int, group: int) -> bool:
        return element_bytes * group * ((rows + near - 1) * step * pitch + taps) <= budget_bytes

    while group > 1 and not fits(1, group):
        group -= 1
    most = max((rows for rows in range(1, min(steps[0], 512) + 1) if fits(rows, group)), default=1)
    tiles = -(-steps[0] // most)
    return SlideTile(-(-steps[0] // tiles), columns, group)


def weight_parts(machine: Machine, filters: int, batch: int, group: int) -> int:
    """Blocks a filter, so that four blocks a unit are there, as far as there are images to share."""
    wanted = -(-4 * machine.units // filters)
    return max(1, min(wanted, -(-batch // group), MOST_PARTS))


def product_choices(
    machine: Machine, tiles: list[ProductTile], element: str, m: int, n: int, k: int
) -> list[ProductChoice]:
    """All possible choices, the most promising first."""
    element_bytes = 4 if element in ("u32", "f32") else 8
    found = []
    for tile in tiles:
        if tile.lds_elements * element_bytes > MOST_LDS:
            continue
        parts = 1
        while parts <= MOST_PARTS and (parts == 1 or k >= 4 * parts * tile.depth):
            choice = ProductChoice(tile, parts)
            found.append((product_us(machine, choice, element, m, n, k), tile.index, parts, choice))
            parts *= 2
    return [choice for *_, choice in sorted(found, key=lambda each: each[:3])]


def product_us(machine: Machine, choice: ProductChoice, element: str, m: int, n: int, k: int) -> float:
    """The model's microseconds of c (m, n) = a (m, k) b (k, n)."""
    tile, parts = choice.tile, choice.parts
    width = 4 if element in ("u32", "f32") else 8
    blocks = -(-m // tile.bm) * -(-n // tile.bn) * parts
    terms = -(-k // parts)
    slabs = max(1, -(-terms // tile.depth))
    resident = min(
        resident_blocks(machine.arch, tile.registers), machine.lds_bytes // max(1, tile.lds_elements * width)
    )
    at_a_time = max(1, min(resident, -(-blocks // machine.units)))
    # Slots of a lane: products, words from LDS (32 of a unit's lanes are served at a time), and staging.
    macs = tile.bm * tile.bn * tile.depth
    words = macs * (1 / tile.tn + 1 / tile.tm) * width / 4
    staged = (tile.bm + tile.bn) * tile.depth * 12
    cycles = max(macs * machine.slots[element] / machine.lanes, words / 32) + staged / machine.lanes
    busy = min(1.0, at_a_time * BLOCK_THREADS / _ENOUGH_THREADS)
    slab = max(cycles / busy, machine.slab_cycles / at_a_time)
    finish = tile.tm * tile.tn * (6.0 if tile.cg == 1 else 20.0) * BLOCK_THREADS / machine.lanes
    rounds = -(-blocks // machine.units)
    compute_us = rounds * (slabs * slab + finish) / (machine.clock_ghz * 1e3)
    moved = width * (m * k + k * n + m * n + (2 * parts * m * n if parts > 1 else 0))
    memory_us = moved / (machine.bandwidth_gbs * 1e3)
    return machine.launch_us * (1 if parts == 1 else 2) + max(compute_us, memory_us)
