"""From a device's name in a job or a journal to the device: "nvidia:GPU-5f3a...", "simulated:a100-40gb"."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable

from mpcpipe.errors import PowerError
from mpcpipe.services.power.cards import CARDS
from mpcpipe.services.power.device import PowerDevice

VENDORS: dict[str, str] = {
    "nvidia": "mpcpipe.services.power.nvml:open_nvidia",
    "zeusd": "mpcpipe.services.power.zeusd:open_zeusd",
    "amd": "mpcpipe.services.power.amd:open_amd",
    "hygon": "mpcpipe.services.power.hygon:open_hygon",
    "simulated": "mpcpipe.services.power.simulated:open_simulated",
}
"""Kind -> a function from what stands behind the colon (which may be nothing) to the device."""


def open_device(spec: str) -> PowerDevice:
    """The device. Errors: PowerError for a kind or a GPU that is not there, with those that are."""
    kind, _, which = spec.partition(":")
    if kind not in VENDORS:
        near = [f"simulated:{kind}"] if kind in CARDS else difflib.get_close_matches(kind, VENDORS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise PowerError(
            f"there is no kind of device {kind!r}{hint} Known: {', '.join(VENDORS)}; write KIND or KIND:WHICH, such as "
            "nvidia:GPU-5f3a... or simulated:a100-40gb"
        )
    module, _, function = VENDORS[kind].partition(":")
    opener: Callable[[str], PowerDevice] = getattr(importlib.import_module(module), function)
    return opener(which)


def found_devices() -> tuple[list[PowerDevice], list[str]]:
    """All GPUs of this machine that can be opened, and a sentence for each kind that has none."""
    found: list[PowerDevice] = []
    notes: list[str] = []
    for module, function in (("nvml", "all_nvidia"), ("amd", "all_amd"), ("hygon", "all_hygon")):
        try:
            found += getattr(importlib.import_module(f"mpcpipe.services.power.{module}"), function)()
        except PowerError as error:
            notes.append(str(error))
    return found, notes
