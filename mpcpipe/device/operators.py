"""The device library's operations on tensors: shapes checked, tiles chosen, kernels started on the current stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from mpcpipe.device.chooser import Choice, Tuner
from mpcpipe.device.library import ELEMENT_BYTES, Axis, DepthwiseCall, DeviceLibrary, ProductCall
from mpcpipe.device.machines import Machine
from mpcpipe.device.tiles import ProductChoice, SlideTile, product_choices, slide_tile, weight_parts
from mpcpipe.ring.shapes import ConvShape, matmul_shape, require_shape

ELEMENTS = {torch.int64: "u64", torch.int32: "u32", torch.float32: "f32"}
LARGEST = (1 << 31) - 1024
# LDS bytes of a patch: small ones for many blocks a unit, large ones for few rows read twice.
_BUDGETS = (16384, 8192, 32768, 49152)

Shape = tuple[int, ...]
Out = torch.Tensor | None


def refuses(shape: ConvShape, dtype: torch.dtype) -> str | None:
    """Why these kernels do not do that convolution; None if they do."""
    if dtype not in ELEMENTS:
        return f"elements are int64, int32 or float32, not {dtype}"
    if shape.dilation != (1, 1):
        return f"dilation {shape.dilation}"
    if max(shape.x[0] * shape.x[1], shape.y[0] * shape.y[1], shape.y[0] * shape.y[2] * shape.y[3]) >= LARGEST:
        return "more than 2^31 planes or pixels"
    kernel = shape.w[2:]
    if shape.groups == 1 and kernel == (1, 1):
        plain = shape.stride == (1, 1) and shape.padding == (0, 0)
        return None if plain else "a pointwise convolution with a stride or padding"
    if shape.groups != shape.x[1] or shape.w[1] != 1:
        return "neither depthwise nor pointwise"
    if kernel[0] != kernel[1] or kernel[0] not in (3, 5, 7):
        return f"a depthwise filter of {kernel}: they are 3, 5 or 7 wide and as high"
    if shape.stride not in ((1, 1), (2, 2)):
        return f"stride {shape.stride}: it is 1 or 2 in both directions"
    return None


class DeviceOperators:
    """Depthwise and pointwise convolutions, their gradients, and matrix products, on one device.

    `out`, if given, has the result's shape; `accumulate` adds to it. Shapes that do not fit raise ValueError.
    """

    def __init__(self, library: DeviceLibrary, machine: Machine, tuner: Tuner | None = None) -> None:
        """Without a tuner the model's first choice is taken."""
        self.library = library
        self.machine = machine
        self._tuner = tuner or Tuner(machine.name, None)

    def conv2d(
        self, shape: ConvShape, x: torch.Tensor, w: torch.Tensor, out: Out = None, accumulate: bool = False
    ) -> torch.Tensor:
        """y from x and w."""
        return self._convolve("forward", shape, x, w, (shape.x, shape.w, shape.y), out, accumulate)

    def conv2d_input_grad(
        self, shape: ConvShape, dy: torch.Tensor, w: torch.Tensor, out: Out = None, accumulate: bool = False
    ) -> torch.Tensor:
        """dx from dy and w."""
        return self._convolve("input_grad", shape, dy, w, (shape.y, shape.w, shape.x), out, accumulate)

    def conv2d_weight_grad(
        self, shape: ConvShape, x: torch.Tensor, dy: torch.Tensor, out: Out = None, accumulate: bool = False
    ) -> torch.Tensor:
        """dw from x and dy."""
        return self._convolve("weight_grad", shape, x, dy, (shape.x, shape.y, shape.w), out, accumulate)

    def matmul(self, a: torch.Tensor, b: torch.Tensor, out: Out = None, accumulate: bool = False) -> torch.Tensor:
        """a (m, k) times b (k, n), any strides."""
        (m, n), k = matmul_shape(a.shape, b.shape), a.shape[1]
        element = self._element(a, b)
        if max(m, n, k) >= LARGEST:
            raise ValueError(f"a product of {tuple(a.shape)} and {tuple(b.shape)} has a side of more than 2^31")
        axes = (Axis(a.stride(0)), Axis(a.stride(1)), Axis(b.stride(0)), Axis(b.stride(1)), Axis(n), Axis(1))
        along = (a.stride(1) <= a.stride(0), b.stride(0) < b.stride(1))
        return self._into(
            out,
            (m, n),
            a,
            b,
            accumulate,
            lambda target, added: self._product(element, (m, n, k), axes, along, a, b, target, added),
        )

    def _convolve(
        self,
        direction: str,
        shape: ConvShape,
        first: torch.Tensor,
        second: torch.Tensor,
        shapes: tuple[Shape, Shape, Shape],
        out: Out,
        accumulate: bool,
    ) -> torch.Tensor:
        require_shape("the first tensor", first.shape, shapes[0])
        require_shape("the second tensor", second.shape, shapes[1])
        element = self._element(first, second)
        reason = refuses(shape, first.dtype)
        if reason is not None:
            raise ValueError(f"the device kernels have no {reason}")
        first, second = first.contiguous(), second.contiguous()
        one = self._pointwise if shape.groups == 1 and shape.w[2:] == (1, 1) else self._depthwise
        return self._into(
            out,
            shapes[2],
            first,
            second,
            accumulate,
            lambda target, added: one(direction, element, shape, first, second, target, added),
        )

    def _element(self, a: torch.Tensor, b: torch.Tensor) -> str:
        if a.dtype != b.dtype or a.device != b.device or a.dtype not in ELEMENTS:
            found = f"{a.dtype} on {a.device} and {b.dtype} on {b.device}"
            raise ValueError(f"device kernels take int64, int32 or float32, of one kind on one device, not {found}")
        if a.is_cpu != (self.library.kind == "emulated"):
            raise ValueError(
                f"{self.library.path.parent.name} is for {self.library.kind}, and has no use for {a.device}"
            )
        return ELEMENTS[a.dtype]

    def _into(
        self,
        out: Out,
        shape: Shape,
        first: torch.Tensor,
        second: torch.Tensor,
        accumulate: bool,
        compute: Callable[[torch.Tensor, bool], None],
    ) -> torch.Tensor:
        """`compute` with a tensor that it may write: `out` where that is contiguous and apart from the inputs."""
        if out is None and accumulate:
            raise ValueError("accumulate needs `out`, the tensor that the result is added to")
        if out is not None:
            require_shape("out", out.shape, shape)
            if out.dtype != first.dtype or out.device != first.device:
                found = f"{out.dtype} on {out.device}"
                raise ValueError(f"out must be {first.dtype} on {first.device}, as the inputs are, not {found}")
        usable = out is not None and out.is_contiguous() and not any(_overlap(out, each) for each in (first, second))
        target = out if out is not None and usable else first.new_empty(shape)
        added = accumulate and usable
        if target.numel():
            if first.numel() == 0 or second.numel() == 0:
                if not added:
                    target.zero_()
            else:
                compute(target, added)
        if out is None or target is out:
            return target
        return out.add_(target) if accumulate else out.copy_(target)

    def _chosen(
        self,
        key: str,
        choices: list[Choice],
        name: Callable[[Choice], str],
        run: Callable[[Choice], None],
        target: torch.Tensor,
    ) -> Choice:
        """The tuner's choice; while a CUDA graph is recorded nothing can be timed, and the model's."""
        if not target.is_cpu and torch.cuda.is_current_stream_capturing():
            return choices[0]
        return self._tuner.choose(key, choices, name, run)

    def _depthwise(
        self,
        direction: str,
        element: str,
        shape: ConvShape,
        first: torch.Tensor,
        second: torch.Tensor,
        target: torch.Tensor,
        accumulate: bool,
    ) -> None:
        (batch, channels, height, width), filters, kernel = shape.x, shape.w[0], shape.w[2]
        stride, (pad_h, pad_w) = shape.stride[0], shape.padding
        gradient = direction == "input_grad"
        steps = (shape.y[2], shape.y[3])
        if gradient:  # of dy's rows and columns, those that reach into dx
            steps = (
                (height - 1 + pad_h) // stride - pad_h // stride + 1,
                (width - 1 + pad_w) // stride - pad_w // stride + 1,
            )
        planes = {"forward": batch * filters, "input_grad": batch * channels, "weight_grad": batch}[direction]
        size = ELEMENT_BYTES[element]
        tiles = [slide_tile(steps, kernel, stride, gradient, planes, size, budget) for budget in _BUDGETS]
        if direction == "weight_grad":
            tiles = [replace(each, parts=weight_parts(self.machine, filters, batch, each.group)) for each in tiles]

        def start(tile: SlideTile, to: torch.Tensor, added: bool) -> None:
            call = DepthwiseCall(
                *(batch, channels, filters // channels, height, width, shape.y[2], shape.y[3]),
                *(kernel, stride, pad_h, pad_w, tile.rows, tile.columns, tile.group, tile.parts),
                *(added, to.device.index or 0),
            )
            space = _workspace(to, tile.parts)
            self.library.depthwise(direction, element, call, *_addresses(first, second, to, space), _stream(to))

        sizes = "x".join(map(str, (*shape.x, filters, kernel, stride, pad_h, pad_w)))
        tile = self._chosen(
            f"depthwise {direction} {element} {sizes}",
            list(dict.fromkeys(tiles)),
            lambda each: f"{each.rows} {each.columns} {each.group} {each.parts}",
            lambda each: start(each, torch.empty_like(target), False),
            target,
        )
        start(tile, target, accumulate)

    def _pointwise(
        self,
        direction: str,
        element: str,
        shape: ConvShape,
        first: torch.Tensor,
        second: torch.Tensor,
        target: torch.Tensor,
        accumulate: bool,
    ) -> None:
        batch, channels, pixels, filters = shape.x[0], shape.x[1], shape.x[2] * shape.x[3], shape.w[0]
        period = pixels if batch > 1 else 0
        every_x, every_y = Axis(1, channels * pixels, period), Axis(1, filters * pixels, period)
        channel, row, one = Axis(pixels), Axis(channels), Axis(1)
        if direction == "forward":
            sizes = (filters, batch * pixels, channels)
            axes = (row, one, channel, every_x, channel, every_y)
            along, a, b = (True, False), second, first
        elif direction == "input_grad":
            sizes = (channels, batch * pixels, filters)
            axes = (one, row, channel, every_y, channel, every_x)
            along, a, b = (False, False), second, first
        else:
            sizes = (filters, channels, batch * pixels)
            axes = (channel, every_y, every_x, channel, row, one)
            along, a, b = (True, True), second, first
        self._product(element, sizes, axes, along, a, b, target, accumulate)

    def _product(
        self,
        element: str,
        sizes: tuple[int, int, int],
        axes: tuple[Axis, Axis, Axis, Axis, Axis, Axis],
        along_k: tuple[bool, bool],
        a: torch.Tensor,
        b: torch.Tensor,
        target: torch.Tensor,
        accumulate: bool,
    ) -> None:
        def start(choice: ProductChoice, to: torch.Tensor, added: bool) -> None:
            call = ProductCall(
                *sizes,
                *(axis.as_call() for axis in axes),
                *(choice.tile.index, choice.parts, *along_k, added, to.device.index or 0),
            )
            space = _workspace(to, choice.parts)
            self.library.product(element, call, *_addresses(a, b, to, space), _stream(to))

        choices = product_choices(self.machine, self.library.tiles(element), element, *sizes)
        choice = self._chosen(
            f"product {element} {sizes[0]}x{sizes[1]}x{sizes[2]} {along_k[0]:d}{along_k[1]:d}",
            choices,
            lambda each: f"{each.tile.index} {each.parts}",
            lambda each: start(each, torch.empty_like(target), False),
            target,
        )
        start(choice, target, accumulate)


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors may share memory."""
    if a.device != b.device or a.numel() == 0 or b.numel() == 0:
        return False
    ends = [(each.data_ptr(), each.data_ptr() + each.element_size() * (1 + sum(_reaches(each)))) for each in (a, b)]
    return ends[0][0] < ends[1][1] and ends[1][0] < ends[0][1]


def _reaches(x: torch.Tensor) -> list[int]:
    return [(size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)]


def _workspace(like: torch.Tensor, parts: int) -> Out:
    """Room for every part's sums. Freed in the stream's order, as all of torch's memory is."""
    return like.new_empty(parts * like.numel()) if parts > 1 else None


def _addresses(*tensors: Out) -> list[int | None]:
    return [None if each is None else each.data_ptr() for each in tensors]


def _stream(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_cpu else int(torch.cuda.current_stream(tensor.device).cuda_stream)
