"""Options that several verbs have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from mpcpipe.errors import UsageError
from mpcpipe.job.schema import Job

F = TypeVar("F", bound=Callable[..., Any])


def with_job(command: F) -> F:
    """JOB, --set and --protocol."""
    command = click.option(
        "--protocol", metavar="NAME", help="Another protocol than the job's, such as plaintext (protects nothing)."
    )(command)
    command = click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Change one key: --set train.epochs=3. Repeatable.",
    )(command)
    return click.argument("job", type=click.Path(dir_okay=False))(command)


def with_json(command: F) -> F:
    """--json FILE."""
    return click.option(
        "--json", "json_file", metavar="FILE", help="Write the result as JSON; - is the standard output."
    )(command)


def all_overrides(overrides: tuple[str, ...], protocol: str | None) -> tuple[str, ...]:
    """--protocol is a short form of --set protocol.name."""
    return (*overrides, f'protocol.name="{protocol}"') if protocol else overrides


def party_number(job: Job, party: str) -> int:
    """The number of the party that --party names, by its name or its number."""
    names = job.parties.names
    if party in names:
        return names.index(party)
    if party.isascii() and party.isdigit() and int(party) < len(names):
        return int(party)
    raise UsageError(
        f"--party {party}: the job's parties are {', '.join(f'{i} {name}' for i, name in enumerate(names))}"
    )
