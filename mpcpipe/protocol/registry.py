"""The protocols by name. Others register through the entry point group `mpcpipe.protocols`.

What a job file is checked against stands here, so that checking one does not import torch.
"""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from mpcpipe.errors import JobError

if TYPE_CHECKING:
    from mpcpipe.protocol.base import Protocol


@dataclass(frozen=True)
class Known:
    """Where a protocol's class is ("module:Class"), and what that class says of itself."""

    where: str
    party_counts: tuple[int, ...]
    promise: str
    dealer: int | None = None


PROTOCOLS: dict[str, Known] = {
    "replicated3": Known(
        "mpcpipe.protocol.replicated3:Replicated3", (3,), "3 parties, semi-honest, any one of them may be curious"
    ),
    "replicated4": Known(
        "mpcpipe.protocol.replicated4:Replicated4",
        (4,),
        "4 parties, malicious with abort: any one of them may do whatever it likes, and is found out before anything "
        "that depends on it is opened",
    ),
    "additive2": Known(
        "mpcpipe.protocol.additive2:Additive2",
        (3,),
        "2 parties and a dealer without data (the last one), semi-honest, any one of the three may be curious",
        dealer=2,
    ),
    "plaintext": Known(
        "mpcpipe.protocol.plaintext:Plaintext", (1, 2, 3, 4), "NO PROTECTION: every party sees all values"
    ),
}


def known_protocol(name: str) -> Known:
    """What is known of the protocol `name`; a wrong name gets the list of right ones."""
    if name in PROTOCOLS:
        return PROTOCOLS[name]
    others = {point.name: point for point in entry_points(group="mpcpipe.protocols")}
    if name in others:
        loaded: type[Protocol] = others[name].load()
        return Known(others[name].value, loaded.party_counts, loaded.promise, loaded.dealer)
    known = sorted({*PROTOCOLS, *others})
    near = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise JobError(f"protocol.name: there is no protocol {name!r}{hint} Known: {', '.join(known)}.")


def protocol_named(name: str) -> type[Protocol]:
    """The protocol class called `name`; a wrong name gets the list of right ones."""
    module, _, attribute = known_protocol(name).where.partition(":")
    loaded: type[Protocol] = getattr(importlib.import_module(module), attribute)
    return loaded
