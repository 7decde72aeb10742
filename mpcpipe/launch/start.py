"""What the launcher starts for each party: `python -m mpcpipe.launch.start OPTIONS`.

Importing torch takes seconds. Before that, this process is tied to its launcher's life and made to end quietly on
Ctrl-C, so that there is no moment in which it can be left behind or answer with a traceback.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from mpcpipe.launch.leave import leave
from mpcpipe.launch.machine import PartyOptions

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Entry point of a party on this machine."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the launcher held it back until here
    options = PartyOptions.unpack(sys.argv[1])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != options.launcher_pid:  # it was gone before the tie was made
        sys.exit(1)
    from mpcpipe.launch.party import run_for_launcher  # imports torch

    leave(run_for_launcher(options))


if __name__ == "__main__":
    main()
