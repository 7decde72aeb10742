"""From a model and a network to a plan: dry runs, this machine's measurements (or a device's rates), the search.

chain, setting ──> costs (exact rounds, bytes) ──┐
this machine   ──> seconds of every piece     ───┴──> layers in seconds ──> choose ──> plan
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpcpipe.nn.chain import Chain
from mpcpipe.nn.layers import walk
from mpcpipe.plan.cost import chain_costs
from mpcpipe.plan.drive import Setting
from mpcpipe.plan.machine import Machine, nodes
from mpcpipe.plan.measure import Timing, timing
from mpcpipe.plan.net import Net
from mpcpipe.plan.partition import ANYTHING, Wish, choose
from mpcpipe.plan.plan import Plan, make_plan
from mpcpipe.plan.profile import cached, this_machine
from mpcpipe.plan.stages import NodesOf, between

# What it takes a worker to go on after a message if another, or another piece, was computed since, besides what a round
# takes an only one, over that: fitted to steps of LeNet and AlexNet in eight arrangements on an emulated network.
_AMONG_OTHERS = 5.0


def core_share(machine: Machine, local_parties: int) -> float:
    """Cores of one party where `local_parties` share the machine; may be less than one."""
    return machine.cores / local_parties


def plan_for(
    chain: Chain,
    setting: Setting,
    net: Net,
    job: str,
    wish: Wish = ANYTHING,
    local_parties: int = 1,
    machine: Machine | None = None,
    cache: Path | None = None,
) -> Plan:
    """The best plan for a chain. job: digest of the job. machine: a device that is not here; None: this one, measured.

    Parties measure different seconds, so one of them plans, and tells the others. Errors: PlanError, as `choose`.
    """
    here = this_machine(cache) if machine is None else machine
    nodes_of = measured(chain, setting, here, cache) if machine is None else estimated(chain, setting, machine)
    cores = core_share(here, local_parties)
    net = replace(net, host_s_per_byte=1 / here.wire_bytes_per_s, host_s_per_message=_AMONG_OTHERS * here.round_s)
    choice = choose(nodes_of, len(chain.layers), setting.batch_size, net, cores, wish)
    return make_plan(choice, job, here.name, str(net), cores)


def _two_sizes(batch_size: int) -> tuple[int, int]:
    """Rows of a small micro-batch, and all; others lie on the line through both."""
    return max(1, batch_size // 8), batch_size


def estimated(chain: Chain, setting: Setting, machine: Machine) -> NodesOf:
    """Layers in seconds, from the machine's rates, without the setting's pieces: a `Cut` makes them."""
    setting = replace(setting, pieces=1)
    few, many = _two_sizes(setting.batch_size)
    at = [nodes(chain_costs(chain, setting, rows).layers, machine) for rows in (few, many)]
    return between(at[0], few, at[1], many)


def measured(chain: Chain, setting: Setting, machine: Machine, cache: Path | None = None) -> NodesOf:
    """The same, measured here the first time and kept. `machine` says what rounds cost."""
    setting = replace(setting, pieces=1)
    few, many = _two_sizes(setting.batch_size)
    rows = (few, many) if few < many else (few,)
    key = {**signature(chain, setting), "rows": list(rows), "clock": "processor"}
    seconds = Timing.from_json(cached("layers", key, lambda: timing(chain, setting, rows).to_json(), cache))
    at = [seconds.nodes(chain_costs(chain, setting, r), machine) for r in (few, many)]
    return between(at[0], few, at[1], many)


def signature(chain: Chain, setting: Setting) -> Mapping[str, Any]:
    """All that seconds depend on, besides the machine and the rows."""
    layers = [
        [leaf.name, type(leaf).__name__, leaf.working_bits, {k: list(v.shape) for k, v in leaf.initial.items()}]
        for leaf in walk(chain.layers)
    ]
    optimizer = setting.make_optimizer()
    public = {k: v for k, v in vars(optimizer).items() if isinstance(v, bool | int | float | str)}
    return {
        "layers": layers,
        "shapes": [list(shape) for shape in (chain.input_shape, *chain.output_shapes)],
        "protocol": [setting.protocol.name, setting.parties, setting.ring_bits, setting.fraction_bits],
        "compare_bits": setting.compare_bits,
        "loss": [type(setting.make_loss()).__name__, setting.classes],
        "optimizer": [type(optimizer).__name__, public],
        "step": [setting.learning_rate, setting.batch_size, setting.owner],
    }
