"""Training steps in SPU 0.9.5: ABY3 with three parties, a 64 bit ring, everything secret, written in JAX.

Prints one line of JSON. Convolutions are patches and a matrix product, written out; ReLU's selection is kept for the
way back, because `jnp.maximum` would divide there. The softmax is `jax.nn.softmax`: the largest score, the exponential
and the division are SPU's own, on shares.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import spu
from peer import LEARNING_RATE, Layer, Party, Work, run
from spu.utils import frontend

Weights = list[tuple[jax.Array, jax.Array]]
SECRET = spu.Visibility.VIS_SECRET
SENT = re.compile(r"total send bytes (\d+)")


@jax.custom_vjp
def relu(x: jax.Array) -> jax.Array:
    return jnp.where(x > 0, x, 0.0)


def relu_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    positive = x > 0
    return jnp.where(positive, x, 0.0), positive


relu.defvjp(relu_forward, lambda positive, dy: (jnp.where(positive, dy, 0.0),))


def windows(x: jax.Array, kernel: int, stride: int) -> list[jax.Array]:
    """x: (batch, channels, height, width) -> what each place in the kernel sees, kernel * kernel of them."""
    height, width = ((side - kernel) // stride * stride + 1 for side in x.shape[2:])
    places = [(i, j) for i in range(kernel) for j in range(kernel)]
    return [x[:, :, i : i + height : stride, j : j + width : stride] for i, j in places]


def convolve(x: jax.Array, w: jax.Array, stride: int, padding: int) -> jax.Array:
    """w: (out, in * kernel * kernel)."""
    batch, channels = x.shape[:2]
    kernel = round((w.shape[1] / channels) ** 0.5)
    seen = jnp.stack(windows(jnp.pad(x, ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2)), kernel, stride), 2)
    height, width = seen.shape[3:]
    columns = seen.reshape(batch, -1, height, width).transpose(0, 2, 3, 1).reshape(batch * height * width, -1)
    return (columns @ w.T).reshape(batch, height, width, -1).transpose(0, 3, 1, 2)


def largest(of: list[jax.Array]) -> jax.Array:
    while len(of) > 1:
        of = [b + relu(a - b) for a, b in zip(of[::2], of[1::2], strict=False)] + of[len(of) // 2 * 2 :]
    return of[0]


def forward(layers: tuple[Layer, ...], weights: Weights, x: jax.Array) -> jax.Array:
    left = iter(weights)
    for kind, *sizes in layers:
        match kind:
            case "conv":
                w, b = next(left)
                x = convolve(x, w, sizes[3], sizes[4]) + b[:, None, None]
            case "linear":
                w, b = next(left)
                x = x @ w.T + b
            case "avg":
                x = sum(windows(x, *sizes)) / sizes[0] ** 2
            case "max":
                x = largest(windows(x, *sizes))
            case "flatten":
                x = x.reshape(x.shape[0], -1)
            case "relu":
                x = relu(x)
    return x


def stepping(work: Work) -> Callable[[Weights, jax.Array, jax.Array], Weights]:
    def step(weights: Weights, x: jax.Array, y: jax.Array) -> Weights:
        if not work.trains:
            return [(forward(work.layers, weights, x),)]
        scores, back = jax.vjp(lambda w: forward(work.layers, w, x), weights)
        (gradients,) = back((jax.nn.softmax(scores) - y) / work.batch)
        return jax.tree.map(lambda w, g: w - LEARNING_RATE * g, weights, gradients)

    return step


def start(work: Work) -> tuple[Weights, np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    weights = []
    for kind, *sizes in work.layers:
        if kind in ("conv", "linear"):
            inputs = sizes[0] * (sizes[2] ** 2 if kind == "conv" else 1)
            weights.append((random.normal(0, inputs**-0.5, (sizes[1], inputs)), np.zeros(sizes[1])))
    x = random.normal(size=(work.batch, *work.shape))
    return weights, x, np.eye(work.classes)[random.integers(work.classes, size=work.batch)]


@contextlib.contextmanager
def written_output() -> Iterator[list[str]]:
    """What native code writes to the standard output and error: SPU tells the bytes it sent there only."""
    lines: list[str] = []
    with tempfile.TemporaryFile("w+") as kept:
        saved = [os.dup(1), os.dup(2)]
        for number in (1, 2):
            os.dup2(kept.fileno(), number)
        try:
            yield lines
        finally:
            for number, descriptor in zip((1, 2), saved, strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)
            kept.seek(0)
            lines += kept.readlines()


def share_out(io: spu.Io, link: spu.libspu.link.Context, value: np.ndarray) -> spu.libspu.Share:
    """The first party makes the shares and sends the others theirs."""
    if link.rank == 0:
        own, *others = io.make_shares(np.asarray(value, np.float32), SECRET)
        for number, share in enumerate(others, 1):
            for part in (str(len(share.share_chunks)), share.meta, *share.share_chunks):
                link.send(number, part)
        return own
    share = spu.libspu.Share()
    chunks = int(link.recv(0))
    share.meta = link.recv(0)
    share.share_chunks = [link.recv(0) for _ in range(chunks)]
    return share


def steps(work: Work, party: Party) -> Generator[int]:
    config = spu.RuntimeConfig(protocol=spu.ProtocolKind.ABY3, field=spu.FieldType.FM64, fxp_fraction_bits=16)
    config.enable_pphlo_profile = True  # tells the bytes sent
    address = spu.libspu.link.Desc()
    address.recv_timeout_ms = 600_000
    address.connect_retry_times = 60
    address.throttle_window_size = 0  # at its default, a step of many small messages waits for seconds
    for number, at in enumerate(party.addresses):
        address.add_party(f"party{number}", at)
    link = spu.libspu.link.create_brpc(address, party.number)
    runtime, io = spu.Runtime(link, config), spu.Io(len(party.addresses), config)

    given = start(work)
    flat = jax.tree.leaves(given)
    names = [f"in{i}" for i in range(len(flat))]
    inputs = (names, [SECRET] * len(flat))
    # new weights take the place of the old ones; what is not trained gives something else
    results = names[:-2] if work.trains else ["y"]
    made, _ = frontend.compile(frontend.Kind.JAX, stepping(work), given, {}, *inputs, lambda _: results)
    for name, value in zip(names, flat, strict=True):
        runtime.set_var(name, share_out(io, link, value))
    sent = 0
    try:
        while True:
            yield sent
            with written_output() as lines:
                runtime.run(made)
            told = SENT.search("".join(lines))
            if told is None:
                sys.exit("SPU did not tell how many bytes it sent; is it version 0.9.5?")
            sent = int(told.group(1))
    finally:
        link.stop_link()


if __name__ == "__main__":
    run("spu", 3, steps)
