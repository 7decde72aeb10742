"""Every error that mpcpipe raises on purpose, one tree, each with the exit code of a process that ends by it.

    MpcpipeError                 1
    ├── UsageError               2   the command line is wrong
    ├── JobError                 3   the job file is wrong (names the key and the line)
    ├── DataError                4   a data file is missing, unreadable or does not fit the job
    │   └── RangeError           5   a value does not fit the fixed-point range
    ├── ModelError               6   the model has a layer that cannot be trained securely
    ├── PlanError                7   stages, slots, micro-batches or schedule do not fit together
    ├── LinkError               10   messages between parties
    │   ├── ConnectError        11   a party did not come in time
    │   ├── PeerLost            12   a party went away, or stopped answering
    │   ├── FrameError          13   a message is not what this party expects
    │   ├── AuthError           14   a party is not who it should be
    │   └── AddressInUseError   15   another program listens on the port
    ├── AgreementError          20   the parties were started with different jobs
    ├── CheckpointError         21   a checkpoint is missing, damaged or of another job
    ├── KernelError             22   the native library cannot do what was asked
    ├── IntegrityError          23   a party deviates from the protocol
    ├── PowerError              24   a card, a grid, a limit or a policy of the power service does not fit
    ├── StoreError              25   a dealer's store is missing, used, damaged, or of another job
    └── Interrupted            130   stopped by the user

A message says what happened, at which party, stage and step, with the values, and what to do next. The launcher
exits with the code of the *first* failure, and all parties report the same one.
"""

from __future__ import annotations


class MpcpipeError(Exception):
    """Base of all errors that mpcpipe raises on purpose."""

    exit_code = 1


class UsageError(MpcpipeError):
    """The command line is wrong."""

    exit_code = 2


class JobError(MpcpipeError):
    """The job file is wrong; the message names the key and, where known, the line."""

    exit_code = 3


class DataError(MpcpipeError):
    """A data file is missing, unreadable, or does not fit the job."""

    exit_code = 4


class RangeError(DataError):
    """A value does not fit the range of the fixed point; the message names the tensor."""

    exit_code = 5


class ModelError(MpcpipeError):
    """The model has a layer that cannot be trained securely; the message says what to use instead."""

    exit_code = 6


class PlanError(MpcpipeError):
    """Stages, slots, micro-batches or a schedule do not fit together."""

    exit_code = 7


class LinkError(MpcpipeError):
    """Messages between parties failed."""

    exit_code = 10


class ConnectError(LinkError):
    """A party did not come within the deadline."""

    exit_code = 11


class PeerLost(LinkError):
    """A party went away or stopped answering in the middle."""

    exit_code = 12


class FrameError(LinkError):
    """A message is not the one that this party expects at this point."""

    exit_code = 13


class AuthError(LinkError):
    """A party is not who the job says it should be."""

    exit_code = 14


class AddressInUseError(LinkError):
    """Another program listens on the port that this party was given."""

    exit_code = 15


class AgreementError(MpcpipeError):
    """The parties were started with different jobs; the message names the first key that differs."""

    exit_code = 20


class CheckpointError(MpcpipeError):
    """A checkpoint is missing, damaged, or belongs to another job."""

    exit_code = 21


class KernelError(MpcpipeError):
    """The native library cannot do what was asked of it."""

    exit_code = 22


class IntegrityError(MpcpipeError):
    """A party sent something else than the protocol says; the message says where it was noticed, and by whom."""

    exit_code = 23


class PowerError(MpcpipeError):
    """A card, a measured grid, a limit or a policy of the power service is wrong or does not fit."""

    exit_code = 24


class StoreError(MpcpipeError):
    """What a dealer dealt beforehand cannot be used; the message says why, and what to do."""

    exit_code = 25


class Interrupted(MpcpipeError):
    """The user stopped the run."""

    exit_code = 130


def _tree(root: type[MpcpipeError]) -> list[type[MpcpipeError]]:
    return [root, *(found for child in root.__subclasses__() for found in _tree(child))]


def by_name(name: str) -> type[MpcpipeError]:
    """The error class called `name` (as parties tell each other), or `MpcpipeError` if there is none."""
    return next((found for found in _tree(MpcpipeError) if found.__name__ == name), MpcpipeError)
