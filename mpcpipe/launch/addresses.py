"""Where the processes of a job listen, by what its users say."""

from __future__ import annotations

from mpcpipe.errors import UsageError
from mpcpipe.job.present import present_names
from mpcpipe.job.schema import Job

Address = tuple[str, int]

FIRST_PORT = 17300
"""Party i listens on this port plus i where a host is given without one."""


def addresses_of(job: Job, hosts: str | None) -> tuple[Address, ...]:
    """One a party: `hosts` (H0,H1,... as --hosts gives them, each with a port or without), else the job's own.

    UsageError for what is no address, another number of them than there are parties, and two that are the same.
    """
    given = hosts.split(",") if hosts else list(job.parties.hosts)
    where = "--hosts" if hosts else "parties.hosts"
    count = len(present_names(job))
    if len(given) == len(job.parties.names):
        given = given[:count]  # of those who take part
    if len(given) != count:
        raise UsageError(f"{where} has {len(given)} addresses; the job has {count} parties that run")
    addresses = tuple(_address(host.strip(), number, where) for number, host in enumerate(given))
    if len(set(addresses)) != len(addresses):
        raise UsageError(f"{where} has an address twice: {', '.join(given)}. Each party has its own")
    return addresses


def of_worker(addresses: tuple[Address, ...], worker: int) -> tuple[Address, ...]:
    """Where a worker that is a process of its own listens, by party: so many ports above its party's as no other takes,
    also where all parties are on one machine."""
    return tuple((host, port + worker * len(addresses)) for host, port in addresses)


def _address(text: str, number: int, where: str) -> Address:
    inside = text.startswith("[") or text.count(":") > 1
    if not inside:
        host, colon, port = text.partition(":")
    elif text.startswith("["):
        host, closed, after = text[1:].partition("]")
        colon, port = (after[:1], after[1:]) if closed else (":", "")
    else:
        host, colon, port = text, "", ""
    if host and not colon:
        return host, FIRST_PORT + number
    if host and colon == ":" and port.isascii() and port.isdigit() and 0 < int(port) < 65536:
        return host, int(port)
    raise UsageError(f"{where}: {text!r} is not an address: write HOST or HOST:PORT, and IPv6 in brackets")
