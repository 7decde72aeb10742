"""What single keys cannot tell: do the parts of a job fit together?"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from mpcpipe.errors import JobError, PlanError
from mpcpipe.job.schema import Job, Source
from mpcpipe.job.units import bytes_per_s
from mpcpipe.job.where import Where
from mpcpipe.nn import catalog
from mpcpipe.protocol.registry import known_protocol

T = TypeVar("T")

# What each kind of source needs, and what else it takes, besides scale, mean and std.
SOURCES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "digits": ((), ()),
    "idx": (("path",), ()),
    "npz": (("path",), ("array",)),
    "csv": (("path",), ("columns", "column", "delimiter")),
    "synthetic": ((), ("seed",)),
}
# Every party keeps the order of an epoch in memory.
MOST_ROWS = 100_000_000
OPTIONS = ("path", "array", "columns", "column", "delimiter", "seed", "args")


def check(job: Job, where: Where) -> Job:
    """The job, with derived values filled in. What does not fit is a JobError (micro-batches: a PlanError)."""
    if not re.fullmatch(r"[^/\\\x00-\x1f\x7f]{1,100}", job.name):  # the run's folder is called by it
        raise where.error("job.name", f"is {job.name!r}; a name is at most 100 characters, none of them / or \\")
    job = _protocol(job, where)
    _parties(job, where)
    _model(job, where)
    _data(job, where)
    _training(job, where)
    return job


def _protocol(job: Job, where: Where) -> Job:
    p = job.protocol
    if p.ring_bits not in (32, 64):
        raise where.error("protocol.ring_bits", f"is {p.ring_bits}; it must be 64 or 32")
    p = replace(p, compare_bits=p.compare_bits or min(p.fraction_bits + 16, p.ring_bits))
    # A product has twice the fraction bits, and must still be truncated exactly.
    if 2 * p.fraction_bits + 4 > p.ring_bits:
        raise where.error(
            "protocol.fraction_bits",
            f"is {p.fraction_bits}; products need twice as many, and a ring of {p.ring_bits} bits has room for "
            f"{(p.ring_bits - 4) // 2} at most",
        )
    if not p.fraction_bits + 2 <= p.compare_bits <= p.ring_bits:
        raise where.error(
            "protocol.compare_bits", f"is {p.compare_bits}; it must be {p.fraction_bits + 2} to {p.ring_bits}"
        )
    kind = _named(where, lambda: known_protocol(p.name))
    count = len(job.parties.names)
    if count not in kind.party_counts:
        needs = " or ".join(map(str, kind.party_counts))
        dealer = "" if kind.dealer is None else ", the last of which is its dealer"
        raise where.error("parties.names", f"has {count} names; {p.name} is for {needs} parties{dealer}")
    if p.store is not None and kind.dealer is None:
        raise where.error("protocol.store", f"is given, but {p.name} has no dealer: there is nothing to store")
    if kind.dealer is not None:
        _dealer(job, job.parties.names[kind.dealer], where)
    return replace(job, protocol=p)


def _dealer(job: Job, dealer: str, where: Where) -> None:
    """Who deals randomness could undo all masks: it must have no part in the data, and not get the model."""
    d = job.data
    owners = {f"data.rows[{i}].owner": part.owner for i, part in enumerate(d.rows)}
    owners |= {
        f"data.{what}.owner": source.owner
        for what, source in (("features", d.features), ("labels", d.labels))
        if source is not None and source.owner is not None
    }
    for key, owner in owners.items():
        if owner == dealer:
            raise where.error(
                key,
                f"is {dealer!r}: the dealer is one of the parties with data. {job.protocol.name} takes the last of "
                "parties.names as its dealer, which must have none; name one that has no part in the data last",
            )
    if job.model.reveal_to == dealer:
        raise where.error(
            "model.reveal_to", f"is {dealer!r}: the dealer of {job.protocol.name} must not learn the model"
        )


def _named(where: Where, look: Callable[[], T]) -> T:
    """look(), with the place added to its JobError about a key."""
    try:
        return look()
    except JobError as error:
        key, _, sentence = str(error).partition(": ")
        raise where.error(key, sentence) from error


def _parties(job: Job, where: Where) -> None:
    names, hosts = job.parties.names, job.parties.hosts
    for i, name in enumerate(names):
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
            raise where.error(f"parties.names[{i}]", f"is {name!r}; a name is letters, digits, - and _, a letter first")
        if name in names[:i]:
            raise where.error("parties.names", f"has {name!r} twice")
    if hosts and len(hosts) != len(names):
        raise where.error("parties.hosts", f"has {len(hosts)} entries for {len(names)} parties")
    for i, host in enumerate(hosts):
        try:
            address(host)
        except ValueError as error:
            raise where.error(f"parties.hosts[{i}]", str(error)) from error
    if job.link.kind != "tcp" and job.parties.fingerprints:
        raise where.error(
            "link.kind",
            f"is {job.link.kind!r}, which does not encrypt, and parties.fingerprints asks for TLS: take one of the two",
        )
    if job.link.rate is not None:
        try:
            bytes_per_s(job.link.rate)
        except ValueError as error:
            raise where.error("link.rate", f"is {job.link.rate!r}: {error}, such as 100Mbit/s") from error
        if job.link.kind != "tcp":
            raise where.error(
                "link.rate", f"paces connections of our own, and link.kind is {job.link.kind!r}: leave it out"
            )
    _fingerprints(job, where)


def _fingerprints(job: Job, where: Where) -> None:
    names, pins = job.parties.names, job.parties.fingerprints
    if not pins:
        return
    if len(pins) != len(names):
        raise where.error(
            "parties.fingerprints", f"has {len(pins)} entries for {len(names)} parties: one each, in the order of names"
        )
    for i, pin in enumerate(pins):
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", pin):
            raise where.error(
                f"parties.fingerprints[{i}]",
                f'is {pin!r}; it must be "sha256:" and 64 digits of 0-9 and a-f, as `mpcpipe keys show` prints it',
            )
        if pin in pins[:i]:
            raise where.error(
                "parties.fingerprints",
                f"is the same for {names[pins.index(pin)]} and {names[i]}: each party has its own certificate",
            )
    if job.parties.insecure_plaintext:
        raise where.error("parties.insecure_plaintext", "does not go with parties.fingerprints: choose one of the two")


def address(host: str) -> tuple[str, int]:
    """("10.0.0.1", 9001) from "10.0.0.1:9001"; an IPv6 address stands in brackets. Else a ValueError."""
    name, _, port = host.rpartition(":")
    if not name or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f'is {host!r}; it must be "host:port", such as "127.0.0.1:9001"')
    return name.removeprefix("[").removesuffix("]"), int(port)


def _known(job: Job, party: str | None, key: str, where: Where) -> None:
    if party is not None and party not in job.parties.names:
        raise where.error(key, f"is {party!r}, which is none of the parties {', '.join(job.parties.names)}")


def _model(job: Job, where: Where) -> None:
    m = job.model
    _known(job, m.reveal_to, "model.reveal_to", where)
    if (m.zoo is None) == (m.module is None):
        raise where.error(
            "model", 'give one of zoo (such as zoo = "lenet") and module (such as module = "net.py:build")'
        )
    if m.module is not None and not _is_reference(m.module):
        raise where.error(
            "model.module", f'is {m.module!r}; it must be "package.module:function" or "file.py:function"'
        )
    if m.zoo is not None:
        name, args = m.zoo, m.args
        _named(where, lambda: catalog.check(name, args))


def _is_reference(text: str) -> bool:
    module, _, function = text.rpartition(":")
    is_file = module.endswith(".py")
    return function.isidentifier() and bool(module) and (is_file or all(p.isidentifier() for p in module.split(".")))


def _data(job: Job, where: Where) -> None:
    d = job.data
    if not d.shape or min(d.shape) < 1:
        raise where.error("data.shape", f"is {list(d.shape)}; it must be positive sizes, such as [1, 28, 28]")
    if d.rows:
        for name in ("features", "labels", "train", "test"):
            if getattr(d, name) is not None:
                raise where.error(f"data.{name}", "does not go with [[data.rows]], whose entries have it themselves")
        for i, part in enumerate(d.rows):
            key = f"data.rows[{i}]"
            _known(job, part.owner, f"{key}.owner", where)
            _ranges(part.train, part.test, key, where)
            for what, source in (("features", part.features), ("labels", part.labels)):
                if source.owner is not None:
                    raise where.error(f"{key}.{what}.owner", "is not needed: it is the owner of the rows")
                _source(source, f"{key}.{what}", where)
        return
    for what, column in (("features", d.features), ("labels", d.labels)):
        if column is None:
            raise where.error(
                "data", f"say who has the {what}: a [data.{what}] with owner and source, or [[data.rows]]"
            )
        if column.owner is None:
            raise where.error(f"data.{what}.owner", f"is missing: the party that has the {what}")
        _known(job, column.owner, f"data.{what}.owner", where)
        _source(column, f"data.{what}", where)
    if d.train is None:
        raise where.error("data.train", "is missing: the rows to train on, [first, one past the last]")
    _ranges(d.train, d.test, "data", where)


def _ranges(train: tuple[int, int], test: tuple[int, int] | None, key: str, where: Where) -> None:
    for name, rows in (("train", train), ("test", test)):
        if rows is not None and not 0 <= rows[0] < rows[1]:
            raise where.error(f"{key}.{name}", f"is {list(rows)}; it must be [first, one past the last], rising from 0")
        if rows is not None and rows[1] > MOST_ROWS:
            raise where.error(f"{key}.{name}", f"is {list(rows)}; there may be {MOST_ROWS} rows at most")
    if test is not None and train[0] < test[1] and test[0] < train[1]:
        raise where.error(f"{key}.test", "overlaps with train: the accuracy would be that of rows the model has seen")


def _source(source: Source, key: str, where: Where) -> None:
    labels = key.endswith("labels")
    if labels and (source.scale, source.mean, source.std) != (1.0, 0.0, 1.0):
        raise where.error(key, "scale, mean and std are for features; labels are classes")
    if source.source is None:
        return
    if _is_reference(source.source):
        needs: tuple[str, ...] = ()
        takes: tuple[str, ...] = ("args",)
    elif source.source in SOURCES:
        needs, takes = SOURCES[source.source]
    else:
        known = f'{", ".join(SOURCES)} or "module:function"'
        raise where.error(f"{key}.source", f"is {source.source!r}; it is one of {known}")
    for name in needs:
        if getattr(source, name) is None:
            raise where.error(f"{key}.{name}", f"is missing: a source {source.source!r} needs it")
    unused = "columns" if labels else "column"
    for name in OPTIONS:
        given = getattr(source, name) != getattr(Source(), name)
        if given and (name not in (*needs, *takes) or name == unused):
            raise where.error(f"{key}.{name}", f"does not go with a source {source.source!r} of {key.split('.')[-1]}")
    if source.source == "csv" and labels and source.column is None:
        raise where.error(f"{key}.column", "is missing: the name of the label's column")
    if len(source.delimiter) != 1:
        raise where.error(f"{key}.delimiter", f"is {source.delimiter!r}; it must be one character")


def training_rows(job: Job) -> int:
    """How many rows there are to train on, of all owners together."""
    spans = [part.train for part in job.data.rows] or [job.data.train or (0, 0)]
    return sum(last - first for first, last in spans)


def _training(job: Job, where: Where) -> None:
    rows, batch = training_rows(job), job.train.batch_size
    if batch > rows:
        raise where.error("train.batch_size", f"is {batch}, but there are only {rows} rows to train on")
    if job.train.loss == "cross_entropy" and job.protocol.ring_bits < 64 and job.protocol.name != "plaintext":
        raise where.error(
            "train.loss",
            f"is 'cross_entropy', whose softmax needs numbers of 64 bits, and protocol.ring_bits is "
            f"{job.protocol.ring_bits}: take 64 bits, or mean_squared_error",
        )
    if job.pipeline.microbatches > batch:
        raise PlanError(
            f"pipeline.microbatches is {job.pipeline.microbatches}, more than train.batch_size, {batch}: "
            "some would be empty"
        )
    spans = [part.test for part in job.data.rows] or [job.data.test]
    if job.evaluate.how != "none" and not any(spans):
        raise where.error(
            "evaluate.how", f'is {job.evaluate.how!r}, but there are no test rows; give data.test or say "none"'
        )
    if job.evaluate.how == "revealed" and job.model.reveal_to is None:
        raise where.error("evaluate.how", 'is "revealed", but model.reveal_to names no party that learns the model')
