"""What one process of a job is given by who started it, besides the job: where it listens, and whom it can reach."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from mpcpipe.launch.machine import TOGETHER, PartyOptions
from mpcpipe.link.fabric import Fabric
from mpcpipe.link.tcp import prepare
from mpcpipe.link.tls import Connection


@dataclass(frozen=True)
class Around:
    """listener: a socket that listens at this process's address, or None to open it. fabric: what frames travel over
    instead of TCP. channels: where workers are processes, the connections to the party's other workers, by number.
    ended_together: who started it ends all processes when one fails, so the signal says less than the others do.
    together: a secret of all parties, if one launcher started them.
    """

    listener: socket.socket | None = None
    fabric: Fabric | None = None
    channels: Mapping[int, Connection] = field(default_factory=dict)
    ended_together: bool = False
    together: bytes = field(default=b"", repr=False)


def inherited(options: PartyOptions) -> Around:
    """What the launcher of this machine left open for this process."""
    listener = None
    if options.listener_fd is not None:
        listener = socket.socket(fileno=options.listener_fd)
        prepare(listener)
    open_to = {worker: socket.socket(fileno=fd) for worker, fd in enumerate(options.channel_fds) if fd >= 0}
    return Around(listener, None, open_to, together=bytes.fromhex(os.environ.pop(TOGETHER, "")))
