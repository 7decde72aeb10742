"""What is there for devices: which torch, which cards, which libraries."""

from __future__ import annotations

from typing import Any

import torch

from mpcpipe.device import build, cache
from mpcpipe.device.loading import arch_of, backend, operators_for
from mpcpipe.errors import KernelError


def status() -> dict[str, Any]:
    """`backend` of torch, its `devices` with a library or the reason for none, the `cache`, what is `built`."""
    devices = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        device = torch.device("cuda", index)
        try:
            operators, reason = operators_for(device)
        except KernelError as error:
            operators, reason = None, str(error)
        devices.append(
            {
                "device": str(device),
                "name": torch.cuda.get_device_name(device),
                "arch": arch_of(device),
                "library": None if operators is None else str(operators.library.path),
                "reason": reason or None,
            }
        )
    try:
        built = [name for name, _ in build.all_built()]
    except KernelError as error:
        built = [str(error)]
    return {"backend": backend(), "devices": devices, "cache": str(cache.root()), "built": built}
