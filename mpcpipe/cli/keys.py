"""`mpcpipe keys`: a party's certificate and private key, for links with TLS."""

from __future__ import annotations

from pathlib import Path

import click

from mpcpipe.cli import console


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def keys() -> None:
    """Make a party's certificate, or show the fingerprint that the others pin."""


@keys.command("new")
@click.argument("name")
@click.option("--dir", "folder", default=".", show_default=True, type=click.Path(file_okay=False, path_type=Path))
def new(name: str, folder: Path) -> None:
    """Make NAME.crt and NAME.key for the party NAME. The key never leaves this machine; the fingerprint goes to all."""
    from mpcpipe.launch import identity

    files, fingerprint = identity.new(name, folder)
    console.lines([("certificate", str(files.certificate)), ("private key", f"{files.key} (yours alone)")], stderr=True)
    console.note("The fingerprint. Tell it to the other parties in a way that nobody can change, such as by phone:")
    click.echo(fingerprint)
    console.note("Into [parties] of the job file, with the fingerprints of all parties in the order of names:")
    click.echo(f'fingerprints = [..., "{fingerprint}", ...]')
    click.echo(f'keys = "{files.key.parent.absolute()}"')


@keys.command("show")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def show(file: Path) -> None:
    """Print the fingerprint of the certificate in FILE."""
    from mpcpipe.launch import identity

    click.echo(identity.show(file))
