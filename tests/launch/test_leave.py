"""A process that is done ends at once, with its code and all that it said."""

import subprocess
import sys

PROGRAM = """
import atexit
from mpcpipe.launch.leave import leave
atexit.register(print, "taken apart")
print("said", end="")
leave(7)
"""


def test_what_was_said_comes_out_and_nothing_is_taken_apart() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (7, "said", "")
