"""Agents in files: safetensors, weights only. Nothing that a file says is ever run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mpcpipe.errors import PowerError
from mpcpipe.services.power.greendls.actions import Actions
from mpcpipe.services.power.greendls.agent import STATE, Agent, Learning
from mpcpipe.services.power.greendls.network import DuelingNetwork

FORMAT = "mpcpipe-greendls-1"


def save_policy(path: Path, agent: Agent, actions: Actions, made: dict[str, Any]) -> None:
    """The online network in half precision, its actions, and how it was made: enough to choose, not to train on."""
    weights = {name: value.half().contiguous() for name, value in agent.online.state_dict().items()}
    header = {
        "format": FORMAT,
        "actions": actions.text(),
        "learning": json.dumps(asdict(agent.learning)),
        "made": json.dumps(made),
    }
    save_file(weights, path, header)


def load_policy(path: Path) -> tuple[DuelingNetwork, Actions, Learning]:
    """A network that was saved by `save_policy`."""
    header, weights = _read(path)
    try:
        actions = Actions.from_text(header["actions"])
        learning = Learning(**json.loads(header["learning"]))
        network = DuelingNetwork(STATE, len(actions), learning.hidden, torch.Generator())
        network.load_state_dict({name: value.float() for name, value in weights.items()})
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise PowerError(f"{path}: is no policy of GREENDLS: {error}; make one with `mpcpipe power train`") from error
    return network.eval(), actions, learning


def save_checkpoint(path: Path, agent: Agent, actions: Actions, seed: int) -> None:
    """All that training needs to go on: both networks, the optimizer's moments, the memory."""
    kept = {f"online.{name}": value for name, value in agent.online.state_dict().items()}
    kept |= {f"target.{name}": value for name, value in agent.target.state_dict().items()}
    for number, slot in agent.optimizer.state_dict()["state"].items():
        kept |= {f"adam.{number}.{name}": value for name, value in slot.items()}
    kept |= {f"memory.{name}": value for name, value in agent.memory.tensors().items()}
    header = {
        "format": FORMAT + "-checkpoint",
        "actions": actions.text(),
        "learning": json.dumps(asdict(agent.learning)),
        "steps": str(agent.steps),
        "seed": str(seed),
    }
    part = path.with_suffix(path.suffix + ".part")
    save_file({name: value.clone().contiguous() for name, value in kept.items()}, part, header)
    part.replace(path)


def load_checkpoint(path: Path, agent: Agent, actions: Actions, seed: int) -> None:
    """Put the agent where it was; an error where the checkpoint is of another training."""
    header, kept = _read(path)
    wanted = {"actions": actions.text(), "learning": json.dumps(asdict(agent.learning)), "seed": str(seed)}
    for name, said in wanted.items():
        if header.get(name) != said:
            raise PowerError(
                f"{path}: is the checkpoint of another training: its {name} is {header.get(name)}, not {said}; "
                "give another file, or remove this one to start anew"
            )

    def part(prefix: str) -> dict[str, torch.Tensor]:
        return {name.removeprefix(prefix): value for name, value in kept.items() if name.startswith(prefix)}

    agent.online.load_state_dict(part("online."))
    agent.target.load_state_dict(part("target."))
    state = agent.optimizer.state_dict()
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in part("adam.").items():
        number, _, moment = name.partition(".")
        moments.setdefault(int(number), {})[moment] = value
    agent.optimizer.load_state_dict({**state, "state": moments})
    agent.memory.restore(part("memory."))
    agent.steps = int(header["steps"])


def _read(path: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {}), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise PowerError(f"{path}: cannot be read as an agent: {error}; make one with `mpcpipe power train`") from error
