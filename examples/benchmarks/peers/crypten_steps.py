"""Training steps in CrypTen 0.4.1: two parties, the first also deals (its default), everything secret.

Prints one line of JSON. The softmax is CrypTen's own (exponential by repeated squaring, reciprocal by Newton's
iteration), its precision is its default of 16 bits. The bytes are what CrypTen itself counts; what a dealer of its own
would send is not in them, for the first party's deals travel as seeds.
"""

from __future__ import annotations

import os
import socket
import sys
import types
import warnings
from collections.abc import Generator

from peer import LEARNING_RATE, Layer, Party, Work, run

warnings.filterwarnings("ignore")
# CrypTen imports a module that newer versions of torch do not have any more, for conversion from ONNX only.
sys.modules.setdefault("torch.onnx._internal.registration", types.ModuleType("registration"))
sys.modules["torch.onnx._internal.registration"].registry = None  # type: ignore[attr-defined]

import crypten  # noqa: E402
import torch  # noqa: E402


def module(layer: Layer) -> crypten.nn.Module:
    kind, *sizes = layer
    match kind:
        case "conv":
            inputs, outputs, kernel, stride, padding = sizes
            return crypten.nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding)
        case "linear":
            return crypten.nn.Linear(*sizes)
        case "avg":
            return crypten.nn.AvgPool2d(sizes[0], stride=sizes[1])
        case "max":
            return crypten.nn.MaxPool2d(sizes[0], stride=sizes[1])
        case "flatten":
            return crypten.nn.Flatten()
    return crypten.nn.ReLU()


def join(party: Party) -> None:
    """CrypTen is told where the others are by the environment."""
    host, _, port = party.addresses[0].partition(":")
    os.environ |= {
        "WORLD_SIZE": str(len(party.addresses)),
        "RANK": str(party.number),
        "RENDEZVOUS": f"tcp://{host}:{port}",
        "DISTRIBUTED_BACKEND": "gloo",
        "GLOO_SOCKET_IFNAME": "lo" if host == "127.0.0.1" else socket.if_nameindex()[-1][1],
    }
    torch.set_num_threads(1)
    crypten.init()


def steps(work: Work, party: Party) -> Generator[int]:
    join(party)
    torch.manual_seed(1)
    model = crypten.nn.Sequential(*(module(layer) for layer in work.layers)).encrypt()
    model.train()
    x = crypten.cryptensor(torch.randn(work.batch, *work.shape), src=0)
    classes = torch.randint(work.classes, (work.batch,))
    y = crypten.cryptensor(torch.nn.functional.one_hot(classes, work.classes).float(), src=1)
    loss_of = crypten.nn.CrossEntropyLoss()
    optimizer = crypten.optim.SGD(model.parameters(), lr=LEARNING_RATE) if work.trains else None
    communicator = crypten.communicator.get()
    crypten.config.cfg.communicator.verbose = True  # count the bytes
    sent = 0
    while True:
        yield sent
        communicator.reset_communication_stats()
        scores = model(x)
        if optimizer is not None:
            loss = loss_of(scores, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        # what is sent and what is received is both counted; of two parties each gets what the other sends
        sent = communicator.get_communication_stats()["bytes"] // 2


if __name__ == "__main__":
    run("crypten", 2, steps)
