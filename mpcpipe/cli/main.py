"""The command line: `mpcpipe VERB ...`. Verbs are loaded when they are used, so `mpcpipe --help` answers at once."""

from __future__ import annotations

import importlib
import os
import sys

import click

from mpcpipe import __version__
from mpcpipe.cli import console
from mpcpipe.errors import Interrupted, MpcpipeError
from mpcpipe.launch.leave import leave

VERBS = {
    "train": "train a model on data that nobody may see",
    "plan": "who does what when, and how long it will take",
    "deal": "the dealer's part of a job, dealt beforehand into folders",
    "check": "is the job right, and what will each party learn?",
    "report": "what happened in a run: a page, a trace, a timeline",
    "doctor": "is this machine fit for it?",
    "kernels": "native libraries: what is there, is it right, build what is missing",
    "power": "GPUs: their clocks and joules, and policies that choose them",
    "keys": "a certificate for links with TLS, and its fingerprint",
}


class Verbs(click.Group):
    """A group whose commands live in `mpcpipe.cli.VERB` and are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order of a user's day."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one verb."""
        if cmd_name not in VERBS:
            return None
        found: click.Command = getattr(importlib.import_module(f"mpcpipe.cli.{cmd_name}"), cmd_name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of verbs without importing them."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A wrong verb gets the nearest right one."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], VERBS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"verbs: {', '.join(VERBS)}"
            ctx.fail(f"there is no verb {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example:  mpcpipe train examples/digits.toml     Each verb has its own --help.",
)
@click.version_option(__version__, message="mpcpipe %(version)s")
def mpcpipe() -> None:
    """Train PyTorch models on data that nobody may see."""


def main() -> None:
    """Entry point. Errors of users end in one sentence and their own exit code, never in a traceback."""
    code = _code()
    if "torch" in sys.modules:
        leave(code)
    sys.exit(code)


def _code() -> int:
    """Do what the command line says; the exit code."""
    try:
        code = mpcpipe(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return Interrupted.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except MpcpipeError as error:
        console.error(error)
        return error.exit_code
    return code if isinstance(code, int) else 0
