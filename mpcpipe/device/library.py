"""Binding of the device library (kernels/gpu/mpcpipe_gpu.h): addresses and sizes in, a kernel started."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mpcpipe.device.resources import Resources
from mpcpipe.device.tiles import ProductTile
from mpcpipe.errors import KernelError

ABI_VERSION = 1
DIRECTIONS = ("forward", "input_grad", "weight_grad")
ELEMENT_BYTES = {"u64": 8, "u32": 4, "f32": 4}
_UNKNOWN_REGISTERS = 128


class DepthwiseCall(ctypes.Structure):
    """struct mpg_depthwise."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("batch", "channels", "multiplier", "height", "width", "out_height", "out_width"),
            *("kernel", "stride", "pad_h", "pad_w", "tile_rows", "tile_columns", "group", "parts"),
            *("accumulate", "device"),
        )
    ]


class AxisCall(ctypes.Structure):
    """struct mpg_axis."""

    _fields_ = [(name, ctypes.c_int64) for name in ("step", "leap", "period")]


class ProductCall(ctypes.Structure):
    """struct mpg_product."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("m", "n", "k")),
        *((name, AxisCall) for name in ("a_row", "a_column", "b_row", "b_column", "c_row", "c_column")),
        *((name, ctypes.c_int64) for name in ("tile", "parts", "a_along_k", "b_along_k", "accumulate", "device")),
    ]


@dataclass(frozen=True)
class Axis:
    """Row or column i lies at (i / period) * leap + (i % period) * step elements; without a period, at i * step."""

    step: int
    leap: int = 0
    period: int = 0

    def as_call(self) -> AxisCall:
        """For the C ABI."""
        return AxisCall(self.step, self.leap, self.period)


class DeviceLibrary:
    """A built library, loaded. Methods take addresses of contiguous memory of its device and do not wait for it."""

    def __init__(self, path: Path, resources: tuple[Resources, ...] = ()) -> None:
        """Loads the library at `path`. Raises KernelError if it cannot be loaded here or is another version's."""
        self.path = path
        self._resources = resources
        try:
            self._c = ctypes.CDLL(str(path))
            self._c.mpg_kind.restype = self._c.mpg_error_text.restype = ctypes.c_char_p
            version = self._c.mpg_abi_version()
        except (OSError, AttributeError) as error:
            raise KernelError(
                f"{path} cannot be loaded here: {error}; build it again with `mpcpipe kernels build`"
            ) from error
        if version != ABI_VERSION:
            raise KernelError(f"{path} has ABI version {version}, but this mpcpipe needs {ABI_VERSION}; build it again")
        self.kind: str = self._c.mpg_kind().decode()
        self.wave: int = self._c.mpg_wave()
        pointers = (ctypes.c_void_p,) * 5
        for element in ELEMENT_BYTES:
            for direction in DIRECTIONS:
                function = getattr(self._c, f"mpg_depthwise_{direction}_{element}")
                function.argtypes = (ctypes.POINTER(DepthwiseCall), *pointers)
            getattr(self._c, f"mpg_product_{element}").argtypes = (ctypes.POINTER(ProductCall), *pointers)
        self._c.mpg_product_tile.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_int64))
        self.tiles = lru_cache(maxsize=None)(self._tiles)

    def depthwise(self, direction: str, element: str, call: DepthwiseCall, *addresses: int | None) -> None:
        """Starts one direction. `addresses`: the two inputs, the result, the workspace, the stream."""
        self._started(getattr(self._c, f"mpg_depthwise_{direction}_{element}")(call, *addresses), call)

    def product(self, element: str, call: ProductCall, *addresses: int | None) -> None:
        """Starts a product. `addresses`: a, b, c, the workspace, the stream."""
        self._started(getattr(self._c, f"mpg_product_{element}")(call, *addresses), call)

    def set_order(self, order: int) -> None:
        """Emulated only: threads run forward (0), backward (1) or shuffled (others)."""
        if self._c.mpg_set_order(order):
            raise KernelError(f"{self.path} is for {self.kind}: only emulated threads can be put in order")

    def _tiles(self, element: str) -> list[ProductTile]:
        """The tiles of products that there are for `element`."""
        numbers, found = (ctypes.c_int64 * 9)(), []
        for index in range(16):
            if self._c.mpg_product_tile(index, ELEMENT_BYTES[element], numbers) == 0:
                tn, tm, cg, pg, across, depth, bm, bn, lds = numbers
                found.append(
                    ProductTile(
                        *(index, tn, tm, cg, depth, bm, bn, lds),
                        self._registers(element, (tn, tm, cg, pg, across, depth)),
                    )
                )
        return found

    def _registers(self, element: str, parameters: tuple[int, ...]) -> int:
        for each in self._resources:
            if (each.kernel, each.element, each.parameters) == ("product", element, parameters):
                return each.registers
        return _UNKNOWN_REGISTERS

    def _started(self, code: int, call: Any) -> None:
        if code == 0:
            return
        text = self._c.mpg_error_text(code).decode()
        sizes = {
            name: value
            for name, kind in call._fields_
            if isinstance(value := getattr(call, name), int) and kind is ctypes.c_int64
        }
        raise KernelError(f"a kernel of {self.path.parent.name} was not started: {text} (code {code}, {sizes})")
