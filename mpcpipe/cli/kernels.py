"""`mpcpipe kernels`: the native libraries: what is there, is it right, and build what is missing."""

from __future__ import annotations

from typing import Any

import click

from mpcpipe.cli import console
from mpcpipe.cli.options import with_json
from mpcpipe.errors import KernelError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def kernels() -> None:
    """The native libraries, of the CPU and of devices: what is there, and is it right?"""


@kernels.command("status")
@with_json
def status(json_file: str | None) -> None:
    """Which library is used, with which instructions, or why there is none; and which are built for devices."""
    from mpcpipe.device.status import status as of_devices
    from mpcpipe.ring import native

    devices = of_devices()
    found = {**native.status(), **devices}
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
        console.lines([("torch's device", str(devices["backend"])), ("cache", str(devices["cache"]))])
        for each in devices["devices"]:
            console.lines([(each["device"], f"{each['name']} ({each['arch']}): {each['library'] or each['reason']}")])
        console.bullets("built", devices["built"] or ["nothing for devices"])
    console.write_json(json_file, found)


@kernels.command("build")
@with_json
@click.option("--device", required=True, metavar="cuda|hip|cpu|emulated", help="What the kernels are to run on.")
@click.option(
    "--arch", "archs", multiple=True, metavar="NAME", help="Architecture, as sm_90 or gfx906; more than once for more."
)
@click.option("--force", is_flag=True, help="Build what is there already, too.")
@click.option("--jobs", type=click.IntRange(min=1), help="Compilers at a time (default: one a core).")
def build(json_file: str | None, device: str, archs: tuple[str, ...], force: bool, jobs: int | None) -> None:
    """Build the kernels for a device, into your cache (for cpu: to where this installation looks for them).

    Without --arch: for the devices of this machine, or where there is none, sm_80 and sm_90 or gfx906. `emulated` is
    the kernels of devices, run by the CPU thread by thread: for `check`, not for work.
    """
    from mpcpipe.device import build as builder
    from mpcpipe.device.toolchain import require_arch, require_device

    require_device(device)
    for arch in archs:
        require_arch(device, arch)
    made = []
    for arch in archs or builder.default_archs(device):
        built = builder.build(device, arch, force, jobs, None if json_file == "-" else console.note)
        path = builder.install_cpu(built) if device == "cpu" else built.path
        spilled = [each.name for each in built.resources if each.spilled_bytes or each.scratch_bytes]
        made.append(
            {
                "device": device,
                "arch": arch,
                "path": str(path),
                "fresh": built.fresh,
                "kernels": len(built.resources),
                "spilled": spilled,
            }
        )
        if json_file != "-":
            lines = [("library", str(path)), ("architecture", arch), ("built", "now" if built.fresh else "before")]
            if built.resources:
                spills = f"{len(built.resources)} kernels, {len(spilled)} of them with more than fits into registers"
                lines.append(("registers", spills))
            console.lines(lines)
    console.write_json(json_file, {"built": made})


@kernels.command("clean")
@with_json
def clean(json_file: str | None) -> None:
    """Remove what was built for devices, and the tiles that were chosen, from your cache."""
    from mpcpipe.device import cache

    removed = cache.clean()
    if json_file != "-":
        console.lines([("cache", str(cache.root())), ("removed", ", ".join(removed) or "nothing was there")])
    console.write_json(json_file, {"cache": str(cache.root()), "removed": removed})


@kernels.command("check")
@with_json
@click.option("--seed", default=0, show_default=True, help="Draws the values.")
@click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="auto|cpu|cuda|hip|emulated",
    help="What to check: auto is the CPU library, and kernels of devices that are here.",
)
@click.option("--arch", metavar="wave64|wave32", help="Emulated only: the size of waves (default: both).")
def check(json_file: str | None, seed: int, device: str, arch: str | None) -> None:
    """Compare every kernel with plain torch, bit for bit. Exit code 22 on any difference, or without a library."""
    from mpcpipe.device.toolchain import require_arch, require_device

    if device != "auto":
        require_device(device)
    if arch is not None:
        if device != "emulated":
            raise KernelError("--arch chooses how to emulate, with --device emulated; devices are checked as they are")
        require_arch(device, arch)
    found: dict[str, Any] = {}
    if device in ("auto", "cpu"):
        found |= _check_cpu(json_file, seed)
    if device != "cpu":
        found["devices"] = _check_devices(json_file, seed, device, arch)
    console.write_json(json_file, found)
    if found.get("different"):
        different = found["different"]
        raise KernelError(
            f"the native library differs from plain torch in {len(different)} cases, first {different[0]}; "
            "build it again, and until then set MPCPIPE_KERNELS=off"
        )
    for each in found.get("devices", ()):
        if each["different"]:
            raise KernelError(
                f"{each['path']} differs from plain torch in {len(each['different'])} cases, first "
                f"{each['different'][0]}; build it again, and until then set MPCPIPE_KERNELS=off"
            )


def _check_devices(json_file: str | None, seed: int, device: str, arch: str | None) -> list[dict[str, Any]]:
    """The kernels of devices: real ones, or emulated."""
    from mpcpipe.device.compare import compare
    from mpcpipe.device.loading import to_check

    results = []
    for name, operators, where in to_check(device, arch):
        compared = compare(operators, where, seed)
        if json_file != "-":
            rows = [
                [each.kernel, str(each.cases), "equal" if not each.different else f"{len(each.different)} DIFFERENT"]
                for each in compared
            ]
            console.table(f"{name}: {operators.library.path} beside plain torch", ["kernel", "cases", "result"], rows)
        results.append(
            {
                "name": name,
                "path": str(operators.library.path),
                "wave": operators.library.wave,
                "cases": sum(each.cases for each in compared),
                "kernels": [each.kernel for each in compared],
                "different": [f"{each.kernel}: {what}" for each in compared for what in each.different],
            }
        )
    return results


def _check_cpu(json_file: str | None, seed: int) -> dict[str, Any]:
    """The CPU library, with every instruction set that this processor has."""
    from mpcpipe.ring import native
    from mpcpipe.selfcheck.kernels import compare

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
    return {
        "path": str(library.path),
        "cases": sum(result.cases for result in results),
        "different": [f"{result.kernel} ({result.isa}) of {what}" for result, what in different],
        "isas": list(dict.fromkeys(result.isa for result in results)),
        "kernels": list(dict.fromkeys(result.kernel for result in results)),
    }
