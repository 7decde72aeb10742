"""`mpcpipe kernels`: the native library: what is there, and is it right?"""

from __future__ import annotations

import click

from mpcpipe.cli import console
from mpcpipe.cli.options import with_json
from mpcpipe.errors import KernelError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def kernels() -> None:
    """The native library: what is there, and is it right?"""


@kernels.command("status")
@with_json
def status(json_file: str | None) -> None:
    """Which library is used, with which instructions, or why there is none."""
    from mpcpipe.ring import native

    found = native.status()
    if json_file != "-":
        if found["path"] is None:
            console.lines(
                [
                    ("library", "none: plain torch computes the same, several times slower"),
                    ("why", str(found["reason"])),
                ]
            )
        else:
            aes = (
                "instructions of the processor" if found["aes"] else "no instructions; the cryptography package does it"
            )
            console.lines([("library", str(found["path"])), ("instructions", str(found["isa"])), ("AES", aes)])
    console.write_json(json_file, found)


@kernels.command("check")
@with_json
@click.option("--seed", default=0, show_default=True, help="Draws the values.")
def check(json_file: str | None, seed: int) -> None:
    """Compare every kernel with plain torch, bit for bit. Exit code 22 on any difference, or without a library."""
    from mpcpipe.ring import native
    from mpcpipe.runtime.kernelcheck import compare

    library = native.load()
    if library is None:
        raise KernelError(f"there is no native library to check: {native.status()['reason']}")
    results = compare(library, seed)
    different = [(result, what) for result in results for what in result.different]
    if json_file != "-":
        rows = [
            [r.kernel, r.isa, str(r.cases), "equal" if not r.different else f"{len(r.different)} DIFFERENT"]
            for r in results
        ]
        console.table(f"{library.path} beside plain torch", ["kernel", "instructions", "cases", "result"], rows)
    console.write_json(
        json_file,
        {
            "path": str(library.path),
            "cases": sum(result.cases for result in results),
            "different": [f"{result.kernel} ({result.isa}): {what}" for result, what in different],
            "isas": list(dict.fromkeys(result.isa for result in results)),
            "kernels": list(dict.fromkeys(result.kernel for result in results)),
        },
    )
    if different:
        first, what = different[0]
        raise KernelError(
            f"the native library differs from plain torch in {len(different)} cases, first {first.kernel} "
            f"({first.isa}) of {what}; build it again, and until then set MPCPIPE_KERNELS=off"
        )
