"""Small checkpoints to write and read."""

from __future__ import annotations

import torch

from mpcpipe.checkpoint.shard import Record, Shard

JOB = {"protocol.name": '"replicated3"', "train.batch_size": "16"}
KEY = bytes(range(32))


def shard(step: int = 20, session: str = "5e" * 32, party: str = "alice", numel: int = 6) -> Shard:
    """Two tensors with values of this step, one without values, and numbers that JSON could spoil."""
    weights = torch.arange(2 * numel, dtype=torch.int64).reshape(2, numel) * -(2**40) + step
    velocity = torch.tensor([[[3]], [[-(2**31)]]], dtype=torch.int32)
    return Shard(
        Record(
            step=step,
            session=session,
            party=party,
            job=JOB,
            fraction_bits={"model/0.weight": 16, "optimizer/0/v.0.weight": 22, "model/0.bias": 3},
            blank={"model/0.bias": [1, 5]},
            public={"0": {"last_rate": 0.1, "steps": 3}},
            right=(351, 360),
            losses={1: 2.302585092994046, 20: 1e-300},
        ),
        {"model/0.weight": weights, "optimizer/0/v.0.weight": velocity},
    )


def same(one: Shard, other: Shard) -> bool:
    """Bit for bit."""
    return one.record == other.record and all(
        torch.equal(one.tensors[name], other.tensors[name]) and one.tensors[name].dtype == other.tensors[name].dtype
        for name in one.tensors.keys() | other.tensors.keys()
    )
