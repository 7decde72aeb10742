"""The same model in the clear, by torch itself: what the secure run is compared with, and how a revealed model is
tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.nn.functional import one_hot

from mpcpipe.data.batches import Batches
from mpcpipe.data.owners import Owner, in_the_clear
from mpcpipe.job.model import build_module
from mpcpipe.job.schema import Job, Train
from mpcpipe.runtime.recipe import schedule_of


def right_answers(module: nn.Module, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> tuple[int, int]:
    """(right, all): how many rows the module classifies right, in evaluation mode."""
    right = total = 0
    module.eval()
    with torch.no_grad():
        for x, y in batches:
            right += int((module(x).argmax(1) == y).sum())
            total += len(y)
    return right, total


def own_test_rows(owner: Owner, batches: Batches) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    """The test rows of which this party has both features and labels."""
    for batch in batches.test():
        for x, y in zip(batch.features, batch.labels, strict=True):
            if x.owner == y.owner == owner.party:
                yield owner.features(x), owner.labels(y)


def train_twin(job: Job, on_step: Callable[[int, int], None] = lambda step, steps: None) -> tuple[int, int]:
    """Train the job's model in the clear: same initial weights, batches, optimizer, schedule. (right, all) on the test
    rows.

    Security: opens the files of *all* owners. Only where one user may see all data, who asked for it
    (`evaluate.clear_twin`).
    """
    module = build_module(job)
    owners = [Owner(job, party) for party in range(len(job.parties.names))]
    batches = Batches(job)
    optimizer = _optimizer(job.train, module)
    rate = schedule_of(job.train, batches.steps_per_epoch)
    module.train()
    for step, _, batch in batches.training():
        x, y = in_the_clear(owners, batch)
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.zero_grad()
        _loss(job, module(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        on_step(step + 1, batches.steps)
    return right_answers(module, (in_the_clear(owners, batch) for batch in batches.test()))


def _loss(job: Job, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if job.train.loss == "mean_squared_error":
        return nn.functional.mse_loss(logits, one_hot(y, job.data.classes).to(logits.dtype))
    return nn.functional.cross_entropy(logits, y)


def _optimizer(train: Train, module: nn.Module) -> torch.optim.Optimizer:
    if train.optimizer == "adam":
        betas = (train.beta1, train.beta2)
        return torch.optim.Adam(module.parameters(), 1.0, betas, train.epsilon, train.weight_decay)
    return torch.optim.SGD(module.parameters(), 1.0, train.momentum, 0.0, train.weight_decay, train.nesterov)
