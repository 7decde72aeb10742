"""What a job makes known, worked out beforehand: the list that `mpcpipe check` prints and that a run must equal."""

from __future__ import annotations

from mpcpipe.job.schema import Job
from mpcpipe.nn.chain import Chain
from mpcpipe.protocol.base import Opening

RIGHT_ANSWERS = "number of right answers"
MODEL_DIGEST = "model digest"


def loss_of_step(step: int) -> str:
    """Why the loss of a step is opened."""
    return f"loss of step {step}"


def evaluated_after(job: Job, epoch: int, epochs: int) -> bool:
    """Whether the model is evaluated after this epoch (counted from 1)."""
    every = job.evaluate.every
    return job.evaluate.how == "secure" and (epoch == epochs or (every > 0 and epoch % every == 0))


def expected_openings(job: Job, chain: Chain, steps_per_epoch: int, model_digest: bool = False) -> list[Opening]:
    """Every opening of the run, in order. model_digest: with those that `train --model-digest` adds."""
    openings: list[Opening] = []
    epochs = job.train.epochs
    step = 0
    for epoch in range(1, epochs + 1):
        for _ in range(steps_per_epoch):
            if job.train.steps and step >= job.train.steps:
                break
            step += 1
            if job.reveal.loss_every and step % job.reveal.loss_every == 0:
                openings.append(Opening(loss_of_step(step), None, ()))
        stopped = bool(job.train.steps) and step >= job.train.steps
        if evaluated_after(job, epochs if stopped else epoch, epochs):
            openings.append(Opening(RIGHT_ANSWERS, None, ()))
        if stopped:
            break
    named = chain.initial()
    if model_digest:
        openings += [Opening(MODEL_DIGEST, None, tuple(value.shape)) for value in named.values()]
    if job.model.reveal_to is not None:
        to = job.number(job.model.reveal_to)
        openings += [Opening(f"model {layer}.{key}", to, tuple(value.shape)) for (layer, key), value in named.items()]
    return openings
