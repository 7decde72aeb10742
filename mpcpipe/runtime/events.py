"""What a party tells the one who started it, as JSON lines: progress, results, or why it stopped. No secret is ever in
it.

{"event": "ready",     "party": 1, "steps": 62, "slow": null}      slow: why the native library is not used
{"event": "step",      "party": 1, "step": 3, "epoch": 1, "seconds": 0.41, "loss": null}
{"event": "evaluated", "party": 1, "step": 62, "right": 431, "of": 447}
{"event": "note",      "party": 1, "text": "..."}                  a sentence of a service, such as that of power
{"event": "checkpoint", "party": 1, "step": 20, "phase": "complete"}   begun, written, complete, pruned, refreshed
{"event": "resumed",   "party": 1, "step": 20, "unusable": []}     unusable: what is wrong with newer ones of its own
{"event": "done",      "party": 1, "report": {...}}
{"event": "failed",    "party": 1, "kind": "PeerLost", "message": "...", "exit_code": 12}
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

Event = dict[str, Any]
Emit = Callable[[Event], None]


def to_file_descriptor(descriptor: int) -> Emit:
    """Writes each event as one line. Whoever read it may be gone: then events go nowhere."""

    def emit(event: Event) -> None:
        line = json.dumps(event, allow_nan=True).encode() + b"\n"
        try:
            while line:
                line = line[os.write(descriptor, line) :]
        except OSError:
            return

    return emit


class Lines:
    """Events out of a byte stream that arrives in pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Event]:
        """The events that are complete now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines if line]
