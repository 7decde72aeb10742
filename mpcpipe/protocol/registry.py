"""The protocols by name. Others register through the entry point group `mpcpipe.protocols`."""

from __future__ import annotations

import difflib
from importlib.metadata import entry_points

from mpcpipe.errors import JobError
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.plaintext import Plaintext
from mpcpipe.protocol.replicated3 import Replicated3

PROTOCOLS: dict[str, type[Protocol]] = {"replicated3": Replicated3, "plaintext": Plaintext}


def protocol_named(name: str) -> type[Protocol]:
    """The protocol class called `name`; a wrong name gets the list of right ones."""
    if name in PROTOCOLS:
        return PROTOCOLS[name]
    others = {point.name: point for point in entry_points(group="mpcpipe.protocols")}
    if name in others:
        loaded: type[Protocol] = others[name].load()
        return loaded
    known = sorted({*PROTOCOLS, *others})
    near = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise JobError(f"protocol.name: there is no protocol {name!r}{hint} Known: {', '.join(known)}.")
