"""Builds the device kernels into the user's cache, each device and architecture a shared library of its own."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mpcpipe.device import cache, resources
from mpcpipe.device.resources import Resources
from mpcpipe.device.toolchain import ELEMENTS, KNOWN, Toolchain, find, require_arch
from mpcpipe.errors import KernelError

LIBRARY = "libmpcpipe_gpu.so"
CPU_LIBRARY = "libmpcpipe_cpu.so"
COMPILE_SECONDS = 1200
_SHOWN_LINES = 12


@dataclass(frozen=True)
class Built:
    """A library in the cache."""

    device: str
    arch: str
    path: Path
    resources: tuple[Resources, ...]
    fresh: bool


@dataclass(frozen=True)
class _Unit:
    source: Path
    target: str
    defines: tuple[str, ...]


def sources() -> Path:
    """The folder `kernels`: of the checkout, or of an installation."""
    package = Path(__file__).parents[1]
    spec = importlib.util.find_spec("mpcpipe")
    places = [package, *(Path(folder) for folder in (spec.submodule_search_locations or ()) if spec)] if spec else []
    for place in [package.parent / "kernels", *(each / "_native" / "kernels" for each in places)]:
        if (place / "gpu" / "library.cpp").is_file():
            return place
    raise KernelError("the sources of the kernels are not installed; install mpcpipe again, from a checkout or a wheel")


def default_archs(device: str) -> tuple[str, ...]:
    """Those of the devices here; where there is none, what every data centre has."""
    found = _archs_here(device)
    return found or {"cuda": ("sm_80", "sm_90"), "hip": ("gfx906",)}.get(device, KNOWN[device])


def _archs_here(device: str) -> tuple[str, ...]:
    if device not in ("cuda", "hip"):
        return ()
    import torch

    if not torch.cuda.is_available() or (torch.version.hip is not None) != (device == "hip"):
        return ()
    names = set()
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        names.add(found.gcnArchName.split(":")[0] if device == "hip" else f"sm_{found.major}{found.minor}")
    return tuple(sorted(names))


def name_of(toolchain: Toolchain, arch: str) -> str:
    """A build's folder: device, architecture, and digests of the sources and of the compiler with its options."""
    command = toolchain.compile(Path("source"), Path("target"), arch, ())
    digest = hashlib.sha256("\0".join((toolchain.version(), *command)).encode())
    return f"{_name_of_sources(toolchain.device, arch)}-{digest.hexdigest()[:8]}"


def _name_of_sources(device: str, arch: str) -> str:
    digest, folder = hashlib.sha256(), sources()
    files = [*(folder / ("cpu" if device == "cpu" else "gpu")).iterdir(), folder / "mpcpipe_kernels.h"]
    for file in sorted(files):
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return f"{device}-{arch}-{digest.hexdigest()[:12]}"


def library_name(device: str) -> str:
    """The file in a build's folder."""
    return CPU_LIBRARY if device == "cpu" else LIBRARY


def find_built(device: str, arch: str) -> Built | None:
    """The newest library of these sources, whatever the compiler, if it is in the cache."""
    if not cache.root().exists():
        return None
    folders = cache.folder().glob(f"{_name_of_sources(device, arch)}-*")
    newest = sorted(folders, key=lambda folder: folder.stat().st_mtime_ns, reverse=True)
    return next((found for folder in newest if (found := _read(folder, device, arch)) is not None), None)


def all_built() -> Iterator[tuple[str, Path]]:
    """(name, library) of every finished build in the cache, of these sources or older ones."""
    if cache.root().exists():
        for entry in sorted(cache.folder().iterdir()):
            for name in (LIBRARY, CPU_LIBRARY):
                if (entry / name).is_file():
                    yield entry.name, entry / name


def _read(folder: Path, device: str, arch: str, fresh: bool = False) -> Built | None:
    path, report = folder / library_name(device), folder / "resources.json"
    if not (path.is_file() and report.is_file()):
        return None
    cache.require_own(folder)
    cache.require_own(path)
    return Built(device, arch, path, resources.from_json(json.loads(report.read_text())), fresh)


