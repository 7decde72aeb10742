"""Every network of the zoo under every protocol, pipelined and one after another: the same bits. Not part of CI.

    python -m tests.zoo_matrix                                       all of it: some minutes, and 10 GB of memory
    python -m tests.zoo_matrix lenet vgg16 --protocol additive2
    python -m tests.zoo_matrix secureml digits_cnn --ring-bits 32

Two steps of real crews, all parties in this process, on random data of the network's shape: the parties' shares of all
weights and running statistics are compared. Small batches, so it says nothing about speed or accuracy.

With 32 bits there are 12 after the point, and the loss is the mean squared error: cross entropy needs 64.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Sequence

import torch

from mpcpipe.nn import zoo
from mpcpipe.nn.convert import convert
from mpcpipe.nn.loss import CrossEntropy, MeanSquaredError
from mpcpipe.plan.schedule import build
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.registry import protocol_named
from mpcpipe.ring.ring import Ring
from tests.runtime.crews import Rows, train

PROTOCOLS = ("replicated3", "additive2", "replicated4")
BATCH, MICROBATCHES = 4, 2


def fingerprint(shares: Sequence[dict[str, torch.Tensor]]) -> str:
    """Of all parties' shares; a dealer has none."""
    digest = hashlib.sha256()
    for party, own in enumerate(shares):
        for name, share in own.items():
            if not share.is_meta:
                digest.update(f"{party} {name} {tuple(share.shape)}".encode() + share.contiguous().numpy().tobytes())
    return digest.hexdigest()


def trained(name: str, kind: type[Protocol], ring_bits: int, pipelined: bool, steps: int = 2) -> str:
    """The fingerprint after some steps."""
    entry = zoo.MODELS[name]

    class Zoo(Rows):
        classes = entry.classes
        fraction_bits = 16 if ring_bits == 64 else 12

    layers = len(convert(entry.build(), entry.input_shape).layers)
    firsts = [0, layers // 2] if pipelined else [0]
    schedule = build("1f1b" if pipelined else "sequential", [1] * len(firsts), MICROBATCHES)
    return fingerprint(
        train(
            entry.build,
            entry.input_shape,
            firsts,
            schedule,
            steps,
            BATCH,
            Zoo,
            kind,
            ring=Ring(ring_bits),
            make_loss=CrossEntropy if ring_bits == 64 else MeanSquaredError,
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(zoo.MODELS)}; all if none is given")
    parser.add_argument("--protocol", action="append", choices=PROTOCOLS)
    parser.add_argument("--ring-bits", type=int, choices=(32, 64), default=64)
    options = parser.parse_args()
    if unknown := set(options.models) - set(zoo.MODELS):
        parser.error(f"there is no network {', '.join(sorted(unknown))}; there are {', '.join(zoo.MODELS)}")
    wrong = 0
    for name in options.models or zoo.MODELS:
        for protocol in options.protocol or PROTOCOLS:
            began = time.perf_counter()
            kind = protocol_named(protocol)
            one, two = (trained(name, kind, options.ring_bits, pipelined) for pipelined in (False, True))
            wrong += one != two
            said = "equal" if one == two else "DIFFERENT"
            seconds = time.perf_counter() - began
            print(
                f"{name:15s} {protocol:12s} k = {options.ring_bits}  {said}  {one[:12]}  {seconds:6.1f} s", flush=True
            )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
