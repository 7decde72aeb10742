"""What the workers of one party work on, from its job: stages with their optimizers, the feed, the loss."""

from __future__ import annotations

from mpcpipe.job.schema import Job
from mpcpipe.nn.chain import Chain
from mpcpipe.protocol.base import Protocol
from mpcpipe.runtime.feed import Feed
from mpcpipe.runtime.handover import Handover
from mpcpipe.runtime.pipeline import Arrangement
from mpcpipe.runtime.recipe import loss_of, optimizer_of
from mpcpipe.runtime.stage import Stage
from mpcpipe.runtime.worker import Shared


def shared_of(
    job: Job, protocol: Protocol, arrangement: Arrangement, chain: Chain, feed: Feed, handover: Handover | None = None
) -> Shared:
    """The layers must have their weights already: optimizers are made for those that do."""
    keep = arrangement.schedule_of(arrangement.without_flush).staleness
    pieces, overlap = job.pipeline.pieces, arrangement.schedule.name != "sequential"
    stages = [
        Stage(layers, lambda: optimizer_of(job.train), index == 0, keep, pieces, overlap)
        for index, layers in enumerate(arrangement.cut(chain.layers))
    ]
    loss = loss_of(job.train, job.protocol.fraction_bits)
    return Shared(protocol, stages, feed, loss, handover or Handover())
