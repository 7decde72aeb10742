"""From a job's [train] to what trains: the learning rate by step, the optimizer, the loss."""

from __future__ import annotations

from mpcpipe.job.schema import Train
from mpcpipe.nn import schedules
from mpcpipe.nn.adam import Adam
from mpcpipe.nn.loss import CrossEntropy, Loss, MeanSquaredError
from mpcpipe.nn.optim import SGD, Optimizer


def schedule_of(train: Train, steps_per_epoch: int) -> schedules.Schedule:
    """The learning rate by step, counted from 0."""
    rate, total = train.learning_rate, steps_per_epoch * train.epochs
    if train.schedule == "stepped":
        schedule = schedules.stepped(rate, train.schedule_every * steps_per_epoch, train.schedule_gamma)
    elif train.schedule == "cosine":
        schedule = schedules.cosine(rate, total, train.schedule_lowest)
    else:
        schedule = schedules.constant(rate)
    return schedules.warmed_up(schedule, train.warmup_steps) if train.warmup_steps else schedule


def optimizer_of(train: Train) -> Optimizer:
    """One optimizer, as the job describes it; each layer gets its own."""
    if train.optimizer == "adam":
        return Adam((train.beta1, train.beta2), train.epsilon, train.weight_decay)
    return SGD(train.momentum, train.weight_decay, train.nesterov)


def loss_of(train: Train, fraction_bits: int) -> Loss:
    """The job's loss."""
    loss: Loss = MeanSquaredError() if train.loss == "mean_squared_error" else CrossEntropy()
    loss.working_bits = fraction_bits
    return loss
