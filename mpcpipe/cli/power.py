"""`mpcpipe power ...`: the clocks and joules of GPUs."""

from __future__ import annotations

import click

from mpcpipe.cli.power_cap import cap
from mpcpipe.cli.power_fit import fit
from mpcpipe.cli.power_plan import plan
from mpcpipe.cli.power_replay import replay
from mpcpipe.cli.power_state import restore, status
from mpcpipe.cli.power_train import train


@click.group(epilog="Example:  mpcpipe power status     The job's [services.power] is what controls a GPU in training.")
def power() -> None:
    """GPUs: what can be set on them, caps of runs, what an ended run has left behind, policies on measured grids."""


power.add_command(status)
power.add_command(restore)
power.add_command(cap)
power.add_command(plan)
power.add_command(train)
power.add_command(replay)
power.add_command(fit)
