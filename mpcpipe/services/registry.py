"""The services and policies by name. Others register theirs through the entry point group `mpcpipe.services`.

    [project.entry-points."mpcpipe.services"]
    heartbeat = "my_package:Heartbeat"        a Service: services.use = ["heartbeat"]
    half-speed = "my_package:HalfSpeed"       a Policy:  services.power.policy = "half-speed", mpcpipe power replay

What a name stands for, its class says. A package that takes a name of ours, or of another package, is told of as soon
as that name is asked for: which of the two runs must not depend on the order in which packages were installed.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from mpcpipe.errors import MpcpipeError, PowerError
from mpcpipe.job.schema import Job
from mpcpipe.services.base import Service, Services, Tell
from mpcpipe.services.power.policies.base import Policy, Scene

GROUP = "mpcpipe.services"
SERVICES: dict[str, str] = {"power": "mpcpipe.services.power.service:PowerService"}
"""Name -> "module:Class"."""

_POLICIES = "mpcpipe.services.power.policies"
POLICIES: dict[str, str] = {
    "static": f"{_POLICIES}.static:DriverDefault",
    "static-max": f"{_POLICIES}.static:StaticMax",
    "power-limit": f"{_POLICIES}.power_limit:PowerLimit",
    "knee": f"{_POLICIES}.knee:Knee",
    "dvfs": f"{_POLICIES}.batch_dvfs:DvfsOnly",
    "batch-dvfs": f"{_POLICIES}.batch_dvfs:BatchDvfs",
    "batch-dvfs-variant": f"{_POLICIES}.batch_dvfs:BatchDvfsVariant",
    "morak": f"{_POLICIES}.morak:Morak",
    "pctodl": f"{_POLICIES}.pctodl:PctoDL",
    "pctodl-refined": f"{_POLICIES}.refinement:PctoDLRefined",
    "receding-horizon": f"{_POLICIES}.receding_horizon:RecedingHorizon",
    "oracle": f"{_POLICIES}.oracle:Oracle",
    "greendls": f"{_POLICIES}.greendls:GreenDLS",
    "lookahead": f"{_POLICIES}.lookahead:Lookahead",
    "clipper": f"{_POLICIES}.clipper:Clipper",
    "clipper-variant": f"{_POLICIES}.clipper:ClipperVariant",
    "eais": f"{_POLICIES}.eais:Eais",
    "eais-llm": f"{_POLICIES}.eais:EaisLlm",
    "slo-clock": f"{_POLICIES}.slo_clock:SloClock",
    "perseus": f"{_POLICIES}.perseus:Perseus",
}
"""The same of the power service's policies."""


def service_named(name: str) -> type[Service]:
    """The class of a service; a wrong name gets the list of right ones."""
    found = _named(name, SERVICES, "services.use: there is no service")
    if issubclass(found, Service):
        return found
    raise PowerError(
        f"services.use: {name!r} is a policy, not a service; a policy goes to services.power.policy = {name!r}"
    )


def policy_named(name: str) -> type[Policy]:
    """The class of a policy; a wrong name gets the list of right ones."""
    found = _named(name, POLICIES, "there is no policy")
    if issubclass(found, Policy):
        return found
    raise PowerError(f"{name!r} is a service, not a policy; a service goes to services.use = [{name!r}]")


def beside_training() -> list[str]:
    """Our policies that can work beside a training; those of other packages are not loaded for this."""
    return sorted(name for name in POLICIES if not policy_named(name).needs)


def build(name: str, scene: Scene, **options: Any) -> Policy:
    """A policy by its name. options: keyword arguments of its class."""
    return policy_named(name)(scene, **options)


def _named(name: str, own: Mapping[str, str], missing: str) -> type[Service] | type[Policy]:
    """Ours, or a plug-in. Errors: PowerError for a name that nobody has, or that two have."""
    plugins = [point for point in entry_points(group=GROUP) if point.name == name]
    ours = name in SERVICES or name in POLICIES
    if ours and plugins:
        raise PowerError(
            f"{_package(plugins[0])} registers a {name!r} ({plugins[0].value}), which is a name of mpcpipe's own; "
            f"rename it in the entry points {GROUP!r} of that package, or uninstall it"
        )
    if len(plugins) > 1:
        raise PowerError(
            f"{' and '.join(sorted(_package(point) for point in plugins))} both register a {name!r} "
            f"({', '.join(sorted(point.value for point in plugins))}); uninstall one of them"
        )
    if plugins:
        return _loaded(plugins[0])
    if ours:
        module, _, attribute = {**SERVICES, **POLICIES}[name].partition(":")
        found: type[Service] | type[Policy] = getattr(importlib.import_module(module), attribute)
        return found
    known = sorted({*own, *(point.name for point in entry_points(group=GROUP))})
    near = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise PowerError(f"{missing} {name!r}{hint} Known: {', '.join(known)}.")


def _package(point: EntryPoint) -> str:
    return "an unnamed package" if point.dist is None else f"the package {point.dist.name!r}"


def _loaded(point: EntryPoint) -> type[Service] | type[Policy]:
    """Anybody's code: whatever goes wrong while it is imported is one sentence."""
    where = f"{point.name!r} of {_package(point)} ({point.value})"
    try:
        found = point.load()
    except Exception as error:
        raise PowerError(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Service | Policy)):
        raise PowerError(
            f"{where} is neither a service nor a policy: it must be a class derived from "
            "mpcpipe.services.base.Service or mpcpipe.services.power.policies.base.Policy"
        )
    return found


def _made(name: str, options: Mapping[str, Any], tell: Tell) -> Service:
    """Anybody's code, before the run: whatever it does wrong is one sentence."""
    kind = service_named(name)
    try:
        return kind(options, tell)
    except MpcpipeError:
        raise
    except Exception as error:
        raise PowerError(f"the service {name!r} cannot be made: {type(error).__name__}: {error}") from error


def services_of(job: Job, tell: Tell) -> Services:
    """What the job asks for: nothing, where it says nothing. Errors: PowerError for what cannot be had."""
    found: dict[str, Service] = {}
    if job.services.power.policy != "off":
        found["power"] = service_named("power")(dataclasses.asdict(job.services.power), tell)
    for name in job.services.use:
        options = job.services.options.get(name, {})
        if not isinstance(options, dict):
            raise PowerError(f"services.options.{name} is {options!r}; it must be a table of that service's options")
        if name in SERVICES:
            raise PowerError(f"services.use: {name!r} has a table of its own, [services.{name}]; set its keys there")
        found[name] = _made(name, options, tell)
    unused = set(job.services.options) - set(job.services.use)
    if unused:
        raise PowerError(f"services.options has {', '.join(sorted(unused))}, which services.use does not name")
    return Services(found, tell)
