"""A process that owns the stand-in GPU and then ends in one way or another: python -m tests.power.standin.owner HOW"""

from __future__ import annotations

import os
import signal
import sys

from mpcpipe.services.power.guard import Guard
from mpcpipe.services.power.nvml import open_nvidia
from mpcpipe.services.power.setting import Setting
from tests.power.standin.nvml import UUID


def main(how: str) -> None:
    guard = Guard(open_nvidia(UUID), lambda sentence: print(sentence, flush=True))
    assert guard.apply(Setting(sm_clock_mhz=1200, memory_clock_mhz=5001, power_limit_w=200.0))
    if how == "forgets":
        return  # neither closed nor left by `with`: the end of the process restores
    if how == "raises":
        raise RuntimeError("planted")
    if how == "watchdog killed":
        assert guard._watchdog is not None
        guard._watchdog.kill()
        guard._watchdog.wait()
    print("ready", flush=True)
    if how == "kills itself":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