def build(
    device: str, arch: str, force: bool = False, jobs: int | None = None, tell: Callable[[str], None] | None = None
) -> Built:
    """The library for `device` and `arch`, built unless it is there. Raises KernelError where that cannot be.

    `jobs` compilers run at a time (default: one a core); `tell` hears of each file that is done.
    """
    toolchain = find(device)
    require_arch(device, arch)
    name = name_of(toolchain, arch)
    with cache.locked() as folder:
        found = None if force else _read(folder / name, device, arch)
        if found is not None:
            return found
        with cache.unfinished(folder) as place:
            reports = _compile(toolchain, place, arch, jobs or os.cpu_count() or 1, tell)
            kernels = [each for report in reports for each in resources.parse(report, device, arch)]
            cache.write_atomically(place / "resources.json", resources.to_json(_once(kernels)))
            built = _read(cache.publish(place, name), device, arch, fresh=True)
    if built is None:
        raise KernelError(f"the build of {name} vanished from {cache.root()}; build it again")
    return built


def _once(kernels: list[Resources]) -> list[Resources]:
    """Kernels that two files both contain, once."""
    return sorted(set(kernels), key=lambda each: each.name)


def _units(device: str) -> list[_Unit]:
    folder = sources()
    if device == "cpu":
        return [_Unit(file, f"{file.stem}.o", ()) for file in sorted((folder / "cpu").glob("*.cpp"))]
    kernels = [
        _Unit(folder / "gpu" / f"{kind}.cpp", f"{kind}_{element}.o", (define,))
        for kind in ("depthwise", "product")
        for element, define in ELEMENTS.items()
    ]
    return [*kernels, _Unit(folder / "gpu" / "library.cpp", "library.o", ())]


def _compile(toolchain: Toolchain, place: Path, arch: str, jobs: int, tell: Callable[[str], None] | None) -> list[str]:
    """Compiles and links in `place`, and leaves only the library. Returns the compilers' reports."""
    units = _units(toolchain.device)
    targets = [place / unit.target for unit in units]

    def one(unit: _Unit) -> str:
        include = f"-I{sources()}"
        command = [*toolchain.compile(unit.source, place / unit.target, arch, unit.defines), include]
        report = _run(toolchain, command, f"{unit.target.removesuffix('.o')} for {arch}")
        if tell is not None:
            tell(f"{unit.target.removesuffix('.o')} for {arch}")
        return report

    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(one, unit) for unit in units]
        try:
            reports = [each.result() for each in waiting]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    library = place / library_name(toolchain.device)
    _run(toolchain, toolchain.link(targets, library, arch), f"the library for {arch}")
    for target in targets:
        target.unlink()
    return reports


def _run(toolchain: Toolchain, command: list[str], what: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603  the compiler, and files of mpcpipe's own
            command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False, env=toolchain.environment
        )
    except subprocess.TimeoutExpired as failure:
        raise KernelError(f"{toolchain.compiler} was not done with {what} after {COMPILE_SECONDS} s") from failure
    if done.returncode:
        errors = [line for line in (done.stderr + done.stdout).splitlines() if "error" in line.lower()]
        lines = errors[:_SHOWN_LINES] or (done.stderr + done.stdout).strip().splitlines()[-_SHOWN_LINES:]
        shown = "\n    ".join(lines) or "(it said nothing)"
        raise KernelError(f"{toolchain.compiler} cannot build {what} (it ended with {done.returncode}):\n    {shown}")
    return done.stderr + done.stdout


def install_cpu(built: Built, package: Path | None = None) -> Path:
    """Puts a built CPU library where mpcpipe looks for it. Raises KernelError where that folder cannot be written."""
    target = (package or Path(__file__).parents[1]) / "_native" / CPU_LIBRARY
    temporary = target.with_name(f".{CPU_LIBRARY}.{os.getpid()}")
    try:
        target.parent.mkdir(exist_ok=True)
        shutil.copy(built.path, temporary)
        temporary.replace(target)  # programs that run keep the old one
    except OSError as failure:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise KernelError(
            f"{target} cannot be written: {failure.strerror}; install mpcpipe where you may write, or as its owner"
        ) from failure
    return target
